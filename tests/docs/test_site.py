"""The site builds strictly, from what is in the repository alone, and readers need no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.blocks import ROOT

ASSET = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["'](https?:)?//([^"'/]+)""")
IN_CSS = re.compile(r"""(?:url\(|@import )["']?(?:https?:)?//([^"'/)]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [name for name in ("mkdocs", "material", "mkdocstrings_handlers") if find_spec(name) is None]
    if missing:
        pytest.skip(f"the site is not built: {', '.join(missing)} is not installed (extra `docs`)")
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"mkdocs build --strict:\n{done.stdout}{done.stderr}"
    return place


def test_every_part_is_there(site: Path) -> None:
    for page in (
        "index",
        "start",
        "guides/index",
        "operate/failures",
        "concepts/failure",
        "reference/api",
        "research/index",
    ):
        assert (site / f"{page}.html").is_file(), page


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = ASSET.search(page.read_text())
        assert found is None, f"{page.relative_to(site)} loads from {found[2] if found else ''}"
    for sheet in site.rglob("*.css"):
        css = IN_CSS.search(sheet.read_text())
        assert css is None, f"{sheet.relative_to(site)} loads from {css[1] if css else ''}"


def test_the_reference_has_the_public_names(site: Path) -> None:
    import holdfast

    page = (site / "reference" / "api.html").read_text()
    missing = [name for name in holdfast.__all__ if not name.startswith("_") and f'id="holdfast.{name}"' not in page]
    assert not missing, f"without docstrings, or not found: {missing}"

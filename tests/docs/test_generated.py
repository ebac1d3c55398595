"""Parts of the pages that come from the code, and the drawings, are up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.blocks import ROOT

TOOLS = ROOT / "tools"


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOLS / "refresh_docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run python tools/refresh_docs.py"


def test_drawings_are_what_the_tool_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import draw_docs_pictures

    monkeypatch.setattr(draw_docs_pictures, "PICTURES", tmp_path)
    draw_docs_pictures.main()
    drawn = sorted(tmp_path.glob("*.svg"))
    assert drawn
    for picture in drawn:
        kept = ROOT / "docs" / "pictures" / picture.name
        assert kept.read_text() == picture.read_text(), f"{kept.name}: run python tools/draw_docs_pictures.py"

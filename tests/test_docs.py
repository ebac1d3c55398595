"""The docs are tested: links lead somewhere, commands and settings exist, defaults agree with the code.

The blocks of the pages are run by tests/docs, and tests/docs/test_site.py builds the site.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import click
import pytest

from holdfast.cli.main import cli
from holdfast.spark.settings import Settings
from holdfast.topology import Operator

ROOT = Path(__file__).resolve().parent.parent
RECORDS = sorted(ROOT.glob("docs/decisions/*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TODAY = [page for page in PAGES if page not in RECORDS and page.name != "CHANGELOG.md"]
"""What describes the project as it is; records and changes describe what it was."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" in target:
            continue
        assert (page.parent / target).exists(), f"{page.name} points at {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_named_in_the_text_exist(page: Path) -> None:
    for file in re.findall(r"`((?:src|tests|tools|docs)/[\w./-]+\.\w+)`", page.read_text()):
        assert (ROOT / file).exists(), f"{page.name} names {file}, which is not there"


def commands(text: str) -> list[str]:
    """Every `holdfast …` in code: whole lines of blocks and spans between backquotes."""
    blocks = re.findall(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`(holdfast [^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line for line in [*lines, *spans] if line.startswith("holdfast ")]


@pytest.mark.parametrize("page", TODAY, ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    for line in commands(page.read_text()):
        words = shlex.split(re.split(r"\s[|>#&]|\s2>|…", line)[0], comments=True)[1:]
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            assert found is not None, f"{page.name}: `{line}`: there is no command {words[0]}"
            command, words = found, words[1:]
            context = click.Context(command, parent=context)
        known = {option for parameter in command.get_params(context) for option in parameter.opts}
        for word in words:
            if word.startswith("--"):
                option = word.partition("=")[0]
                assert option in known | {"--help"}, f"{page.name}: `{line}`: there is no option {option}"


@pytest.mark.parametrize("page", TODAY, ids=name)
def test_settings_exist(page: Path) -> None:
    known = {key for key, _, _ in Settings.table()}
    for key in re.findall(r"spark\.holdfast\.\w[\w.]*\w", page.read_text()):
        assert key in known, f"{page.name}: there is no setting {key}"


@pytest.mark.parametrize("page", [*TODAY, *RECORDS], ids=name)
def test_papers_have_names(page: Path) -> None:
    found = re.search(r"\bpapers? 00\d\b|\b00[0-4], (?:Fig|sec|Alg|Q)", page.read_text(), re.IGNORECASE)
    assert found is None, (
        f"{page.name}: {found[0] if found else ''}: cite papers by the names in docs/research/papers.md"
    )


@pytest.mark.parametrize("page", TODAY, ids=name)
def test_pages_use_the_terms_of_the_glossary(page: Path) -> None:
    """Words that we no longer use. The glossary itself translates them for readers of old records."""
    if page.name in ("glossary.md", "simulator.md", "cli.md"):  # the last two repeat names and help texts of the code
        return
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    for word in ("conductor", "vault", "keepers", "unsure", "warden", "heard", "narrat"):
        assert not re.search(rf"\b{word}", text, re.IGNORECASE), (
            f"{page.name} says {word!r}: see docs/concepts/glossary.md"
        )


def test_defaults_in_the_file_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "topology-file.md").read_text()
    written = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    for field in fields(Operator):
        assert field.name in written, f"docs/reference/topology-file.md does not explain {field.name}"
        shown = written[field.name].split()[0]
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert float(shown) == field.default, field.name
        elif isinstance(field.default, bool):
            assert shown == str(field.default).lower(), field.name


def test_every_public_name_is_in_the_guides() -> None:
    """What `import holdfast as hf` offers is shown to readers somewhere, not only in the generated reference."""
    import holdfast

    shown = " ".join(page.read_text() for page in TODAY)
    for public in holdfast.__all__:
        if not public.startswith("_") and public[0].islower():
            assert f"hf.{public}" in shown, f"no page shows hf.{public}"


def test_what_fails_has_one_row() -> None:
    """Merges keep both sides of a table that was divided: then two rows advise the person on call."""
    page = (ROOT / "docs" / "operate" / "failures.md").read_text()
    tables = page[: page.index("## Parked queries")]
    failing = [line.split(" | ")[0] for line in tables.splitlines() if line.count(" | ") >= 3]
    rows = [one for one in failing if one != "| what fails"]
    assert len(rows) > 40
    assert sorted(rows) == sorted(set(rows))

"""The docs are tested: links lead somewhere, commands exist, defaults agree with the code."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import click
import pytest

from holdfast.cli.main import cli
from holdfast.topology import Operator

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" in target:
            continue
        assert (page.parent / target).exists(), f"{page.name} points at {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_named_in_the_text_exist(page: Path) -> None:
    for name in re.findall(r"`((?:src|tests|tools|docs)/[\w./-]+\.\w+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}, which is not there"


def commands(text: str) -> list[str]:
    """Every `holdfast …` in code: whole lines of blocks and spans between backquotes."""
    blocks = re.findall(r"^```(?:sh|bash|console|text)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`(holdfast [^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line for line in [*lines, *spans] if line.startswith("holdfast ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    for line in commands(page.read_text()):
        words = shlex.split(re.split(r"\s[|>#]|\s2>|…", line)[0], comments=True)[1:]
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            assert found is not None, f"{page.name}: `{line}`: there is no command {words[0]}"
            command, words = found, words[1:]
            context = click.Context(command, parent=context)
        known = {name for parameter in command.get_params(context) for name in parameter.opts}
        for word in words:
            if word.startswith("--"):
                option = word.partition("=")[0]
                assert option in known | {"--help"}, f"{page.name}: `{line}`: there is no option {option}"


def test_defaults_in_the_file_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "topology-file.md").read_text()
    written = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    for field in fields(Operator):
        assert field.name in written, f"docs/topology-file.md does not explain {field.name}"
        shown = written[field.name].split()[0]
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert float(shown) == field.default, field.name
        elif isinstance(field.default, bool):
            assert shown == str(field.default).lower(), field.name

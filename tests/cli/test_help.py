"""Every command there is: its help is written, and what the lists promise can be imported."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import click
import pytest

from holdfast.cli.lazy import LazyGroup
from holdfast.cli.main import cli, run


def every_command(group: click.Group = cli, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += every_command(command, (*path, name))
    return found


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    printed = capsys.readouterr()
    assert f"Usage: holdfast {' '.join(path)}" in printed.out
    assert printed.err == ""
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert command.help, "says what it does"
    if not isinstance(command, click.Group):
        assert "Example" in command.help, "shows how it is called"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} is explained"


def test_an_empty_group_still_has_help() -> None:
    group = LazyGroup(name="empty", lazy={})
    assert "Usage" in group.get_help(click.Context(group, info_name="empty"))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["dril"], "there is no command 'dril'; did you mean 'drill'?; see `holdfast --help`"),
        (["plan", "fragment"], "there is no command 'fragment'; did you mean 'fragments'?; see `holdfast plan --help`"),
        (["xyzzy"], "there is no command 'xyzzy'; see `holdfast --help`"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_command_that_is_not_there_is_refused_with_the_nearest(
    given: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given) == 2
    assert capsys.readouterr().err == f"holdfast: {line}\n"


def test_the_package_runs_as_a_module() -> None:
    """Where the command's script is not on the path: `python -m holdfast`."""
    done = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(version("holdfast"))

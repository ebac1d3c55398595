"""`holdfast demo`: what it refuses before it starts anything."""

from __future__ import annotations

import pytest

from holdfast.cli.main import run


@pytest.mark.parametrize(
    "arguments", [["--nodes", "1"], ["--nodes", "51"], ["--seconds", "10"], ["--seed", "-1"], ["--seed", "9" * 30]]
)
def test_numbers_out_of_range_get_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert arguments[0] in printed.err

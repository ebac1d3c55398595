"""`holdfast drill`: what it refuses before it starts anything, and the line it shows while it runs."""

from __future__ import annotations

import pytest

from holdfast.cli.drill_display import DrillLine
from holdfast.cli.main import run
from holdfast.drill.history import Event
from holdfast.drill.settings import DrillSettings


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["weather"], "APP|SCENARIO"),
        (["traffic", "--kill", "9"], "--kill"),
        (["traffic", "--arrivals", "1,2"], "--arrivals"),
        (["traffic", "--arrivals", "soon"], "--arrivals"),
        (["traffic", "--strategy", "hope"], "--strategy"),
        (["traffic", "--drop-packets", "1.5"], "--drop-packets"),
        (["mixed", "--nodes", "0"], "--nodes"),
        (["traffic", "--recovery", "5:20"], "--recovery"),
        (["traffic", "--plan", "auto", "--recovery", "5"], "--recovery"),
    ],
)
def test_what_cannot_be_done_gets_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["drill", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert named in printed.err


def test_targets_that_contradict_each_other_end_a_drill_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["drill", "word-count", "--plan", "auto", "--recovery", "1:1", "--kill", "1", "--arrivals", "5"]) == 3
    assert "recovery 1:1 (priority 1 and above back in 1 s)" in capsys.readouterr().err


def test_the_line_says_where_a_drill_stands() -> None:
    line = DrillLine(DrillSettings("traffic", nodes=3, kill=1, arrivals=(5.0,), batches=40))
    queries = {"A[0]": {"priority": 1, "members": ["S[0]", "A[0]"]}, "B[0]": {"priority": 1, "members": ["B[0]"]}}
    line.handle(Event(0.0, "begin", {"queries": queries}))
    line.handle(Event(3.5, "published", {"partition": "A[0]", "batch": 3}))
    line.handle(Event(3.5, "published", {"partition": "B[0]", "batch": 2}))
    assert line.handle(Event(20.0, "fault", {"what": "kill", "node": "node-2"})) == "  20.0 s  kill -9 node-2"
    line.handle(Event(20.3, "state", {"partition": "S[0]", "before": "running", "after": "lost"}))
    assert str(line) == "  20.3 s  batch 3 of 40, the last query at 2; 1 of 2 queries up, 2 nodes"
    line.handle(Event(22.0, "state", {"partition": "S[0]", "before": "lost", "after": "restoring"}))
    assert "2 of 2 queries up" in str(line)

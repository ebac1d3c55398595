"""A drill's stream begins when everything that its first batches meet is started: partitions, and readers."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as hf
from holdfast.drill import front_door
from holdfast.drill.checkers import Check, Verdict
from holdfast.drill.driver import DriverJob
from holdfast.drill.history import Event
from holdfast.drill.plan_targets import check_promises
from holdfast.drill.report import drill_command
from holdfast.drill.settings import DrillSettings, check_settings, read_settings
from holdfast.errors import BadInput


class Events:
    """The pipe to the drill; notes when the driver is ready."""

    def __init__(self, order: list[str]) -> None:
        self._order = order

    def emit(self, kind: str, at: float | None = None, **fields: Any) -> None:
        self._order.append(kind)


@pytest.mark.parametrize("warm", [True, False])
def test_readers_are_started_on_every_node_before_the_first_file_arrives(
    warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it each of the first micro-batches met an executor without a Python worker: 6 s each, one by one."""
    order: list[str] = []
    spark = SimpleNamespace(stop=lambda: order.append("stop"))
    run = SimpleNamespace(recovery=None, isActive=True, awaitTermination=lambda: order.append("run"))

    def launch(*given: Any, **named: Any) -> Any:
        order.append("launch")
        return run

    monkeypatch.setattr(front_door, "start_session", lambda *given, **named: spark)
    monkeypatch.setattr(front_door, "await_executors", lambda *given: None)
    monkeypatch.setattr(front_door, "warm_up", lambda *given: None)
    monkeypatch.setattr(front_door, "launch", launch)
    monkeypatch.setattr(front_door, "warm_readers", lambda of, nodes: order.append(f"readers of {nodes} nodes"))
    settings = DrillSettings("word-count", nodes=4, kill=1)
    job = DriverJob(settings, "spark://nowhere", "run", "out", -1, 4, warm=warm, input_folder="in")
    front_door.drive(job, Events(order), io.StringIO("0\n"))  # type: ignore[arg-type]
    readers = ["readers of 4 nodes"] if warm else []
    assert order == ["launch", *readers, "driver-ready", "run", "stop"]


def test_auto_plans_for_the_nodes_that_the_drill_takes() -> None:
    """A plan for partitions that fail alone promised nothing about a killed node: no promise was kept or broken."""
    asked = DrillSettings("word-count", nodes=4, kill=1, plan="auto")
    assert front_door.plan_of_drill(asked) == hf.targets(survive=1)
    assert front_door.plan_of_drill(replace(asked, kill=2, freeze=1)) == hf.targets(survive=3)
    assert front_door.plan_of_drill(replace(asked, kill=4)) == hf.targets(survive=3), "one node has to be left"
    assert front_door.plan_of_drill(replace(asked, kill=0)) == "auto"
    assert front_door.plan_of_drill(replace(asked, plan="plan.json")) == "plan.json"
    assert front_door.plan_of_drill(replace(asked, plan=None)) is None
    wanted = replace(asked, recovery=("5:20", "1:60"), overhead=0.1)
    assert front_door.plan_of_drill(wanted) == hf.targets(recovery={5: 20, 1: 60}, overhead=0.1, survive=1)
    assert front_door.plan_of_drill(replace(wanted, kill=0)) == hf.targets(recovery={5: 20, 1: 60}, overhead=0.1)
    check_settings(wanted)
    with pytest.raises(BadInput, match="only the plan auto is made from targets"):
        check_settings(replace(wanted, plan="plan.json"))
    again = json.loads(json.dumps(wanted.document()))
    assert read_settings(again) == wanted
    assert "--recovery 5:20 --recovery 1:60 --overhead 0.1" in drill_command(again)


def promise(kept: bool | None, target: float | None = 10.0, measured: float = 12.0) -> Event:
    return Event(
        30.0,
        "promise",
        {
            "what": "recovery",
            "query": "counts[0]",
            "predicted": 9.0,
            "target": target,
            "measured": measured,
            "nodes_lost": 1,
            "covered": kept is not None,
            "kept": kept,
        },
    )


def test_a_promise_that_was_broken_fails_the_drill_and_one_that_was_not_tested_leaves_it_unknown() -> None:
    asked = DrillSettings("word-count", nodes=4, kill=1, plan="auto")
    targets = replace(asked, recovery=("1:10",))
    kept = check_promises(targets, [promise(True, measured=8.0)])
    assert kept == Check("promises", Verdict.OK, "1 promise kept")
    failed = check_promises(targets, [promise(True, measured=8.0), promise(False)])
    assert failed is not None
    assert failed.verdict == Verdict.FAILED
    assert failed.reason == ("1 of 2 promises broken: counts[0] was back after 12.0 s, predicted 9 s, target 10 s")
    unasked = check_promises(asked, [promise(False, target=None)])
    assert unasked is not None
    assert (unasked.verdict, "no target was asked for" in unasked.reason) == (Verdict.UNKNOWN, True)
    untested = check_promises(targets, [promise(None)])
    assert untested is not None
    assert (untested.verdict, "more nodes were lost at once" in untested.reason) == (Verdict.UNKNOWN, True)
    nobody_down = check_promises(targets, [])
    assert nobody_down is not None
    assert nobody_down.verdict == Verdict.UNKNOWN
    assert check_promises(asked, [promise(None)]) is None
    assert check_promises(asked, []) is None

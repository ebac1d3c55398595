"""A drill's stream begins when everything that its first batches meet is started: partitions, and readers."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as hf
from holdfast.drill import front_door
from holdfast.drill.driver import DriverJob
from holdfast.drill.settings import DrillSettings


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

"""The fold beside the simulator of recoveries: in the end the page shows what the driver's own state is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.dashboard.view import view_of
from holdfast.dashboard.view_model import RunModel
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast_lab.simulation.recovery import starting
from holdfast_lab.simulation.recovery.run import simulate_recovery

SEEDS = (3, 17, 42, 2005)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_page_follows_a_driver_through_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Coordinator, RunModel]] = []

    def recorded(*given: Any, emit: Any, **named: Any) -> Coordinator:
        model = RunModel()

        def take(seen: Observation) -> None:
            model.take(json.loads(json.dumps({"at": seen.at, "event": seen.kind, **seen.fields})))
            if seen.kind != "run":
                emit(seen)

        coordinator = Coordinator(*given, emit=take, **named)
        coordinator.describe(start=str(len(made)))
        made.append((coordinator, model))
        return coordinator

    monkeypatch.setattr(starting, "Coordinator", recorded)
    outcome = simulate_recovery(seed)
    assert outcome.violation is None
    assert all(model.skipped == 0 for _, model in made)
    assert sum(outcome.faults.values()) > 0
    coordinator, model = made[-1]  # those before were killed, perhaps before they could emit what they had decided
    state = coordinator.state
    view = view_of(model, model.last_at or 0.0)
    assert {p: (row["state"], row["node"]) for p, row in view["partitions"].items()} == {
        str(p): (str(one.state), None if one.node is None else str(one.node)) for p, one in state.partitions.items()
    }
    assert {one["query"] for one in view["parked"]} == {str(query) for query in state.parked}
    shown = {one["id"] for one in view["queries"] if one["state"] in ("down", "parked")}
    assert shown == {str(query) for query in state.graph.outputs if not state.available(query)}
    assert {one["name"] for one in view["nodes"] if one["state"] == "up"} >= {str(node) for node in state.nodes}

"""The simulator's constants come from a drill's history; a made-up one here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli.main import cli
from holdfast.drill.history import Event
from holdfast.drill.scenarios import find_scenario
from holdfast.errors import BadInput
from holdfast.simulation.times import TimeConstants, read_constants
from holdfast_lab.experiments.recovery.calibration import (
    checkpoint_age,
    constants_document,
    measure_constants,
    simulate_drill,
)

TOPOLOGY = find_scenario("chain").application().topology()
PARTITIONS = [str(p) for p in TOPOLOGY.partitions()]
RESULT: dict[str, Any] = {
    "fault_at": 20.0,
    "settings": {"strategy": "incremental", "capacity": 100.0, "algorithm": "best-density", "batch_seconds": 1.0},
}


def history(arrives: float = 35.0) -> list[Event]:
    """Two nodes with the partitions in turn; the first is killed at 20 and noticed at 20.5, a third comes later."""
    placement = {name: f"127.0.0.{2 + number % 2}-0" for number, name in enumerate(PARTITIONS)}
    lost = [name for name, node in placement.items() if node == "127.0.0.2-0"]
    return [
        Event(0.0, "node-started", {"node": "node-1", "host": "127.0.0.2"}),
        Event(0.1, "node-started", {"node": "node-2", "host": "127.0.0.3"}),
        Event(1.0, "planned", {"placement": placement}),
        Event(15.0, "checkpoint", {"batch": 9}),
        Event(20.0, "fault", {"what": "kill", "node": "node-1", "host": "127.0.0.2"}),
        Event(20.5, "node-lost", {"nodes": ["127.0.0.2-0"]}),
        *[
            Event(20.5, "state", {"partition": name, "node": "127.0.0.2-0", "before": "running", "after": "lost"})
            for name in lost
        ],
        Event(20.6, "planned", {"placement": dict.fromkeys(lost, "127.0.0.3-0")}),
        Event(20.7, "restoring", {"partition": lost[0], "node": "127.0.0.3-0"}),
        Event(21.0, "cycle", {"seconds": 0.4}),
        Event(22.1, "restored", {"partition": lost[0], "node": "127.0.0.3-0"}),
        Event(22.1, "cycle", {"seconds": 0.6}),
        Event(arrives, "node-arrived", {"nodes": ["127.0.0.4-0"]}),
    ]


def test_constants_are_what_the_history_says() -> None:
    found = measure_constants(RESULT, history())
    assert found.detect_seconds == pytest.approx(0.5)
    assert found.plan_seconds == pytest.approx(0.1)
    assert found.cycle_seconds == pytest.approx(0.5)
    assert found.restore_seconds == pytest.approx(1.4 - 0.5)
    assert found.checkpoint_age == 11
    assert checkpoint_age([], 20.0, 1.0) == 21, "nothing was saved: everything is replayed"
    with pytest.raises(BadInput, match="no failure, cycle or restore"):
        measure_constants(RESULT, history()[:4])


def test_a_drill_is_simulated_with_what_failed_and_when_nodes_came() -> None:
    constants = measure_constants(RESULT, history())
    soon = simulate_drill(RESULT, history(), TOPOLOGY, constants)
    assert soon is not None
    assert all(one.back is not None for one in soon.queries)
    assert max(one.back or 0 for one in soon.queries) < 10, "the survivor has room for all of them"
    most = max(float(TOPOLOGY.cost[half::2].sum()) for half in (0, 1))
    small = {**RESULT, "settings": {**RESULT["settings"], "capacity": 1.01 * most / 0.8}}
    late = [simulate_drill(small, history(at), TOPOLOGY, constants) for at in (35.0, 50.0)]
    assert late[0] is not None
    assert late[1] is not None
    assert soon.unavailability < late[0].unavailability < late[1].unavailability, "it waits for the node that comes"
    assert simulate_drill({**RESULT, "fault_at": None}, history(), TOPOLOGY, constants) is None
    streaming = {**RESULT, "settings": {**RESULT["settings"], "strategy": "structured-streaming"}}
    assert simulate_drill(streaming, history(), TOPOLOGY, constants) is None


def test_constants_are_read_as_they_were_written() -> None:
    constants = measure_constants(RESULT, history())
    assert read_constants(json.loads(json.dumps(constants_document(constants))), "f") == constants
    assert read_constants({}, "f") == TimeConstants()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "no JSON object"),
        ({"detect": 1}, "no constant 'detect'"),
        ({"cycle_seconds": -1}, "at least 0"),
        ({"cycle_seconds": "1"}, "at least 0"),
        ({"cycle_seconds": True}, "at least 0"),
    ],
)
def test_constants_that_cannot_be_are_refused(document: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_constants(document, "f")


def test_the_simulator_takes_measured_constants(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_text(json.dumps({"detect_seconds": 33.0}))
    arguments = ["simulate", "recovery", "--nodes", "10", "--strategy", "incremental", "--json"]
    arguments += ["--out", str(tmp_path), "--constants"]
    done = CliRunner().invoke(cli, [*arguments, str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["constants"]["detect_seconds"] == 33.0
    path.write_text("{")
    assert "is not JSON" in str(CliRunner().invoke(cli, [*arguments, str(path)]).exception)

"""Lines of `events.jsonl`: whoever follows them finds in those of this version what was in those of an earlier one.

`tests/data/events/MONTH.jsonl` has the lines of such a run as they were written then, and never changes. Events and
fields may come; those that are there keep their names and kinds of values.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from holdfast.ids import NodeId
from holdfast.runtime.coordinator.event_log import Observation, code_event, fetched_fields
from holdfast.runtime.fetches import CodeChosen, Fetched
from holdfast.runtime.in_process import InProcess
from holdfast.spark.event_file import EventFile
from runtime.test_layout import app, batches

GOLDEN = sorted((Path(__file__).parent.parent / "data" / "events").glob("*.jsonl"))


def write_events(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Write the events of a run that loses a node and partitions, and recovers."""
    file = EventFile(path)
    patch.setattr(InProcess, "_see", lambda run, seen: file.write(seen))
    run = InProcess(app(2), nodes=2, checkpoint_every=3)
    for number, batch in enumerate(batches(3, 10)):
        run.feed(batch)
        if number == 4:
            run.fail("totals[1]", "threes[0]")
            run.recover()
        if number == 7:
            run._backend.lose_nodes(NodeId("node-1"))
    run.close()
    run.checkpoint()
    file.close()


def test_a_restore_says_where_its_bytes_came_from_and_what_was_predicted() -> None:
    assert fetched_fields(None) == {}
    fields = fetched_fields(Fetched(10, 20, 30, 0.5, None).plus(Fetched(1, 2, 3, 0.25, 0.125)))
    assert fields == {
        "bytes_from_peers": 11,
        "bytes_from_folder": 22,
        "bytes_from_node": 33,
        "fetch_seconds": 0.75,
        "predicted_seconds": 0.125,
    }


def test_a_change_of_code_has_its_reason_and_its_predictions() -> None:
    choice = {
        "data": 10,
        "parity": 6,
        "reason": "no longer within the limits",
        "state_bytes": 1048576.0,
        "recovery_seconds": 0.0123,
        "success": 0.9995,
        "weights": (1.0, 0.2),
    }
    fields, line = code_event(CodeChosen(NodeId("n1"), choice, (10, 4)))
    assert (fields["before"], fields["code"], fields["weights"]) == ("10+4", "10+6", [1.0, 0.2])
    assert "before as 10+4" in line
    assert "0.0123 s" in line
    assert code_event(CodeChosen(NodeId("n1"), choice))[0]["before"] is None


def shapes(path: Path) -> dict[str, dict[str, set[str]]]:
    """Return the fields of every kind of event, each with the kinds of its values."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for line in path.read_text().splitlines():
        event = json.loads(line)
        for field, value in event.items():
            found[event["event"]][field].add(_kind(value))
    return found


def _kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_events_have_what_they_had(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_events(tmp_path / "events.jsonl", monkeypatch)
    before, now = shapes(golden), shapes(tmp_path / "events.jsonl")
    assert set(before) <= set(now)
    for kind, fields in before.items():
        for field, values in fields.items():
            assert now[kind][field] == values, (kind, field)


def test_there_are_lines_of_earlier_versions() -> None:
    assert GOLDEN
    kinds = {kind for path in GOLDEN for kind in shapes(path)}
    assert kinds >= {"cycle", "published", "checkpoint", "state", "planned", "node-lost", "epoch", "measures"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is full")
def test_an_event_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.symlink_to("/dev/full")
    file = EventFile(path)
    for number in range(3):
        file.write(Observation(float(number), "cycle", {"number": number}))
    assert file.left_out == 3
    path.unlink()
    file.write(Observation(9.0, "cycle", {"number": 9}))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["event"], one.get("count"), one.get("number")) for one in found] == [
        ("events-left-out", 3, None),
        ("cycle", None, 9),
    ]
    file.close()
    file.write(Observation(10.0, "cycle", {"number": 10}))
    assert len(path.read_text().splitlines()) == 2

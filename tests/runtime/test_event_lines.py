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

"""A real run in one process that loses its nodes: its event file, for whoever serves or reads it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.errors import CheckFailed
from holdfast.ids import NodeId
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.in_process import InProcess
from holdfast.spark.event_file import EventFile
from runtime.test_layout import app, batches

QUERIES = ("totals[0]", "totals[1]", "threes[0]", "threes[1]")


def run_and_lose_nodes(path: Path, *, target: float = 0.05, back: bool = False) -> None:
    """Run an application whose plan has recovery targets, and lose all its nodes; with `back`, let new ones come."""
    file = EventFile(path)
    last: list[float] = []

    def emit(seen: Observation) -> None:
        last[:] = [seen.at]
        file.write(seen)

    run = InProcess(app(2), nodes=2, checkpoint_every=3, emit=emit)
    predicted = [{"what": "recovery", "query": query, "predicted": 0.01, "target": target} for query in QUERIES]
    emit(Observation(last[0], "plan", {"predicted": predicted, "targets": {"survive": 1}}))
    given = batches(3, 8)
    for batch in given[:6]:
        run.feed(batch)
    run._backend.lose_nodes(NodeId("node-0"), NodeId("node-1"))
    with suppress(CheckFailed):  # no node comes
        run.run()
    if back:
        run._backend.add_nodes({NodeId("node-2"): float("inf")})
        for batch in given[6:]:
            run.feed(batch)
    file.close()

"""One query waits for a node while the others go on: what grows on disk meanwhile, and whether it comes back exact.

    python tools/wait_for_a_node.py --minutes 60 --rate 20

The coordinator, recovery machine, workers, stores, logs and sinks of a cluster in one process, on real files; the hour
is on a clock that the tool moves. A source feeds two queries, each partition on a node of its own. After some batches
the node of the less valuable query is lost and none takes its place; for so many minutes batches come at the rate, and
the other query processes, publishes and checkpoints. Then a node arrives, the query catches up, and every row of both
outputs is compared with what it must be. Prints, as a table or with --json: the bytes on disk of every kind, by minute.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src")]

import holdfast as hf  # noqa: E402
from holdfast.ids import NodeId, PartitionId  # noqa: E402
from holdfast.recovery.strategy import RecoverySettings  # noqa: E402
from holdfast.runtime.coordinator.coordinator import Coordinator  # noqa: E402
from holdfast.runtime.coordinator.event_log import Observation  # noqa: E402
from holdfast.runtime.coordinator.pacing import CycleSettings  # noqa: E402
from holdfast.runtime.coordinator.progress import Progress  # noqa: E402
from holdfast.runtime.in_process import LoopBackend  # noqa: E402
from holdfast.runtime.io.batch_log import BatchLog  # noqa: E402
from holdfast.runtime.io.parquet_sink import ParquetSink  # noqa: E402
from holdfast.runtime.io.sinks import MemorySink  # noqa: E402
from holdfast.runtime.program import Program  # noqa: E402
from holdfast.runtime.state.directory_store import DirectoryStore  # noqa: E402
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore  # noqa: E402
from holdfast.storage.files import FileStorage  # noqa: E402

WINDOW = 10
"""Rows of one word that give one row of an output."""
KINDS = ("log", "outboxes and states", "of the source", "of the live query", "snapshots", "progress")


def application() -> hf.Application:
    """One source, and two queries of it."""
    app = hf.Application("waiting")
    words = app.source("words", schema={"word": "string", "text": "string"}, cost=1.0)
    for name, priority in (("live", 5), ("waiting", 1)):
        words.key_by("word").window(hf.rows(WINDOW)).count(id=name, cost=1.0).output(priority=priority)
    return app


class Run:
    """A run in a directory, on nodes that have room for one partition each."""

    def __init__(self, directory: Path, checkpoint_batches: int, waiting_bytes: float = math.inf) -> None:
        self.directory, self.now = directory, 0.0
        self.program = Program(application())
        storage = FileStorage(directory / "run")
        progress = Progress(storage, self.program.name)
        self.log = BatchLog(self.program.sources, self.program.name, storage, claim=progress.claim)
        self.backend = LoopBackend(
            self.program,
            self.log,
            DurableSnapshotStore(storage.within("checkpoints")),
            lambda node: DirectoryStore(directory / "nodes" / node),
        )
        self.backend.add_nodes({NodeId(f"node-{number}"): 1.3 for number in range(3)})
        self.checkpoints: list[Observation] = []
        self.seen: list[dict[str, object]] = []
        self.coordinator = Coordinator(
            self.program,
            self.backend,
            self.log,
            {name: ParquetSink(directory / "out" / name) for name in ("live", "waiting")},  # type: ignore[misc]
            lambda operator, feed: MemorySink(),
            progress,
            recovery=RecoverySettings(waiting_bytes=waiting_bytes),
            pace=CycleSettings(checkpoint_batches=checkpoint_batches, time_budget=math.inf),
            clock=lambda: self.now,
            now=lambda: self.now,
            emit=self._see,
        )

    def _see(self, seen: Observation) -> None:
        if seen.kind == "checkpoint":
            self.checkpoints.append(seen)
        if seen.kind in ("kept-no-more", "regenerated", "rolled-back", "recovery-ended"):
            self.seen.append({"at": round(self.now, 1), "kind": seen.kind, **seen.fields})

    def feed(self, words: int, payload: int, seconds: float) -> None:
        """Log one batch, one row of each word, and process it as far as nodes allow."""
        self.now += seconds
        text = f"{self.log.frontier + 1:012d}".ljust(payload, ".")
        self.log.append({"words": pa.table({"word": [f"w{one}" for one in range(words)], "text": [text] * words})})
        self.settle()

    def settle(self) -> None:
        """Run cycles for as long as they bring anything."""
        self.coordinator.read_reports()
        standing: object = None
        while self.coordinator.status.can_work and standing != self.coordinator.status.standing:
            standing = self.coordinator.status.standing
            self.coordinator.step()
            self.coordinator.read_reports()

    def sizes(self) -> dict[str, int]:
        """Return the bytes on disk, by kind."""
        nodes = {node: _bytes(self.directory / "nodes" / node) for node in self.backend.nodes}
        place = self.coordinator.state.placement
        source, live = (place.get(PartitionId.parse(name)) for name in ("words[0]", "live[0]"))
        run = self.directory / "run"
        snapshots, progress = _bytes(run / "checkpoints"), _bytes(run / "progress")
        return {
            "log": _bytes(run) - snapshots - progress,
            "outboxes and states": sum(nodes.values()),
            "of the source": nodes.get(source, 0) if source else 0,
            "of the live query": nodes.get(live, 0) if live else 0,
            "snapshots": snapshots,
            "progress": progress,
        }


def _bytes(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) if folder.exists() else 0


def wait(given: argparse.Namespace, directory: Path) -> dict[str, object]:
    """Let a query wait; return what was seen."""
    began = time.monotonic()
    every = max(1, round(given.checkpoint_seconds * given.rate))
    run = Run(directory, every, given.waiting_kb * 1024)
    before, minute = 2 * every, round(60 * given.rate)
    for _ in range(before):
        run.feed(given.words, given.payload, 1 / given.rate)
    state = run.coordinator.state
    start = {"minute": 0, **run.sizes()}
    waiting = PartitionId.parse("waiting[0]")
    stood = state.checkpoints.line[waiting]
    run.backend.lose_nodes(run.coordinator.state.placement[waiting])
    run.settle()
    samples, many = [start], round(given.minutes * minute)
    for number in range(1, many + 1):
        run.feed(given.words, given.payload, 1 / given.rate)
        if number % max(1, round(minute * given.sample)) == 0 or number == many:
            samples.append({"minute": round(number / minute, 2), **run.sizes()})
    lines = {str(p): int(batch) for p, batch in state.checkpoints.line.items()}
    alone = [one for one in run.checkpoints if one.fields["without"]]
    kept = {str(p): int(one.kept_from) for p, one in state.partitions.items() if one.node is not None}
    run.backend.add_nodes({NodeId("late"): 1.3})
    run.coordinator.run()
    run.coordinator.checkpoint()
    run.coordinator.probe(trim_outboxes=True)
    after = {"minute": "after", **run.sizes()}
    batches = int(run.log.frontier) + 1
    problems = {
        name: problem for name in ("live", "waiting") if (problem := wrong(run.coordinator, name, batches, given.words))
    }
    return {
        "batches": batches,
        "checkpoint_batches": every,
        "checkpoints_without_the_waiting": len(alone),
        "waiting_from": int(stood),
        "lines_at_the_end_of_the_wait": lines,
        "kept_from_at_the_end_of_the_wait": kept,
        "events": run.seen,
        "samples": [*samples, after],
        "wrong": problems,
        "seconds": round(time.monotonic() - began, 1),
    }


def wrong(coordinator: Coordinator, name: str, batches: int, words: int) -> str | None:
    """Say what is wrong with an output: every word has come once in every batch."""
    rows = coordinator.outputs.rows(name).group_by("word").aggregate([("count", "sum"), ("count", "count")]).to_pylist()
    found = {row["word"]: (row["count_sum"], row["count_count"]) for row in rows}
    full = batches // WINDOW
    wanted = {f"w{one}": (WINDOW * full, full) for one in range(words)} if full else {}
    return None if found == wanted else f"{found} was published, {wanted} is right"


def main() -> None:
    """Wait, print, and say whether all is exact."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the query waits, on the simulated clock")
    parser.add_argument("--rate", type=float, default=20.0, help="batches per second")
    parser.add_argument("--words", type=int, default=4, help="rows of a batch")
    parser.add_argument("--payload", type=int, default=100, help="bytes of a row beside its key")
    parser.add_argument("--checkpoint-seconds", type=float, default=5.0)
    parser.add_argument("--sample", type=float, default=5.0, help="minutes between two samples")
    parser.add_argument(
        "--waiting-kb", type=float, default=math.inf, help="the bound of outboxes at which blocks are dropped"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = wait(given, Path(folder))
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{'minute':>8} " + " ".join(f"{kind:>20}" for kind in KINDS))
        for one in found["samples"]:  # type: ignore[attr-defined]
            print(f"{one['minute']:>8} " + " ".join(f"{one[kind]:>20,}" for kind in KINDS))
        print({name: value for name, value in found.items() if name != "samples"})
    sys.exit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()

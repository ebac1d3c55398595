"""What outboxes take on a node's disk while all is well: bytes written for each batch, and bytes kept, by policy.

One process, without a cluster: the partitions, the coordinator and the journals are those of nodes whose tasks stay, so
bytes are the same as there, and the same in every run. Nothing here is a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.application import Application
from holdfast.ids import NodeId
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.sinks import MemorySink
from holdfast.runtime.program import Program
from holdfast.runtime.state.journal_index import BLOCKS
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.state_files import Piece
from holdfast.runtime.state.store import Addition, VersionStore
from holdfast.runtime.state.versions import Commit

NEVER = 10**9


@dataclass(frozen=True, slots=True)
class OutboxBytes:
    """What one policy took."""

    policy: str
    batches: int
    rows: float
    """Bytes of the rows that partitions sent in a batch, as Arrow has them."""
    outbox: float
    """Bytes of outboxes written for a batch: these rows, with headers and schemas."""
    journal: float
    """All bytes that journals wrote for a batch: states, outboxes, records, and what was needed of old files again."""
    kept: int
    """The most that outboxes held after a batch."""
    files: int
    """The most that journal files had after a batch."""


class _Counting(JournalStore):
    """A journal that counts what it appends."""

    rows = outbox = appended = 0

    def commit(self, commit: Commit, added: Addition) -> Commit:
        self.rows += sum(block.nbytes for block in added.blocks)
        return super().commit(commit, added)

    def _write(self, record: Mapping[str, Any], body: Sequence[Sequence[Piece]] = ()) -> tuple[str, int]:
        if record.get("do") == "commit":
            self.outbox += sum(size for name, size in record["data"] if name.endswith(BLOCKS))
        return super()._write(record, body)

    def _put(self, frame: Sequence[Piece], length: int) -> None:
        super()._put(frame, length)
        self.appended += length


class _OnDisk(InProcess):
    """An application in this process whose nodes have journals."""

    def __init__(self, app: Application, folder: Path, **options: Any) -> None:
        self.stores: list[_Counting] = []
        self._folder = folder
        super().__init__(app, **options)

    def _store(self, node: NodeId) -> VersionStore:
        self.stores.append(_Counting(self._folder / node))
        return self.stores[-1]


def outbox_bytes(
    app: Application,
    batches: Iterable[Mapping[str, pa.Table]],
    folder: Path,
    policy: str,
    *,
    every: int,
    nodes: int,
) -> OutboxBytes:
    """Run batches under a policy of `overhead.POLICIES`, with a checkpoint every so many batches."""
    everything = frozenset(Program(app).partitions) if policy == "all" else frozenset()
    run = _OnDisk(
        app,
        folder / policy,
        nodes=nodes,
        checkpoint_every=NEVER if policy == "none" else every,
        recovery=RecoverySettings(backup_partitions=everything),
        sinks={name: MemorySink() for name in app.output_names().values()},
    )
    count = kept = files = 0
    for batch in batches:
        run.feed(batch)
        count += 1
        kept = max(kept, sum(one.kept_bytes() for one in run.stores))
        files = max(files, sum(one.file_bytes for one in run.stores))
    return OutboxBytes(
        policy,
        count,
        sum(one.rows for one in run.stores) / max(1, count),
        sum(one.outbox for one in run.stores) / max(1, count),
        sum(one.appended for one in run.stores) / max(1, count),
        kept,
        files,
    )

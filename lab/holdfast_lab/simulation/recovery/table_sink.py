"""Outputs of simulated runs in Delta tables, by the sinks of real runs over simulated tables. Runs anywhere.

Every driver has a sink of its own, as processes have; nodes write files where their sink looks for them. In some runs
the application is started with `every` and without it in turn, over one table: what a driver that gathers has left
staged is committed by the next. Tables that take tentative rows are rewritten by others meanwhile, as OPTIMIZE and
VACUUM do. What a table has is read from the files that its log names. Random numbers are its own.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.io.delta_files import DeltaFile, read_place
from holdfast.runtime.io.delta_sink import DeltaSink, DeltaStager
from holdfast.runtime.io.delta_types import delta_rows
from holdfast.runtime.io.gathered_delta import GatheredDeltaSink, GatheredDeltaStager, list_staged, waiting
from holdfast.runtime.io.gathered_files import rows_by_batch
from holdfast.runtime.io.gathered_reading import read_staged
from holdfast.runtime.io.parquet_names import STAGED, key_of
from holdfast.runtime.io.sinks import ORIGIN_COLUMNS, VERSION_COLUMNS, Output, OutputKey, StagedRows, with_version
from holdfast.storage.storage import Storage
from holdfast_lab.simulation.recovery.checks import Violation
from holdfast_lab.simulation.recovery.delta_table import LOG, OverSimulatedTable, Refused, SimulatedTable, look_at
from holdfast_lab.simulation.recovery.faults import Fault, Mischief
from holdfast_lab.simulation.recovery.scene import has_branches
from holdfast_lab.simulation.recovery.stores import Complain
from holdfast_lab.simulation.recovery.topic_sink import writes_to_targets

OPTIMIZES = 0.1
"""The chance at a commit that another writer rewrites the table before it."""
_START = r"hf-(?:driver|start-[0-9]+-[0-9]+)-"
_GATHERED = re.compile(
    _START + r"(.+)-([0-9]{5,})-([0-9]{10,})-([0-9]{10,})-g([0-9]+)-([0-9a-f]{16})\.parquet", re.ASCII
)
_SINGLE = re.compile(
    _START + r"run-(.+)-([0-9]{5,})-([0-9]{10,})-g([0-9]+)-q[0-9a-f]{16}-([rt])[0-9]+-[0-9]+\.parquet", re.ASCII
)


def writes_to_tables(seed: int) -> bool:
    """Whether outputs of a run are in Delta tables; those that take tentative rows where the run has any."""
    return writes_to_targets(seed) and seed % 3 == 0


def changes_every(seed: int) -> bool:
    """Whether drivers gather or not, each as it is drawn; gathered outputs cannot be tentative."""
    return writes_to_tables(seed) and not has_branches(seed) and seed % 2 == 0


class Tables:
    """The tables of a run, and what is known of their rows."""

    def __init__(self, seed: int, storage: Storage, mischief: Mischief, complain: Complain) -> None:
        """`storage`: where the outputs are, as it is."""
        self._seed, self._storage, self.mischief, self._complain = seed, storage, mischief, complain
        self.draw = random.Random(f"tables {seed}")
        self.tentative = has_branches(seed)
        self.numbers = count()
        self.given: dict[OutputKey, list[pa.Table]] = {}
        """What any driver or node has wanted to write, and it is final."""
        self.generation_of: Callable[[BatchId], int] = lambda batch: 0
        """Returns the layout of a batch."""
        self._known: dict[OperatorId, _Watched] = {}

    def gathers(self, start: int, name: OperatorId) -> bool:
        """Whether a driver gathers an output."""
        return changes_every(self._seed) and random.Random(f"{self._seed} every {start} {name}").random() < 0.5

    def note(self, key: OutputKey, rows: pa.Table) -> None:
        """Somebody wants to write final rows."""
        known = self.given.setdefault(replace(key, run=""), [])
        if not any(one.equals(rows) for one in known):
            known.append(rows)

    def folder(self, name: OperatorId) -> Storage:
        """Return a table's folder, as it is."""
        return self._storage.within(f"out/{name}")

    def look(self, names: Sequence[OperatorId]) -> None:
        """See what was committed since the last look."""
        for name in names:
            watched = self._known.setdefault(name, _Watched())
            if (problem := watched.look(self.folder(name))) is not None:
                self._complain(f"{name}: {problem}")

    def optimize(self, storage: Storage) -> None:
        """Perhaps another writer rewrites small files as one; those are removed from the folder then, or later."""
        if not self.tentative or not self.mischief.active or self.draw.random() >= OPTIMIZES:
            return
        table = look_at(storage)
        names = [] if table is None else sorted(table.files)
        if table is None or len(names) < 2:
            return
        some = self.draw.sample(names, self.draw.randint(2, len(names)))
        parts = [pq.read_table(pa.BufferReader(storage.read(one))) for one in some]
        file = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables(parts), file)
        new = f"part-{next(self.numbers):05d}.parquet"
        storage.create(new, file.getvalue())
        rows = sum(part.num_rows for part in parts)
        commit = {"versions": {}, "files": {new: rows}, "removed": some}
        storage.create(f"{LOG}{table.number + 1:020d}.json", json.dumps(commit).encode())
        if self.draw.random() < 0.5:
            storage.delete(some)
        self.mischief.injected[Fault.TABLE_REWRITTEN] += 1


@dataclass(slots=True)
class _Watched:
    """A table as it was at the last look."""

    table: SimulatedTable | None = None
    files: set[str] = field(default_factory=set)
    """All that were ever in it."""
    versions: dict[str, int] = field(default_factory=dict)
    added: set[tuple[PartitionId, BatchId]] = field(default_factory=set)
    """Final outputs that were added, as the names of files say."""

    def look(self, storage: Storage) -> str | None:
        """Look at each commit that is new."""
        number = -1 if self.table is None else self.table.number
        while number >= 0 and (data := storage.read(f"{LOG}{number + 1:020d}.json")) is not None:
            number += 1
            if (problem := self._take(json.loads(data.to_pybytes()), storage)) is not None:
                return f"commit {number}: {problem}"
        if self.table is None:
            self.table = _begun(storage)
            return None if self.table is None else self.look(storage)
        return None

    def _take(self, commit: Mapping[str, Any], storage: Storage) -> str | None:
        assert self.table is not None
        for name, version in commit["versions"].items():
            if version < self.versions.get(name, -1):
                return f"{name} goes back from {self.versions[name]} to {version}"
            self.versions[name] = version
        for name in commit.get("removed", ()):
            if name not in self.table.files:
                return f"{name} is removed, and the table does not have it"
        outputs = set()
        for name in commit["files"]:
            if name in self.files:
                return f"{name} is added again"
            if storage.read(name) is None:
                return f"{name} is added, and is not there"
            outputs |= set(_final_outputs(name))
        self.files.update(commit["files"])
        if outputs & self.added:
            query, batch = min(outputs & self.added)
            return f"{query}, batch {batch} is added again"
        self.added |= outputs
        self.table.take(commit)
        return None


def _begun(storage: Storage) -> SimulatedTable | None:
    return None if storage.read(f"{LOG}{0:020d}.json") is None else SimulatedTable(pa.schema([]), [])


def _final_outputs(file: str) -> Iterator[tuple[PartitionId, BatchId]]:
    """Yield the final outputs that a file has, as far as its name says: of gathered ones the first and the last."""
    if (found := _SINGLE.fullmatch(file)) is not None:
        if found[5] == "r":
            yield PartitionId(OperatorId(found[1]), int(found[2])), BatchId(int(found[3]))
    elif (found := _GATHERED.fullmatch(file)) is not None:
        for batch in {int(found[3]), int(found[4])}:
            yield PartitionId(OperatorId(found[1]), int(found[2])), BatchId(batch)


@dataclass(frozen=True, slots=True)
class _Stager(DeltaStager):
    """Writes files for a table's sink on a node."""

    tables: Tables | None = None
    storage: Storage | None = None

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        assert self.tables is not None
        if self.tables.mischief.strikes(Fault.STAGING_FAILED):
            return "OSError: No space left on device"
        self.tables.note(key, rows)
        return DeltaStager.stage(self, key, rows)

    def folder(self) -> Storage:
        """See DeltaStager."""
        assert self.storage is not None
        return self.storage


@dataclass(frozen=True, slots=True)
class _GatheredStager(GatheredDeltaStager):
    """Stages outputs for a sink that gathers, on a node."""

    tables: Tables | None = None
    storage: Storage | None = None

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        assert self.tables is not None
        if self.tables.mischief.strikes(Fault.STAGING_FAILED):
            return "OSError: No space left on device"
        self.tables.note(key, rows)
        return GatheredDeltaStager.stage(self, key, rows)

    def folder(self) -> Storage:
        """See GatheredDeltaStager."""
        assert self.storage is not None
        return self.storage


class _InRun(OverSimulatedTable):
    """What sinks that gather and those that do not have in common in a simulated run."""

    tables: Tables
    _name: OperatorId
    _on_nodes: Storage

    def within_run(self, tables: Tables, name: OperatorId, storage: Storage, on_nodes: Storage) -> None:
        """Belong to a run. `storage`: the table's folder as drivers see it; `on_nodes`: as nodes do."""
        self.tables, self._name, self._storage_of, self._on_nodes = tables, name, storage, on_nodes
        self._numbers = tables.numbers

    def _append(
        self,
        table: Any,
        added: Sequence[DeltaFile],
        versions: Mapping[str, int],
        removed: Mapping[str, int] | None = None,
    ) -> None:
        self.tables.optimize(self.tables.folder(self._name))
        try:
            super()._append(table, added, versions, removed)
        except Refused:
            self.tables.mischief.injected[Fault.COMMIT_REFUSED] += 1
            raise

    def outputs(self) -> dict[OutputKey, pa.Table]:
        """Return final rows as readers of everything get them: in the table, or waiting for their commit."""
        return {key: self._as_given(key, rows) for key, rows in self._parts(tentative=False).items()}

    def _as_given(self, key: OutputKey, rows: pa.Table) -> pa.Table:
        mine = sorted(map(str, rows.to_pylist()))
        known = self.tables.given.get(key, [])
        return next((one for one in known if sorted(map(str, delta_rows(one).to_pylist())) == mine), rows)

    def _parts(self, *, tentative: bool) -> dict[OutputKey, pa.Table]:
        storage = self.tables.folder(self._name)
        table = look_at(storage)
        parts: dict[OutputKey, list[pa.Table]] = {}
        for name in table.files if table is not None else ():
            data = storage.read(name)
            assert data is not None, "a file that the table names is there"
            for key, rows in self._rows_of(name, data, tentative=tentative):
                parts.setdefault(key, []).append(rows)
        for key, name in self.staged():
            parts.setdefault(key, []).append(read_staged(storage, name))
        return {key: pa.concat_tables(found).combine_chunks() for key, found in sorted(parts.items())}

    def _rows_of(self, name: str, data: pa.Buffer, *, tentative: bool) -> Iterator[tuple[OutputKey, pa.Table]]:
        if self.tables.tentative:
            rows = pq.read_table(pa.BufferReader(data))
            rows = rows.filter(pa.array([one == tentative for one in rows["tentative"].to_pylist()], pa.bool_()))
            queries, batches = (rows[column].to_pylist() for column in ORIGIN_COLUMNS)
            for query, batch in dict.fromkeys(zip(queries, batches, strict=True)):
                mask = [one == (query, batch) for one in zip(queries, batches, strict=True)]
                key = OutputKey(PartitionId.parse(query.partition("/")[2]), BatchId(batch))
                own = rows.filter(pa.array(mask, pa.bool_())).drop_columns([*VERSION_COLUMNS, *ORIGIN_COLUMNS])
                yield replace(key, generation=self.tables.generation_of(key.batch)), own
        elif (found := _SINGLE.fullmatch(name)) is not None:
            query = PartitionId(OperatorId(found[1]), int(found[2]))
            key = OutputKey(query, BatchId(int(found[3])), generation=int(found[4]))
            yield key, pq.read_table(pa.BufferReader(data))
        else:
            found = _GATHERED.fullmatch(name)
            assert found is not None, name
            query = PartitionId(OperatorId(found[1]), int(found[2]))
            for batch, rows in rows_by_batch(data, name):
                yield OutputKey(query, batch, generation=int(found[5])), rows

    def staged(self) -> list[tuple[OutputKey, str]]:
        """Return the outputs that wait for their commit, with the names of their staged copies."""
        storage = self.tables.folder(self._name)
        names = list_staged(storage)
        table = look_at(storage)
        left = waiting(storage, names, (lambda one: None) if table is None else table.transaction_version)
        return [(key, one) for one in left if (key := key_of(one.partition(STAGED)[2])) is not None]

    def versions(self) -> pa.Table:
        """Return what readers of all versions get."""
        shown = [with_version(rows, fidelity=None, revision=1) for rows in self.outputs().values()]
        shown += [with_version(rows, fidelity=0.5, revision=0) for rows in self._parts(tentative=True).values()]
        return pa.concat_tables(shown).combine_chunks() if shown else None


class SimulatedDeltaSink(_InRun):
    """The sink of one driver for a table, each batch in a commit."""

    def __init__(self, at_sink: Callable[[OutputKey], object], *, tentative: bool) -> None:
        """`at_sink` is called before anything is written: it may raise."""
        super().__init__("table", tentative=tentative)
        self._at_sink = at_sink
        self.before_tentative: Callable[[OutputKey, Epoch], None] = lambda key, epoch: None
        """Called before tentative rows are published."""

    def stager(self, start: str) -> _Stager:
        """See Sink."""
        DeltaSink.stager(self, start)
        return _Stager("", self._start, (), self.corrects, self.tables, self._on_nodes)

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink."""
        self.before_tentative(key, epoch)
        return super().publish_tentative(key, rows, fidelity, epoch)

    def _commit(self, outputs: Sequence[Output]) -> int:
        for one in outputs:
            if not one.tentative:
                self._at_sink(one.key)
                if one.rows is not None and not one.retracts:
                    self.tables.note(one.key, one.rows)
        return super()._commit(outputs)

    def _are_there(self, staged: StagedRows) -> bool:
        """Files that no commit names vanish with VACUUM."""
        mischief = self.tables.mischief
        names = [one.name for one in read_place(staged.place)[1]]
        table = look_at(self.tables.folder(self._name))
        if table is not None and not table.files.keys() & set(names) and mischief.strikes(Fault.STAGED_MISSING):
            self.tables.folder(self._name).delete(names)
        return super()._are_there(staged)


class SimulatedGatheredDeltaSink(_InRun, GatheredDeltaSink):
    """The sink of one driver for a table, many batches in a commit."""

    def __init__(self, every: float, file_mb: float) -> None:
        """See GatheredDeltaSink."""
        GatheredDeltaSink.__init__(self, "table", every, file_mb)

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self.tables.note(key, rows)
        return super().publish(key, rows, epoch)

    def stager(self, start: str) -> _GatheredStager:  # type: ignore[override]
        """See Sink."""
        DeltaSink.stager(self, start)
        return _GatheredStager("", self._start, (), self.tables, self._on_nodes)


TableSink: TypeAlias = SimulatedDeltaSink | SimulatedGatheredDeltaSink


def closing_commit_problems(
    name: OperatorId, sink: TableSink, is_given_up: Callable[[OperatorId, int], bool]
) -> Iterator[Violation]:
    """See that readers of a table get every row of a run that has ended; rows of what was given up may wait."""
    if mine := [key for key, _ in sink.staged() if not is_given_up(name, key.generation)]:
        yield Violation(f"{name}: {len(mine)} outputs are in no commit, and the run has ended: {min(mine)}")

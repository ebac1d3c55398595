"""A run with another layout: operators, keys or parallelism change over a restart. Runs on the driver.

The old layout comes to one batch at which everything is processed, every output is out and a durable checkpoint is
taken. An empty batch, the first of the new layout, fences the log: no earlier driver can log any more, and no node of
the old layout can read what comes after. The state of the checkpoint is spread over the new partitions, and one record
of progress lets the new layout, the next *generation*, begin there. A driver that dies on the way leaves the old
layout, and the next one does it again, or goes on with the old layout: batches then follow the fence (`BatchLog`).

Where parked queries hold the old layout back, and all of them are removed, it is run to its end without them, and a
line says what is lost of them (`giving_up`).

Operators that are added begin with empty state; those that are removed are forgotten; the others go on, and no query is
replayed for another. The generation is part of every output's key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, Checkpoints, SavedSnapshot, snapshot_name
from holdfast.runtime.coordinator.giving_up import given_up
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.identity import Changes, Description, Verdict, check_changes, compare, describe
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.batch_records import watermark_after
from holdfast.runtime.messages import OperatorFailed
from holdfast.runtime.program import Program
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.repartition import State, old_partitions, snapshot_of, whole_snapshot
from holdfast.runtime.state.snapshots import Snapshot, assemble, decode_snapshot, encode_snapshot
from holdfast.runtime.state.versions import Commit, VersionId
from holdfast.runtime.times import Watermark, lowest
from holdfast.runtime.worker.worker import SMALL_SNAPSHOT
from holdfast.storage.storage import Storage


class SnapshotLost(CheckFailed):
    """A snapshot of the old layout's durable checkpoint is gone or damaged."""


_ALL: frozenset[OperatorId] = frozenset()
"""No operators: nothing is left out."""


class RunOld(Protocol):
    """Runs the old layout until everything is processed and out, and takes a durable checkpoint."""

    def __call__(self, *, anew: bool, without: frozenset[OperatorId] = _ALL) -> object:
        """Run it. `anew`: its checkpoint cannot be read; log an empty batch first, so that another is taken.

        `without`: operators that are given up. Where queries are parked at the end, that is an `OperatorFailed`.
        """


def changes_of(storage: Storage, program: Program) -> Changes | None:
    """Compare a program with what the run in this storage is; None: it begins. What may not change is refused."""
    last = last_driver(storage)
    if last is None or last["identity"] is None:
        return None
    changes = compare(last["identity"], describe(program))
    check_changes(changes, where=storage.url)
    return changes


def check_layout(progress: Progress, program: Program, *, where: str, without: frozenset[OperatorId] = _ALL) -> None:
    """Refuse a run whose layout another start has changed since this one compared it, before it had the claim.

    `without`: operators that this start gives up.
    """
    if progress.identity is not None:
        changes = compare(progress.identity, describe(program))
        check_changes(changes, where=where)
        if any(
            one.layout and not (one.verdict is Verdict.REMOVED and one.operator in without) for one in changes.operators
        ):
            raise changed_meanwhile(where)


def changed_meanwhile(where: str) -> CheckFailed:
    """Say that two starts came at once, and that the other one changes the run."""
    return CheckFailed(
        "another start has changed the layout of this run meanwhile",
        where=where,
        remedy="start again: the application is then compared with what the run is now",
    )


def change_layout(
    storage: Storage,
    durable: Storage,
    program: Program,
    *,
    run_old: RunOld,
    driver: Mapping[str, Any] | None = None,
    application: bytes | None = None,
    log: Callable[[str], object] = lambda line: None,
) -> None:
    """Let a run go on with another program, which `compare` has found to be compatible.

    `application` is what the next change would run as the old layout: it is kept before the run has this layout, for
    this driver may die then. Where a snapshot of the checkpoint is gone or damaged, the old layout recovers it, from
    peers or from the checkpoint before, and takes another checkpoint. What is given up for it goes to `log`.
    """

    def settle(*, anew: bool) -> None:
        """Run the old layout to its end; without what is parked in it, once that fails again and is removed."""
        try:
            run_old(anew=anew)
        except OperatorFailed:
            at = last_driver(storage)
            found = None if at is None else given_up(at["identity"], describe(program), at["machine"])
            if found is None:
                raise
            for line in found.lines:
                log(line)
            run_old(anew=anew, without=found.operators)

    tries = 3
    while True:
        last = last_driver(storage)
        if last is None:  # all records that were there when a slow listing began are dropped: others write new ones
            raise changed_meanwhile(storage.url)
        before = BatchLog(program.sources, program.name, storage, generation=last["generation"])
        if not _settled(last["machine"], before.frontier):
            tries -= 1
            if tries < 0:
                raise CheckFailed(
                    "the old layout does not come to a checkpoint of everything that is logged",
                    where=storage.url,
                    remedy="start the application as it was before, stop it, then change it",
                )
            settle(anew=False)
            continue
        progress = Progress(storage, program.name, driver=driver)
        batches = BatchLog(program.sources, program.name, storage, claim=progress.claim, generation=progress.generation)
        # Another driver may have gone on since; and one may have logged a batch before the fence.
        assert progress.identity is not None
        check_changes(compare(progress.identity, describe(program)), where=storage.url)
        sources = [OperatorId(n) for n, one in progress.identity["operators"].items() if one["kind"] == "source"]
        if _settled(progress.machine, batches.frontier) and batches.fence(sources):
            try:
                machine = moved_state(progress, progress.identity, program, batches, DurableSnapshotStore(durable))
                break
            except SnapshotLost:
                tries -= 1
                if tries < 0:
                    raise
                progress.end()
                settle(anew=True)
                continue
        progress.end()
    kept = (
        None if application is None else keep_application(storage, application, progress.generation + 1, progress.claim)
    )
    progress.change(progress.generation + 1, describe(program), machine, kept)
    progress.end()


def keep_application(storage: Storage, application: bytes, generation: int, claim: int) -> str:
    """Keep an application with the run, for a change of layout; return the name under which it is."""
    name = f"applications/{generation:06d}-{claim:08d}"
    storage.create(name, application)
    return name


def _settled(machine: Mapping[str, Any] | None, frontier: BatchId) -> bool:
    """Whether everything that is logged is in a durable checkpoint, and out."""
    if machine is None:
        return frontier == NOTHING
    checkpoints, published = machine["checkpoints"], machine["published"]
    return bool(checkpoints["durable"] == checkpoints["global"] == frontier) and all(
        batch >= frontier for batch in published.values()
    )


def moved_state(
    progress: Progress, before: Description, program: Program, log: BatchLog, store: DurableSnapshotStore
) -> dict[str, Any] | None:
    """Spread the state of the last checkpoint over the partitions of a program; return where its machine begins."""
    if progress.machine is None:
        return None
    operators: Mapping[str, Any] = before["operators"]
    asked = {
        "requests": progress.machine.get("requests", -1),
        "tentative_choices": _choices(progress.machine.get("tentative_choices", {}), operators, program),
    }
    if log.frontier == NOTHING:
        return _begins(Checkpoints(program.partitions), program, NOTHING) | asked
    batch, epoch = log.frontier, Epoch.of(progress.claim, 0)
    there = [PartitionId(OperatorId(name), index) for name in operators for index in range(_count(operators, name))]
    old = Checkpoints.read(there, progress.machine["checkpoints"])
    changes = compare(before, describe(program))
    moving = _Moving(progress.run, old, batch, store)
    found: dict[PartitionId, SavedSnapshot] = {}
    marks: dict[OperatorId, Watermark] = {}
    for name in program.order:
        operator = program.operators[name]
        added = changes.verdict(name) is Verdict.ADDED
        count = 0 if added else _count(operators, name)
        if added and name not in program.sources:
            marks[name] = lowest([marks[route.edge.source] for route in operator.inputs])
        elif added:
            marks[name] = watermark_after(program.sources[name], None, None, last=False)
        else:
            marks[name] = lowest([moving.commit(PartitionId(name, index)).watermark for index in range(count)])
        for index in range(operator.parallelism):
            partition = PartitionId(name, index)
            same = old.at(partition, batch) if count == operator.parallelism else None
            if same is not None and same.durable and (same.follows, same.outbox_from) == (None, None):
                found[partition] = same
                continue
            if added:
                snapshot = Snapshot(Commit(partition, VersionId(batch, epoch), None, marks[name], {}), None, {})
            elif count == operator.parallelism:
                # Nothing is cut: a state without a key goes on too. What its snapshot holds of outputs is out.
                snapshot = whole_snapshot(*moving.state(partition), epoch)
            else:
                state = operators[name]["state"]
                keys = [] if state is None else state["keys"]
                needed = old_partitions(index, operator.parallelism, count)
                olds = {
                    one: moving.state(old) if one in needed else (moving.commit(old), {})
                    for one in range(count)
                    for old in [PartitionId(name, one)]
                }
                snapshot = snapshot_of(partition, operator.parallelism, olds, count, keys, epoch)
            found[partition] = moving.save(partition, snapshot, (progress.claim, 0))
    return _begins(Checkpoints.at_batch(found, batch), program, batch) | asked


def _begins(checkpoints: Checkpoints, program: Program, batch: BatchId) -> dict[str, Any]:
    """Return what a machine begins with that has everything up to a batch behind it."""
    return {
        "checkpoints": checkpoints.written(),
        "placement": {},
        "buffering": False,
        "published": {str(p): batch for p in program.outputs},
    }


def _choices(chosen: Mapping[str, Any], operators: Mapping[str, Any], program: Program) -> dict[str, Any]:
    """Return what people have chosen about tentative outputs, for the queries of a program.

    A query that was not there before has the choice of the others of its output, where that is one for all of them.
    """
    queries: Mapping[str, bool] = chosen.get("queries", {})
    found: dict[str, bool] = {}
    for query in program.outputs:
        name = str(query.operator)
        count = _count(operators, name) if name in operators else 0
        of_all = {queries.get(str(PartitionId(query.operator, index))) for index in range(count)}
        choice = queries.get(str(query)) if query.index < count or len(of_all) != 1 else of_all.pop()
        if choice is not None:
            found[str(query)] = choice
    return {"requests": chosen.get("requests", -1), "queries": found}


def _count(operators: Mapping[str, Any], name: str) -> int:
    return int(operators[name]["parallelism"])


class _Moving:
    """Reads the old partitions' snapshots, and writes those of new ones."""

    def __init__(self, run: str, old: Checkpoints, batch: BatchId, store: DurableSnapshotStore) -> None:
        self._run, self._old, self._batch, self._store = run, old, batch, store
        self._commits: dict[PartitionId, Commit] = {}

    def commit(self, partition: PartitionId) -> Commit:
        """Return what an old partition had committed."""
        if partition not in self._commits:
            self.state(partition)
        return self._commits[partition]

    def state(self, partition: PartitionId) -> tuple[Commit, State]:
        """Return the state of an old partition."""
        snapshot = self._old.at(partition, self._batch)
        if snapshot is None:
            raise CheckFailed(
                f"{partition} has no snapshot at batch {self._batch}",
                where="changing the layout",
                remedy="this is a fault of ours: report it",
            )
        chain = [self._read(partition, one) for one in self._old.chain(partition, snapshot)]
        self._commits[partition] = chain[-1].commit
        return chain[-1].commit, assemble(chain)

    def _read(self, partition: PartitionId, snapshot: SavedSnapshot) -> Snapshot:
        name = snapshot_name(self._run, partition, snapshot)
        data = snapshot.contents if snapshot.contents is not None else self._store.fetched(name)
        if data is None:
            raise SnapshotLost(
                "is not there any more", where=name, remedy="start the application as it was: it recovers it"
            )
        try:
            return decode_snapshot(data)
        except CheckFailed as error:
            raise SnapshotLost(
                error.what, where=name, remedy="start the application as it was: it recovers it"
            ) from None

    def save(self, partition: PartitionId, snapshot: Snapshot, saved: tuple[int, int]) -> SavedSnapshot:
        """Keep the snapshot of a new partition."""
        data, version = encode_snapshot(snapshot), snapshot.commit.id
        small = bytes(data) if len(data) <= SMALL_SNAPSHOT else None
        kept = SavedSnapshot(version.batch, version.epoch, None, None, durable=True, saved=saved, contents=small)
        if small is None:
            self._store.save(snapshot_name(self._run, partition, kept), data, epoch=version.epoch, durable=True)
        return kept

"""Sinks: where the rows of an output partition's batch go, under the key of the output. Runs anywhere.

| sink | how often a batch arrives |
|---|---|
| MemorySink, ConsoleSink | once (a console, within one process) |
| ParquetSink (`parquet_sink`) | once: each output is one object, created only if it is not there |
| GatheredParquetSink (`gathered_parquet`) | once: each output is staged so, and then in one file with others |
| DeltaSink (`delta_sink`) | once: the table's log holds how far each query is, in the commit with its rows |
| GatheredDeltaSink (`gathered_delta`) | once: each output is staged, and then committed so with others |
| KafkaSink (`kafka_sink`) | once for readers of committed records: a transaction holds how far each query is |
| TransactionalSink | once, where `write` stores the key together with the rows |
| FunctionSink (any function) | at least once: the key tells the function when it has seen a batch |

A later revision of a batch replaces an earlier one. Sinks of one process and sinks of functions refuse a driver whose
claim is over. ParquetSink need not: such a driver can only create what the one after it would create.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.state.store import StaleEpoch


@dataclass(frozen=True, slots=True, order=True)
class OutputKey:
    """Which output: of which query (output partition), batch and revision, in which layout of the run."""

    query: PartitionId
    batch: BatchId
    revision: int = 0
    generation: int = 0
    """The number of the run's layout: under another one, a partition has other rows."""
    run: str = field(default="", compare=False)
    """Whose output it is: in a table that several runs write to, the batches of one must not pass for another's."""

    def __str__(self) -> str:
        """Return a text that no other output has, of this run or of another."""
        run = f"{self.run}: " if self.run else ""
        layout = f", generation {self.generation}" if self.generation else ""
        return f"{run}{self.query}, batch {self.batch}, revision {self.revision}{layout}"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of an output that a node has written for its sink: where, and how many."""

    place: str
    rows: int


@dataclass(frozen=True, slots=True)
class Output:
    """What a sink is given: an output's rows, or what a node has staged of it; neither: a batch without rows."""

    key: OutputKey
    rows: pa.Table | None = None
    staged: StagedRows | None = None
    fidelity: float | None = None
    """Of tentative rows, as predicted; None: the output is final."""
    retracts: bool = False
    """Whether it is final, has no rows (`rows` is a table without), and tentative ones may be out."""

    @property
    def tentative(self) -> bool:
        """Whether final rows will replace it."""
        return self.fidelity is not None


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a sink that gathers outputs may publish."""

    published: Mapping[PartitionId, BatchId]
    """The last batch of each query that is out: all before it are out, too."""
    generation: int
    """The number of the run's layout; outputs of earlier ones are all out."""
    now: float
    """The time by the clock of `Sink.due`; infinite where the run ends."""


class Stager(Protocol):
    """The part of a sink that runs on nodes: it writes rows there, so that they need not pass through the driver.

    It is sent to the nodes as it is, so it holds plain values only.
    """

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """Write an output's rows where its sink will look for them; or say why that cannot be done from this node.

        It is called again for an output whose driver has not taken the report, and by nodes whose driver is over. It
        may publish the rows: they are the same every time.
        """
        ...


class Sink(Protocol):
    """Takes outputs to the outside. It is called on the driver: outputs come from a thread of its own, one by one.

    Only `publish` is asked of a sink: as a base class this brings the rest, and `complete` gives it to a sink of the
    user's that has no such base.
    """

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """Take a batch's rows; say whether they are new (False: this output was here already)."""
        ...

    most_partitions: int | None = None
    """Partitions that an output of it may have; None: any number."""

    def begin(self, run: str, epoch: Epoch) -> None:
        """Belong to a run, under a claim; refuse another run's, and a claim that is over.

        Called before anything is published. For sinks that outlive their process.
        """
        return

    # -- tentative outputs ---------------------------------------------------------------------------------------------

    corrects: bool = False
    """Whether it takes tentative outputs, and lets the final ones replace them."""

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """Take a batch's tentative rows, with their predicted fidelity; say whether they are new.

        The final rows of the same query and batch come later, by `publish`, and replace them; where these are here
        already, the tentative ones do not count. Of two tentative versions of a batch the first counts, or the last.
        """
        raise _cannot_correct(self)

    def retract(self, key: OutputKey, none: pa.Table, epoch: Epoch) -> None:
        """The final version of a batch of which tentative rows may be here has no rows: `none` is a table without."""
        raise _cannot_correct(self)

    # -- many at a time ------------------------------------------------------------------------------------------------

    grouped: bool = False
    """Whether it takes many outputs in one step (`publish_all`), because each step costs it much."""

    def publish_all(self, outputs: Sequence[Output], epoch: Epoch) -> Sequence[OutputKey]:
        """Take final outputs, those of each query in order; return which are out: of each query the first so many.

        Where it raises, some may be out all the same: they come again.
        """
        for one in outputs:
            if one.staged is not None:
                self.adopt(one.key, one.staged, epoch)
            elif one.rows is not None and one.retracts:
                self.retract(one.key, one.rows, epoch)
            elif one.rows is not None:
                self.publish(one.key, one.rows, epoch)
        return [one.key for one in outputs]

    # -- outputs that are gathered -------------------------------------------------------------------------------------

    gathers: bool = False
    """Whether it keeps outputs that are out aside, durably, and publishes many of them together (`flush`)."""

    def due(self, now: float) -> bool:
        """Whether it has outputs to publish now, by any clock that goes on; infinite: whatever waits.

        Called by the coordinator, also beside a call.
        """
        return False

    def flush(self, known: Gathered, epoch: Epoch) -> None:
        """Publish what is due, or a part: it is called again while more is, and outputs go in between.

        Where it raises, some of it may be published all the same.
        """
        return

    on_nodes: bool = False
    """Whether it is called on nodes, where the rows are, each query on its own; else on the driver."""

    # -- rows that nodes write themselves ------------------------------------------------------------------------------

    def stager(self, start: str) -> Stager | None:
        """Return what nodes write with during this start of a driver; None: rows pass through the driver.

        It is asked before `begin`, and must not write anything yet. Where it gives None the rest is not called.
        """
        return None

    def adopt(self, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
        """As `publish`, of rows that a node has staged; FileNotFoundError where they are gone."""
        raise FileNotFoundError(staged.place)

    def sweep_staged(self) -> None:
        """Remove what earlier drivers and their nodes have left and nothing needs; those drivers must be over."""
        return

    def end_staging(self) -> None:
        """Remove what was made for staging under this driver: no more will come."""
        return


_MAY_LACK = (
    *("most_partitions", "begin", "corrects", "publish_tentative", "retract"),
    *("gathers", "due", "flush"),
    *("grouped", "publish_all", "on_nodes", "stager", "adopt", "sweep_staged", "end_staging"),
)


def _cannot_correct(sink: object) -> BadInput:
    return BadInput(f"{type(sink).__name__} cannot correct tentative outputs", remedy="choose a sink that can")


@runtime_checkable
class KeepsRows(Protocol):
    """What a sink is as well from which all rows that it was given can be had again."""

    def rows(self) -> pa.Table | None:
        """Return all rows; None where there are none."""


@runtime_checkable
class CountsRows(Protocol):
    """What a sink is as well that knows how many rows it has without reading them."""

    def count(self) -> int:
        """Return how many rows there are."""


@runtime_checkable
class Expires(Protocol):
    """What a sink is as well that can delete old outputs."""

    def expire(self, through: BatchId, most: int) -> int:
        """Delete outputs of batches up to one, which no recovery makes again; so many at most. Returns how many."""


_MAY_HAVE = ("kept_in", "rows", "count", "expire")
"""What some sinks have beside it; `kept_in()` returns the storage that they write to."""


class _Completed(Sink):
    """A sink that has no more than it needs, with the rest of the protocol."""

    def __init__(self, given: Any) -> None:
        self._given = given
        for name in (*_MAY_LACK, *_MAY_HAVE):
            if hasattr(given, name):
                setattr(self, name, getattr(given, name))

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        return bool(self._given.publish(key, rows, epoch))


def complete(given: Any) -> Sink:
    """Return a sink with the whole protocol, whatever its class has of it; refuse one whose parts contradict."""
    whole: Sink = given if all(hasattr(given, name) for name in _MAY_LACK) else _Completed(given)
    if whole.grouped and whole.gathers:
        raise BadInput(
            f"{type(given).__name__} is `grouped` and `gathers`, and outputs taken together are never gathered",
            remedy="leave one of the two False: `publish_all` for steps that cost much, `flush` for outputs put aside",
        )
    return whole


class _Fence:
    """The highest claim a sink has seen."""

    def __init__(self) -> None:
        self._claim = 0

    def check(self, key: OutputKey, epoch: Epoch) -> None:
        if epoch.claim < self._claim:
            raise StaleEpoch(
                f"claim {epoch.claim} is over: the sink has seen claim {self._claim}",
                where=str(key),
                remedy="nothing was written; another driver runs this application: end this one",
            )
        self._claim = epoch.claim


VERSION_COLUMNS = ("tentative", "fidelity", "revision")
"""The columns that rows have beside their own where tentative ones are among them."""
ORIGIN_COLUMNS = ("holdfast_query", "holdfast_batch")
"""The columns that rows of a Delta table with tentative ones have, too: of which run and query, and which batch."""
FINAL = 1
"""The revision of a final version that replaces a tentative one, which has revision 0."""


def with_version(rows: pa.Table, *, fidelity: float | None, revision: int) -> pa.Table:
    """Return rows with the columns that say which version they are; without a fidelity they are final."""
    many = rows.num_rows
    given = {
        "tentative": pa.repeat(pa.scalar(fidelity is not None, pa.bool_()), many),
        "fidelity": pa.repeat(pa.scalar(1.0 if fidelity is None else fidelity, pa.float64()), many),
        "revision": pa.repeat(pa.scalar(revision, pa.int32()), many),
    }
    for name, column in given.items():
        rows = rows.append_column(name, column)
    return rows


class MemorySink(Sink):
    """Keeps outputs in memory, for tests and a first try."""

    corrects = True

    def __init__(self) -> None:
        self._held: dict[OutputKey, pa.Table] = {}
        self._tentative: dict[OutputKey, tuple[pa.Table, float]] = {}
        self._empty: set[OutputKey] = set()
        """Outputs without rows of which there were tentative ones."""
        self._fence = _Fence()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self._fence.check(key, epoch)
        if key in self._held:
            return False
        self._held[key] = rows
        return True

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink."""
        self._fence.check(key, epoch)
        if key in self._held or key in self._empty or key in self._tentative:
            return False
        self._tentative[key] = (rows, fidelity)
        return True

    def retract(self, key: OutputKey, none: pa.Table, epoch: Epoch) -> None:
        """See Sink."""
        self._fence.check(key, epoch)
        self._empty.add(key)

    def versions(self) -> pa.Table | None:
        """Return all rows, of each batch the final ones, else the tentative ones, with the columns that say which."""
        shown = {
            key: with_version(rows, fidelity=None, revision=FINAL if key in self._tentative else key.revision)
            for key, rows in self.outputs().items()
        }
        for key, (rows, fidelity) in self._tentative.items():
            if key not in self._empty:
                shown.setdefault(key, with_version(rows, fidelity=fidelity, revision=0))
        ordered = sorted(shown, key=lambda key: (key.batch, key.query, key.generation))
        return pa.concat_tables([shown[key] for key in ordered]).combine_chunks() if ordered else None

    def outputs(self) -> dict[OutputKey, pa.Table]:
        """Return the newest revision of every output, in the order of query and batch."""
        newest: dict[tuple[PartitionId, BatchId, int], OutputKey] = {}
        for key in sorted(self._held):
            newest[key.query, key.batch, key.generation] = key
        return {key: self._held[key] for key in newest.values()}

    def rows(self) -> pa.Table | None:
        """Return all rows, by batch and then by partition; None where there are none."""
        found = self.outputs()
        ordered = sorted(found, key=lambda key: (key.batch, key.query, key.generation))
        return pa.concat_tables([found[key] for key in ordered]).combine_chunks() if ordered else None


class ConsoleSink(Sink):
    """Writes outputs as text, for people."""

    def __init__(self, write: Callable[[str], object], most_rows: int = 20) -> None:
        """Take what writes a line (`print`, say), and how many rows of a batch are shown."""
        self._write, self._most = write, most_rows
        self._seen: set[OutputKey] = set()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        if key in self._seen:
            return False
        self._write(f"{replace(key, run='')}: {rows.num_rows} rows")
        for row in rows.slice(0, self._most).to_pylist():
            self._write("  " + "  ".join(f"{name}={value}" for name, value in row.items()))
        if rows.num_rows > self._most:
            self._write(f"  and {rows.num_rows - self._most} more")
        self._seen.add(key)
        return True


class TransactionalSink(Sink):
    """Two functions of yours: does this output exist already, and write it with its key in one transaction."""

    def __init__(self, exists: Callable[[OutputKey], bool], write: Callable[[pa.Table, OutputKey], object]) -> None:
        self._exists, self._write = exists, write
        self._fence = _Fence()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self._fence.check(key, epoch)
        if self._exists(key):
            return False
        try:
            self._write(rows, key)
        except Exception:
            # An earlier driver that is over may have written the same rows since, or the answer was lost.
            if self._exists(key):
                return False
            raise
        return True


class KeptOnNode:
    """A stager that writes nothing: rows stay where they were made, until the function is called there."""

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        return StagedRows("", rows.num_rows)


class FunctionSink(Sink):
    """A plain function of rows and key. It is called at least once for every output: again after a failure.

    With a second function for tentative rows, these come under revision 0 and final ones under revision 1: of a query
    and batch the highest revision counts, also where it has no rows. On nodes it is called where the rows are; rows
    that only the driver has (tentative ones, and those that waited for a checkpoint) are sent there.
    """

    def __init__(
        self,
        function: Callable[[Any, OutputKey], object],
        tentative: Callable[[Any, OutputKey, float], object] | None = None,
        *,
        on_nodes: bool = False,
        pandas: bool = False,
    ) -> None:
        """`tentative` takes rows, key and predicted fidelity; without it the sink cannot correct.

        `on_nodes`: it is sent to the nodes and called there, where their tasks stay. `pandas`: rows come as a
        pandas.DataFrame, else as a pyarrow.Table.
        """
        self._function, self._tentative, self._pandas = function, tentative, pandas
        self.on_nodes, self.corrects = on_nodes, tentative is not None
        self._fence = _Fence()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self._fence.check(key, epoch)
        self._function(self._formed(rows), replace(key, revision=FINAL) if self.corrects else key)
        return True

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink."""
        self._fence.check(key, epoch)
        if self._tentative is None:
            raise _cannot_correct(self)
        self._tentative(self._formed(rows), key, fidelity)
        return True

    def retract(self, key: OutputKey, none: pa.Table, epoch: Epoch) -> None:
        """See Sink: the function gets a table without rows."""
        self.publish(key, none, epoch)

    def stager(self, start: str) -> KeptOnNode | None:
        """See Sink."""
        return KeptOnNode() if self.on_nodes else None

    def _formed(self, rows: pa.Table) -> Any:
        return rows.to_pandas() if self._pandas else rows

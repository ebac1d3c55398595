"""Outputs of simulated runs in topics, by the Kafka sink of real runs over simulated brokers. Runs anywhere.

Every driver has a sink of its own, as processes have. Each record says whose it is in a header that readers of real
topics do not get: so outputs can be compared row for row. Random numbers are the brokers' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.kafka_sink import KafkaSink, read_committed
from holdfast.runtime.io.sinks import FINAL, Output, OutputKey, with_version
from holdfast_lab.simulation.recovery.broker import Brokers, Record, Transaction
from holdfast_lab.simulation.recovery.checks import Violation
from holdfast_lab.simulation.recovery.stores import Complain

NOT_AWAITED = 0.05
"""The chance that an attempt takes too long, and is left to itself."""
HEADER = "simulated"
"""The header with the output that a record is of."""


def writes_to_targets(seed: int) -> bool:
    """Whether outputs of a run are in topics or Delta tables; seeds that are known by what they found are not these."""
    return seed >= 2100 and seed % 19 in (5, 11, 13)


def writes_to_topics(seed: int) -> bool:
    """Whether outputs of a run are records of topics."""
    return writes_to_targets(seed) and seed % 3 == 2


class Topics:
    """The topics of a run, with what is known of their outputs; the drivers' sinks write to them."""

    def __init__(self, brokers: Brokers, complain: Complain) -> None:
        self.brokers, self._complain = brokers, complain
        brokers.committed = self._committed
        self.given: dict[tuple[OutputKey, bool], list[pa.Table]] = {}
        """What any driver has wanted to write, by output and whether it is tentative."""
        self._there: set[tuple[OutputKey, bool]] = set()
        self._claims: dict[str, int] = {}
        self._last: dict[PartitionId, BatchId] = {}

    def _committed(self, transaction: Transaction) -> None:
        """See that a transaction has no output that is there, none out of order, and follows those of older drivers."""
        for place in transaction.offsets.values():
            claim = read_committed(place.metadata).claim
            if claim < self._claims.get(transaction.name, -1):
                self._complain(f"claim {claim} has committed after {self._claims[transaction.name]}")
            self._claims[transaction.name] = claim
        found = dict.fromkeys(one.headers[HEADER] for one in transaction.records)
        for key, tentative in found:
            if (key, tentative) in self._there:
                self._complain(f"{key} was committed twice")
            if not tentative and key.batch <= self._last.get(key.query, BatchId(-1)):
                self._complain(f"{key} was committed after batch {self._last[key.query]}")
            if not tentative:
                self._last[key.query] = key.batch
        self._there.update(found)

    def read(self, topic: str) -> dict[tuple[OutputKey, bool], list[Record]]:
        """Return what readers of committed records get once transactions that were left open have timed out."""
        found: dict[tuple[OutputKey, bool], list[Record]] = {}
        for one in self.brokers.read_committed(topic, after=READ_AFTER):
            found.setdefault(one.headers[HEADER], []).append(one)
        return found


READ_AFTER = 60.0
"""Seconds after which readers must have all that is committed."""


class SimulatedKafkaSink(KafkaSink):
    """The Kafka sink of one driver."""

    def __init__(
        self,
        topics: Topics,
        topic: str,
        touch: Callable[[str], None],
        at_sink: Callable[[OutputKey], object],
        *,
        tentative: bool,
    ) -> None:
        """`touch`: see Link. `at_sink` is called before anything is written: it may raise."""
        super().__init__("simulated:9092", topic, timeout=1.0, tentative=tentative)
        self.topics, self._at_sink = topics, at_sink
        self._clients = topics.brokers.library(touch)
        self.before_tentative: Callable[[OutputKey, Epoch], None] = lambda key, epoch: None
        """Called before tentative rows are published."""

    @property
    def _library(self) -> Any:
        return self._clients

    def begin(self, run: str, epoch: Epoch) -> None:
        """See Sink: the topic is there."""

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink."""
        self.before_tentative(key, epoch)
        return super().publish_tentative(key, rows, fidelity, epoch)

    def _attempt(self, work: Callable[[], int]) -> int:
        brokers = self.topics.brokers
        if brokers.mischief.active and brokers.draw.random() < NOT_AWAITED:
            brokers.left.append(lambda: _left_to_itself(work))
            raise CheckFailed("the brokers have not answered for 4 s")
        return work()

    def _headers(self, output: Output) -> Any:
        key = replace(output.key, run="")
        return [*(super()._headers(output) or ()), (HEADER, (key, output.tentative))]

    def _records(self, output: Output) -> list[tuple[bytes | None, bytes | None]]:
        if not output.tentative:
            self._at_sink(output.key)
        if output.rows is not None:
            key = replace(output.key, run=""), output.tentative
            known = self.topics.given.setdefault(key, [])
            if not any(one.equals(output.rows) for one in known):
                known.append(output.rows)
        return super()._records(output)

    # -- what is there -------------------------------------------------------------------------------------------------

    def _rows(self, key: tuple[OutputKey, bool], records: list[Record]) -> pa.Table:
        """Return the rows of records: as they were given, where they are the same."""
        values = [one.value for one in records if one.value is not None]
        for rows in self.topics.given[key]:
            if [value for _, value in super()._records(Output(key[0], rows))] == values:
                return rows
        return pa.table({"records that nobody has given so": [str(value) for value in values]})

    def outputs(self) -> dict[OutputKey, pa.Table]:
        """Return final rows, as readers of committed records get them."""
        found = self.topics.read(self._topic)
        return {
            key: self._rows((key, tentative), records)
            for (key, tentative), records in found.items()
            if not tentative and records[0].value is not None
        }

    def versions(self) -> pa.Table | None:
        """Return of each output the records of the highest revision, by their headers alone."""
        newest: dict[tuple[bytes, bytes], int] = {}
        read = self.topics.read(self._topic)
        for records in read.values():
            for one in records:
                place = one.headers["holdfast-query"], one.headers["holdfast-batch"]
                newest[place] = max(int(one.headers["holdfast-revision"]), newest.get(place, 0))
        shown = []
        for key, records in read.items():
            headers = records[0].headers
            place = headers["holdfast-query"], headers["holdfast-batch"]
            if int(headers["holdfast-revision"]) == newest[place] and "holdfast-empty" not in headers:
                fidelity = headers.get("holdfast-fidelity")
                rows = self._rows(key, records)
                shown.append(with_version(rows, fidelity=None if fidelity is None else float(fidelity), revision=FINAL))
        return pa.concat_tables(shown).combine_chunks() if shown else None


def _left_to_itself(work: Callable[[], int]) -> None:
    try:
        work()
    except Exception:  # as in the thread that does it: nobody awaits what it raises
        return


def open_problems(sink: SimulatedKafkaSink, name: str) -> Iterator[Violation]:
    """See that readers of committed records get everything in time, whatever drivers have left open."""
    late = [one for one in sink.topics.brokers.topics.get(name, ()) if one.transaction.state == "committed"]
    if len(late) != (many := sum(1 for _ in sink.topics.brokers.read_committed(name, after=READ_AFTER))):
        yield Violation(f"{name}: readers see {many} records of {len(late)}: a transaction is left open")

"""Outputs as records of a Kafka topic, each batch once, by Kafka's transactions. Runs on the driver.

A transaction holds the records of all outputs that the driver has, and how far each query is: generation, batch and
revision, with the claim of the driver, as metadata of an offset of a consumer group that belongs to the run and the
output. Both are committed or neither. A producer is known to the brokers by the same name (`transactional.id`). Whoever
opens it ends every earlier producer of that name and its open transaction, and only then reads how far each query is:
so what it reads cannot change any more under it.

- A driver that died between its commit and its progress gives the batch again: the metadata has it, nothing is written.
- A driver that was frozen wakes up with a producer that is fenced: its transaction fails as a whole.
- A producer that was fenced never opens itself again. It reports a failure, and the coordinator decides: where this
  driver still has the run it asks for the batch again, and a new producer compares the claims. The lower one is over.

A topic that takes tentative rows says of every record which version it is, in headers: `holdfast-query`,
`holdfast-batch`, `holdfast-revision`, and `holdfast-fidelity` of tentative ones. Tentative rows are of revision 0,
final ones of revision 1: of a query and batch the highest revision counts. Where a final version has no rows, a record
without a value carries the headers, and `holdfast-empty`.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from itertools import chain
from threading import Thread
from typing import Any

import pyarrow as pa

from holdfast.application.kafka_topics import KafkaTopic, Settings
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import Epoch, OperatorId
from holdfast.runtime.io.kafka_client import LastError, Topic, client_configuration, hidden, kafka_library, made
from holdfast.runtime.io.sinks import FINAL, Output, OutputKey, Sink
from holdfast.runtime.state.store import StaleEpoch

VALUES = ("json", "raw")
FORMAT = 2
TRANSACTION_SECONDS = 60
"""After so long the brokers abort a transaction whose producer says nothing: readers wait no longer."""
MOST_METADATA = 4096
"""Bytes that brokers take as metadata of an offset, unless they are set otherwise."""
_GENERATION, _BATCH, _REVISION = 2, 5, 1
"""Bytes that each of them has in it, whatever its value: metadata must not grow as batches do."""
_NO_BATCH = (1 << 8 * _BATCH) - 1
_ENVELOPE = 96
"""Bytes that metadata has beside what it says of queries, at most."""


def most_partitions(*, tentative: bool) -> int:
    """Return how many partitions an output may have, so that how far they are is never more than brokers take."""
    each = _GENERATION + _BATCH + _REVISION + (_BATCH if tentative else 0)
    return (MOST_METADATA - _ENVELOPE) // 4 * 3 // each  # base64: four bytes say three


RETRY_MILLISECONDS = 10
"""Between two attempts of a producer. Brokers refuse to begin a transaction while they still write the markers of the
one before (CONCURRENT_TRANSACTIONS), for some milliseconds: with librdkafka's 100 each transaction waits that long."""
COMMIT_TRIES = 3
ATTEMPT_TIMEOUTS = 4
"""An attempt to write a batch has failed after so many times the sink's timeout."""


@dataclass(frozen=True, slots=True)
class Committed:
    """How far the queries of an output are in a topic, as a transaction says."""

    claim: int = -1
    """Of the driver that wrote it."""
    queries: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    """Generation, batch and revision, by the index of the query."""
    tentative: Mapping[int, int] = field(default_factory=dict)
    """The last batch of which there are tentative rows, by the index of the query."""

    def has_tentative(self, key: OutputKey) -> bool:
        """Whether tentative rows of an output are in the topic, or the final ones."""
        return self.tentative.get(key.query.index, -1) >= key.batch or self.has(key)

    def after_tentative(self, key: OutputKey, claim: int) -> Committed:
        """Return what a transaction with tentative rows says."""
        return Committed(claim, self.queries, {**self.tentative, key.query.index: key.batch})

    def has(self, key: OutputKey) -> bool:
        """Whether an output is in the topic. Batches have one order over all layouts of a run."""
        held = self.queries.get(key.query.index)
        return held is not None and held[1:] >= (key.batch, key.revision)

    def after(self, keys: Sequence[OutputKey], claim: int) -> Committed:
        """Return what a transaction with these outputs says."""
        found = dict(self.queries)
        for key in keys:
            found[key.query.index] = (key.generation, key.batch, key.revision)
        tentative = {at: batch for at, batch in self.tentative.items() if at not in found or found[at][1] < batch}
        return Committed(claim, found, tentative)

    def encode(self) -> str:
        """Return it as the metadata of an offset: its size follows from the highest index of a query alone."""
        none = (0, _NO_BATCH, 0)
        held = [self.queries.get(at, none) for at in range(max(self.queries, default=-1) + 1)]
        fields: dict[str, Any] = {
            "format": FORMAT,
            "claim": self.claim,
            "queries": _packed(zip((_GENERATION, _BATCH, _REVISION) * len(held), chain(*held), strict=True)),
        }
        if self.tentative:
            batches = [self.tentative.get(at, _NO_BATCH) for at in range(max(self.tentative) + 1)]
            fields["tentative"] = _packed((_BATCH, batch) for batch in batches)
        return json.dumps(fields, separators=(",", ":"))


def _packed(numbers: Iterable[tuple[int, int]]) -> str:
    """Return numbers, each with the bytes that it has, as a text."""
    return b64encode(b"".join(number.to_bytes(size) for size, number in numbers)).decode()


def _unpacked(text: str, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Return numbers that were packed, so many at a time as there are sizes."""
    data, at = b64decode(text), 0
    while at < len(data):
        found = []
        for size in sizes:
            found.append(int.from_bytes(data[at : at + size]))
            at += size
        yield tuple(found)


def read_committed(text: str | None) -> Committed:
    """Read what a transaction says; None or empty: there was none."""
    if not text:
        return Committed()
    fields = json.loads(text)
    if fields["format"] == 1:  # its size grew with the numbers of batches
        queries = {at: tuple(held) for at, *held in fields["queries"]}
        return Committed(fields["claim"], queries, dict(fields.get("tentative", ())))
    if fields["format"] != FORMAT:
        raise CheckFailed(
            f"the topic's metadata has format {fields['format']}",
            where="kafka_topic",
            remedy="run the release of Holdfast that wrote it",
        )
    held = enumerate(_unpacked(fields["queries"], (_GENERATION, _BATCH, _REVISION)))
    batches = enumerate(_unpacked(fields.get("tentative", ""), (_BATCH,)))
    return Committed(
        fields["claim"],
        {at: (generation, batch, revision) for at, (generation, batch, revision) in held if batch != _NO_BATCH},
        {at: batch for at, (batch,) in batches if batch != _NO_BATCH},
    )


def version_headers(output: Output) -> list[tuple[str, bytes]]:
    """Return the headers that say which version of which output a record is, in a topic that takes tentative rows."""
    key = output.key
    given = {"query": str(key.query), "batch": str(key.batch), "revision": str(0 if output.tentative else FINAL)}
    if output.fidelity is not None:
        given["fidelity"] = f"{output.fidelity:.6g}"
    if output.retracts:
        given["empty"] = "1"
    return [(f"holdfast-{name}", text.encode()) for name, text in given.items()]


class KafkaSink(Sink):
    """Writes outputs to a topic, exactly once for readers of committed records."""

    grouped: bool = True

    def __init__(
        self,
        servers: str,
        topic: str,
        value: str = "json",
        key: str | None = None,
        *,
        timeout: float = 10.0,
        settings: Settings = (),
        tentative: bool = False,
    ) -> None:
        """`timeout`: seconds after which an attempt that the brokers do not answer has failed.

        `tentative`: whether the topic takes tentative rows too; then headers of its records say which they are.
        """
        self.corrects, self.most_partitions = tentative, most_partitions(tentative=tentative)
        self._servers, self._topic, self._value, self._key = servers, topic, value, key
        self._timeout, self._settings = timeout, settings
        self._writers: dict[OperatorId, _Writer] = {}

    def begin(self, run: str, epoch: Epoch) -> None:
        """See Sink. The topic must be there."""
        Topic(KafkaTopic(self._servers, self._topic, "raw", timeout=self._timeout, settings=self._settings)).look()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        return bool(self._commit([Output(key, rows)], epoch))

    def publish_all(self, outputs: Sequence[Output], epoch: Epoch) -> list[OutputKey]:
        """See Sink: one transaction for all outputs of an operator."""
        self._commit(outputs, epoch)
        return [one.key for one in outputs]

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink: the first version of a batch counts."""
        return bool(self._commit([Output(key, rows, fidelity=fidelity)], epoch))

    def retract(self, key: OutputKey, none: pa.Table, epoch: Epoch) -> None:
        """See Sink."""
        self._commit([Output(key, none, retracts=True)], epoch)

    def _commit(self, outputs: Sequence[Output], epoch: Epoch) -> int:
        """Write what the topic does not have; return how many outputs that were."""
        by_operator: dict[OperatorId, list[Output]] = {}
        for one in outputs:
            by_operator.setdefault(one.key.query.operator, []).append(one)
        written = 0
        for operator, some in by_operator.items():
            records = [(one, self._records(one), self._headers(one)) for one in some]
            writer = self._writers.get(operator)
            try:
                if writer is None:
                    writer = self._writers[operator] = _Writer(
                        self._library,
                        self._servers,
                        self._topic,
                        self._settings,
                        f"holdfast-{some[0].key.run}-{operator}",
                        self._timeout,
                    )
                written += self._attempt(partial(writer.write, records, epoch))
            except BaseException:
                # Whatever a producer met, only the coordinator decides whether another one is opened.
                self._writers.pop(operator, None)
                raise
        return written

    @property
    def _library(self) -> Any:
        """What has the clients: confluent-kafka."""
        return kafka_library()

    def _attempt(self, work: Callable[[], int]) -> int:
        """Return what an attempt to write returns; it fails after a while."""
        return _in_time(ATTEMPT_TIMEOUTS * self._timeout, work, self._topic)

    def _headers(self, output: Output) -> list[tuple[str, bytes]] | None:
        if self.corrects:
            return version_headers(output)
        revision = output.key.revision
        return [("holdfast-revision", str(revision).encode())] if revision else None

    def _records(self, output: Output) -> list[tuple[bytes | None, bytes | None]]:
        rows = output.rows
        if rows is None:
            return []
        if output.retracts:
            return [(f"holdfast: {output.key}".encode(), None)]  # with a key: compacted topics refuse records without
        for name in filter(None, (self._key, "value" if self._value == "raw" else None)):
            if name not in rows.column_names:
                raise BadInput(
                    f"has no column {name!r}",
                    where=f"output {output.key.query.operator}",
                    field="kafka_topic",
                    remedy=f"there are {', '.join(rows.column_names)}",
                )
        keys = [None] * rows.num_rows if self._key is None else [_key(one) for one in rows[self._key].to_pylist()]
        if self._value == "raw":
            return list(zip(keys, (_key(one) for one in rows["value"].to_pylist()), strict=True))
        return list(zip(keys, (_json(one) for one in rows.to_pylist()), strict=True))


def _in_time(seconds: float, work: Callable[[], int], topic: str) -> int:
    """Return what some work returns, or fail after a while.

    librdkafka may wait far longer than it was told for a group's coordinator that was restarted. Whoever is left behind
    in such a wait does no harm: the next producer of the same name ends its transaction before it reads how far the
    topic is, and what it has committed before that is read.
    """
    found: list[int] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as problem:  # raised where the result is awaited
            problems.append(problem)

    thread = Thread(target=run, name="holdfast-kafka-sink", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise CheckFailed(
            f"the brokers have not answered for {seconds:g} s",
            where=f"topic {topic}",
            remedy="see that the brokers run; it is tried again",
        )
    if problems:
        raise problems[0]
    return found[0]


_Records = tuple[Output, list[tuple[bytes | None, bytes | None]], list[tuple[str, bytes]] | None]
"""An output, its records as keys and values, and the headers of all of them."""


class _Writer:
    """One producer, and how far the topic is by what it has read after it was opened."""

    def __init__(self, library: Any, servers: str, topic: str, settings: Settings, name: str, timeout: float) -> None:
        self._library = library
        self._topic, self._settings, self._name, self._timeout = topic, settings, name, timeout
        self._last_error = LastError(settings)
        common = client_configuration(servers, settings, self._last_error)
        self._producer: Any = made(
            library.Producer,
            common
            | {
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
                "partitioner": dict(settings).get("partitioner", "murmur2_random"),
                # All records of a transaction are there before it is committed: nothing is gained by waiting for more.
                "linger.ms": dict(settings).get("linger.ms", "0"),
                "retry.backoff.ms": dict(settings).get("retry.backoff.ms", str(RETRY_MILLISECONDS)),
            },
            settings,
            library,
        )
        consumer = common | {"group.id": name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._group: Any = made(library.Consumer, consumer, settings, library)
        self._place = library.TopicPartition(topic, 0)
        self._held: Committed | None = None

    def write(self, outputs: Sequence[_Records], epoch: Epoch) -> int:
        """Write outputs that the topic does not have, in one transaction; return how many those are."""
        held = self._held = self._open(epoch) if self._held is None else self._held
        if epoch.claim < held.claim:
            raise self._over(epoch.claim, held.claim)
        after, new = held, list[_Records]()
        for one in outputs:
            output = one[0]
            if after.has_tentative(output.key) if output.tentative else after.has(output.key):
                continue
            new.append(one)
            if output.tentative:
                after = after.after_tentative(output.key, epoch.claim)
            else:
                after = after.after([output.key], epoch.claim)
        if not new:
            return 0
        metadata = after.encode()
        if len(metadata) > MOST_METADATA:
            raise BadInput(
                f"the output has {len(after.queries)} partitions: how far they are is {len(metadata)} bytes, and "
                f"brokers take {MOST_METADATA}",
                where=f"topic {self._topic}",
                remedy="give the output fewer partitions, or several outputs",
            )
        library = self._library
        try:
            self._producer.begin_transaction()
            for _, records, headers in new:
                for name, value in records:
                    self._produce(name, value, headers)
            last = max(output.key.batch for output, _, _ in new) + 1
            place = library.TopicPartition(self._topic, 0, last, metadata)
            self._producer.send_offsets_to_transaction([place], self._group.consumer_group_metadata(), self._timeout)
            self._end()
        except library.KafkaException as error:
            raise self._failed(error.args[0]) from None
        self._held = after
        return len(new)

    def _open(self, epoch: Epoch) -> Committed:
        """End every earlier producer of this name, then read how far the topic is."""
        library = self._library
        try:
            self._producer.init_transactions(self._timeout)
        except library.KafkaException as error:
            raise CheckFailed(
                f"no transaction can be had: {self._why(error.args[0])}",
                where=f"topic {self._topic}",
                remedy=f"see that the brokers run and let this user write under transactional.id {self._name}; "
                "kafka_topic writes in transactions only",
            ) from None
        try:
            found = self._group.committed([self._place], timeout=self._timeout)[0]
        except library.KafkaException as error:
            raise self._failed(error.args[0]) from None
        if found.error is not None:
            raise self._failed(found.error)
        held = read_committed(found.metadata)
        if epoch.claim < held.claim:
            raise self._over(epoch.claim, held.claim)
        return held

    def _produce(self, key: bytes | None, value: bytes | None, headers: Any) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, headers=headers)
                return
            except BufferError:
                if not self._producer.poll(self._timeout) and self._last_error.refused:
                    raise self._failed(self._last_error.text) from None

    def _end(self) -> None:
        """Commit; an answer that did not come is asked for again, a transaction that cannot be committed is aborted."""
        library = self._library
        for attempt in range(COMMIT_TRIES):
            try:
                self._producer.commit_transaction(self._timeout)
                return
            except library.KafkaException as error:
                problem = error.args[0]
                if problem.txn_requires_abort():
                    self._producer.abort_transaction(self._timeout)
                    raise
                if not problem.retriable() or attempt == COMMIT_TRIES - 1:
                    raise

    def _why(self, problem: Any) -> str:
        text = problem if isinstance(problem, str) else problem.str()
        more = f" ({self._last_error.text})" if self._last_error.text and self._last_error.text not in text else ""
        return hidden(f"{text}{more}", self._settings)

    def _failed(self, problem: Any) -> CheckFailed:
        library = self._library
        codes = library.KafkaError
        fenced = not isinstance(problem, str) and problem.code() in (codes._FENCED, codes.INVALID_PRODUCER_EPOCH)
        what = "another producer of this run has been opened, and this one is over" if fenced else self._why(problem)
        return CheckFailed(
            f"the transaction was not committed: {what}",
            where=f"topic {self._topic}",
            remedy="it is tried again while this driver has the run" if fenced else "see that the brokers run",
        )

    def _over(self, mine: int, theirs: int) -> StaleEpoch:
        return StaleEpoch(
            f"claim {mine} is over: the topic has seen claim {theirs}",
            where=f"topic {self._topic}",
            remedy="nothing was written; another driver runs this application: end this one",
        )


def _key(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return _plain(value).encode() if isinstance(value, date) else str(value).encode()


def _json(row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        finite = {name: None if _is_odd(value) else value for name, value in row.items()}
        return json.dumps(finite, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def _is_odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _plain(value: Any) -> str:
    match value:
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return b64encode(value).decode()
        case Decimal():
            return str(value)
    return str(value)

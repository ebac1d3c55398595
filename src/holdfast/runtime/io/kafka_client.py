"""Kafka's brokers, through confluent-kafka: what clients are made with, and what a topic has. On driver and nodes.

What fails is one line without any setting in it: settings may be secrets. librdkafka's own log is off; what it would
say is in our errors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

from holdfast.application.kafka_topics import KafkaTopic, Settings, StartAt
from holdfast.errors import BadInput, CheckFailed, HoldfastError, missing_extra, one_line
from holdfast.runtime.io.offset_tracker import PartitionSeen, TopicSeen
from holdfast.runtime.io.topic_retention import TopicRetention

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


def kafka_library() -> Any:
    """Return the module `confluent_kafka`; where it is not installed, one line says what brings it."""
    try:
        import confluent_kafka
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    return confluent_kafka


def hidden(text: object, settings: Settings) -> str:
    """Return a text in one line, without the values of settings that could be secrets."""
    found = str(text)
    for name, value in settings:
        if any(part in name for part in ("password", "secret", "sasl.", "pem", "oauth", "key", "token")) and value:
            found = found.replace(value, "…")
    return one_line(found, 300)


class LastError:
    """The last problem of a client with its connections: why nothing comes."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self.text, self.refused = settings, "", False

    def __call__(self, error: KafkaError) -> None:
        """Take what the client says."""
        library = kafka_library()
        self.text = hidden(error.str(), self._settings)
        self.refused = error.code() in (library.KafkaError._AUTHENTICATION, library.KafkaError._SSL)


def client_configuration(servers: str, settings: Settings, last_error: LastError) -> dict[str, Any]:
    """Return what every client is configured with."""
    return {
        "client.id": "holdfast",
        "reconnect.backoff.max.ms": 1000,
        **dict(settings),
        "bootstrap.servers": servers,
        "log_level": 0,
        "error_cb": last_error,
    }


class BrokersAway(CheckFailed):
    """Raised where brokers do not answer: they may be back soon."""


def unreachable(
    what: str, servers: str, error: object, settings: Settings, kind: type[CheckFailed] = CheckFailed
) -> CheckFailed:
    """Return the error of brokers that do not answer, or do not let us."""
    return kind(
        f"{what}: {hidden(error, settings)}",
        where=f"brokers {servers}",
        remedy="see that the brokers run, that every node reaches them and that the settings are right",
    )


def made(
    build: Callable[[dict[str, Any]], Any], configuration: dict[str, Any], settings: Settings, library: Any = None
) -> Any:
    """Make a client; a setting that librdkafka does not take is refused by its name. `library`: as `kafka_library`."""
    library = library or kafka_library()
    try:
        return build(configuration)
    except (library.KafkaException, ValueError, TypeError) as error:
        raise BadInput(
            hidden(error.args[0] if error.args else error, settings), field="kafka.settings", remedy="mend the setting"
        ) from None


def topic_retention(settings: Mapping[str, str | None]) -> TopicRetention:
    """Read a topic's settings; brokers of another make may lack some."""

    def number(name: str) -> int | None:
        found = int(settings.get(name) or -1)
        return None if found < 0 else found

    policy = settings.get("cleanup.policy") or "delete"
    compacted = "compact" in policy
    if "delete" not in policy:
        return TopicRetention(compacted=compacted)
    age = number("retention.ms")
    segment = number("segment.bytes") or 0
    return TopicRetention(None if age is None else age / 1000, number("retention.bytes"), segment, compacted)


class Topic:
    """One topic, as the driver looks at it."""

    def __init__(self, reader: KafkaTopic, fresh_seconds: float = 0.0) -> None:
        """`fresh_seconds`: so long, what the topic has is taken to be what it was, but for its ends."""
        self.reader, self._fresh = reader, fresh_seconds
        self._known: tuple[float, str, dict[int, int], dict[int, int]] | None = None
        """Since when what is known is known: the topic's id, where its partitions begin, where reading starts."""
        self._last_error = LastError(reader.settings)
        self._admin: Any = None
        self._guard = threading.Lock()

    def look(self, *, begun: bool = True) -> TopicSeen:
        """Ask the brokers what the topic has now; `CheckFailed` where they do not answer.

        `begun`: the run has a position, and where reading would start does not matter any more.
        """
        known, now = self._known, time.monotonic()
        if known is None or now - known[0] >= self._fresh:
            admin_module, admin = self._client()
            asked = kafka_library().TopicCollection([self.reader.topic])
            described = self._answer(admin.describe_topics(asked, request_timeout=self._patience))[self.reader.topic]
            numbers = [one.id for one in described.partitions]
            earliest = self.offsets(dict.fromkeys(numbers, admin_module.OffsetSpec.earliest()))
            ends = self._latest(numbers)
            starts = earliest if begun else self._starts(self.reader.start, earliest, ends)
            known = self._known = now, str(described.topic_id or ""), earliest, starts
        else:
            ends = self._latest(list(known[2]))
        _, identity, earliest, starts = known
        seen = {number: PartitionSeen(earliest[number], ends[number], starts[number]) for number in earliest}
        return TopicSeen(identity, seen)

    def retention(self) -> TopicRetention:
        """Return what the topic's settings say about records that go."""
        admin_module, admin = self._client()
        resource = admin_module.ConfigResource(admin_module.ResourceType.TOPIC, self.reader.topic)
        found = next(iter(self._answer(admin.describe_configs([resource], request_timeout=self._patience)).values()))
        return topic_retention({name: None if one.value is None else str(one.value) for name, one in found.items()})

    def offsets_at(self, numbers: list[int], milliseconds: int) -> dict[int, int | None]:
        """Return the first offset of each topic partition that is not older than a time; None: there is none."""
        admin_module, _ = self._client()
        found = self.offsets(dict.fromkeys(numbers, admin_module.OffsetSpec.for_timestamp(milliseconds)))
        return {number: None if offset < 0 else offset for number, offset in found.items()}

    def offsets(self, asked: Mapping[int, Any]) -> dict[int, int]:
        """Ask for offsets of topic partitions; ends are last stable offsets."""
        if not asked:
            return {}
        library = kafka_library()
        _, admin = self._client()
        request = {library.TopicPartition(self.reader.topic, number): spec for number, spec in asked.items()}
        found = self._answer(
            admin.list_offsets(
                request,
                isolation_level=library.IsolationLevel.READ_COMMITTED,
                request_timeout=self._patience,
            )
        )
        if any(result.offset == library.OFFSET_INVALID for result in found.values()):
            # What a broker that ended in the middle of the request leaves: no offset, and no error.
            raise self._unreachable(self._last_error.text or "a broker gave no offset")
        return {one.partition: result.offset for one, result in found.items()}

    def _latest(self, numbers: list[int]) -> dict[int, int]:
        admin_module, _ = self._client()
        return self.offsets(dict.fromkeys(numbers, admin_module.OffsetSpec.latest()))

    def _starts(self, start: StartAt, earliest: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        if start.kind == "latest":
            return dict(ends)
        if start.kind == "offsets":
            given = dict(start.offsets)
            for number, offset in given.items():
                if number not in ends:
                    raise BadInput(
                        f"topic {self.reader.topic} has no partition {number}",
                        field="kafka.start",
                        remedy=f"it has {len(ends)}",
                    )
                if not earliest[number] <= offset <= ends[number]:
                    raise BadInput(
                        f"{self.reader.topic}-{number} has offsets {earliest[number]} to {ends[number]}, not {offset}",
                        field="kafka.start",
                        remedy="give an offset that is there",
                    )
            return {number: given.get(number, earliest[number]) for number in ends}
        if start.kind == "time":
            found = self.offsets_at(list(ends), start.milliseconds)
            return {number: ends[number] if (at := found[number]) is None else at for number in ends}
        return dict(earliest)

    @property
    def _patience(self) -> float:
        return max(0.1, self.reader.timeout)

    def _client(self) -> tuple[Any, Any]:
        kafka_library()
        import confluent_kafka.admin

        with self._guard:
            if self._admin is None:
                reader = self.reader
                configuration = client_configuration(reader.servers, reader.settings, self._last_error)
                self._admin = made(confluent_kafka.admin.AdminClient, configuration, reader.settings)
        return confluent_kafka.admin, self._admin

    def _answer(self, futures: Mapping[Any, Any]) -> dict[Any, Any]:
        """Wait for the answers of the brokers."""
        library = kafka_library()
        found, deadline = {}, time.monotonic() + self._patience + 1.0
        for asked, future in futures.items():
            try:
                while not wait([future], timeout=0.02).done and time.monotonic() < deadline:
                    self._admin.poll(0)  # delivers connection errors; a thread of the client delivers answers
                    if self._last_error.refused:
                        break
                found[asked] = future.result(timeout=0 if self._last_error.refused else 1.0)
            except library.KafkaException as error:
                problem = error.args[0]
                if problem.code() == library.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise CheckFailed(
                        f"there is no topic {self.reader.topic}",
                        where=f"brokers {self.reader.servers}",
                        remedy="create it, or name another",
                    ) from None
                raise self._unreachable(self._last_error.text or problem.str()) from None
            except TimeoutError:
                raise self._unreachable(self._last_error.text or "no answer") from None
            finally:
                refused, self._last_error.refused = self._last_error.refused, False
                if refused:
                    with self._guard:
                        self._admin = None
        self._last_error.text = ""
        return found

    def _unreachable(self, why: object) -> HoldfastError:
        what = f"topic {self.reader.topic} cannot be looked at"
        kind = CheckFailed if self._last_error.refused else BrokersAway
        return unreachable(what, self.reader.servers, why, self.reader.settings, kind)

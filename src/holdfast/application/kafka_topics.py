"""A Kafka topic as a source, as a plain value: `hf.kafka(servers, topic, …)`. Runs anywhere, without Kafka's client.

Nodes read topics in place: the runtime logs which offsets of which topic partition a batch has. What says how records
become rows (`options`) is in the record of each batch; how to reach the brokers is not, and neither is any secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from holdfast.application.columns import Schema
from holdfast.application.durations import Duration, seconds
from holdfast.errors import BadInput
from holdfast.topology.checks import suggestion

VALUES = ("json", "avro", "raw")
"""How the value of a record becomes columns."""
RAW_COLUMNS: Schema = {
    "key": "binary",
    "value": "binary",
    "headers": "string",
    "timestamp": "timestamp[us]",
    "partition": "int32",
    "offset": "int64",
}
"""What a raw record has: the columns of a source that declares none."""
_KINDS = {
    "key": ("string", "binary", "large_string"),
    "value": ("string", "binary", "large_string"),
    "headers": ("string", "large_string"),
    "timestamp": tuple(f"timestamp[{unit}]" for unit in ("s", "ms", "us", "ns")),
    "partition": ("int32", "int64"),
    "offset": ("int64",),
}
OURS = (
    *("bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store", "isolation.level"),
    *("enable.partition.eof", "auto.offset.reset", "transactional.id", "enable.idempotence"),
)
"""Settings of librdkafka that exactly once depends on: they are not the user's."""
Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where reading starts, at the first start of a run; partitions that come later are read from their beginning."""

    kind: str = "earliest"
    """`earliest`, `latest`, `offsets` or `time`."""
    offsets: tuple[tuple[int, int], ...] = ()
    """By topic partition; those that are not named are read from their beginning."""
    milliseconds: int = 0
    """Since 1970: the first records that are not older."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic whose records are read once each, also those that come later. Made by `kafka`."""

    servers: str
    topic: str
    format: str
    options: Settings = ()
    """How records become rows, sorted by name."""
    start: StartAt = StartAt()
    max_records: int | None = None
    """Records that one batch takes at most."""
    timeout: float = 8.0
    """Seconds without an answer from the brokers after which an attempt to read has failed."""
    fail_on_data_loss: bool = True
    settings: Settings = field(default=(), repr=False)
    """Settings of librdkafka, secrets among them: never printed, never logged."""

    in_place = True


def kafka(
    servers: str | Sequence[str],
    topic: str,
    value: str = "json",
    *,
    avro_schema: str | Mapping[str, object] | None = None,
    avro_framing: str = "none",
    key: str | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
    offset: str | None = None,
    start: str | datetime | Mapping[int, int] = "earliest",
    max_records: int | None = None,
    timeout: Duration = "8 seconds",
    fail_on_data_loss: bool = True,
    settings: Mapping[str, object] | None = None,
) -> KafkaTopic:
    """Read the records of a Kafka topic, each once, in place: nodes fetch them through `confluent-kafka`.

    `value` says how a record's value becomes columns: `json` (an object), `avro` (with `avro_schema`; `avro_framing=
    "confluent"` where five bytes of a schema registry come first) or `raw` (the column `value`). `key`, `headers`,
    `timestamp`, `partition` and `offset` name the columns of the source's schema that get these parts of a record;
    headers are JSON text. Only records of committed transactions are read. `start` is `earliest`, `latest`, a time
    (records from then on), or offsets by topic partition. `settings` are librdkafka's, such as `security.protocol`;
    they are passed on as they are, and never shown.

    >>> import holdfast as hf
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", hf.kafka("broker:9092", "visits", key="user"), event_time="ts",
    ...                     schema="ts timestamp, user string, page string")
    >>> visits.columns
    {'ts': 'timestamp[us]', 'user': 'string', 'page': 'string'}
    """
    places = servers if isinstance(servers, str) else ",".join(map(str, servers))
    if not places.strip():
        raise BadInput("is empty", field="kafka.servers", remedy='name a broker: hf.kafka("broker:9092", "visits")')
    if not isinstance(topic, str) or not topic.strip():
        raise BadInput("is empty", field="kafka.topic", remedy='name a topic: hf.kafka("broker:9092", "visits")')
    if value not in VALUES:
        raise BadInput(f"{value!r} is not a kind of value", field="kafka.value", remedy=suggestion(str(value), VALUES))
    options = {"key": key, "headers": headers, "timestamp": timestamp, "partition": partition, "offset": offset}
    found = {name: column for name, column in options.items() if column is not None}
    found |= _avro_options(value, avro_schema, avro_framing)
    if max_records is not None and max_records < 1:
        raise BadInput(f"{max_records} is not 1 or more", field="kafka.max_records", remedy="leave it out")
    return KafkaTopic(
        places,
        topic,
        value,
        tuple(sorted(found.items())),
        _start_at(start),
        max_records,
        seconds(timeout, field="kafka.timeout"),
        fail_on_data_loss,
        client_settings(settings, field="kafka.settings"),
    )


def client_settings(given: Mapping[str, object] | None, *, field: str) -> Settings:
    """Return settings of librdkafka as texts; those that exactly once depends on are refused. No value is printed."""
    found = {}
    for name, value in (given or {}).items():
        if name in OURS:
            raise BadInput(f"{name!r} cannot be set", field=field, remedy="leave it out: Holdfast sets it")
        if not isinstance(value, str | int | float):
            raise BadInput(
                f"the value of {name!r} is {type(value).__name__}",
                field=field,
                remedy="give a text or a number: settings are sent to the nodes",
            )
        found[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return tuple(sorted(found.items()))


def kafka_columns(reader: KafkaTopic, columns: Schema | None, *, field: str) -> Schema:
    """Return the columns of a source that reads a topic; refuse parts of records that they cannot take."""
    if columns is None:
        if reader.format != "raw":
            raise BadInput(
                f"{reader.format} values do not say the types of their columns",
                field=field,
                remedy='give the source its schema: schema="ts timestamp, page string"',
            )
        columns = dict(RAW_COLUMNS)
    for part, column in record_columns(reader.format, reader.options, columns).items():
        if column not in columns:
            raise BadInput(
                f"there is no column {column!r} for the {part} of records",
                field=field,
                remedy=f"declare it, or leave out {part}={column!r}",
            )
        if columns[column] not in _KINDS[part]:
            raise BadInput(
                f"column {column!r} is {columns[column]}, which the {part} of a record is not",
                field=field,
                remedy=f"declare it as {' or '.join(_KINDS[part][:2])}",
            )
    if reader.format == "raw":
        known = record_columns(reader.format, reader.options, columns).values()
        if strange := [name for name in columns if name not in known]:
            raise BadInput(
                f"raw records have no column {strange[0]!r}",
                field=field,
                remedy=f"there are {', '.join(RAW_COLUMNS)}; or name it: hf.kafka(…, key={strange[0]!r})",
            )
    return columns


def record_columns(kind: str, options: Settings, columns: Sequence[str] | Schema) -> dict[str, str]:
    """Return which column gets each part of a record; raw records have theirs under the names of the parts."""
    named = {part: column for part, column in options if part in _KINDS}
    if kind != "raw":
        return named
    return {part: part for part in RAW_COLUMNS if part in columns and part not in named} | named


def _avro_options(value: str, schema: str | Mapping[str, object] | None, framing: str) -> dict[str, str]:
    if value != "avro":
        if schema is not None:
            raise BadInput(f"{value} values have no Avro schema", field="kafka.avro_schema", remedy='set value="avro"')
        return {}
    if schema is None:
        raise BadInput(
            "is missing", field="kafka.avro_schema", remedy="give the schema that the values were written with"
        )
    if framing not in ("none", "confluent"):
        raise BadInput(f"{framing!r} is neither none nor confluent", field="kafka.avro_framing", remedy="leave it out")
    try:
        text = json.dumps(json.loads(schema) if isinstance(schema, str) else schema, sort_keys=True)
    except (ValueError, TypeError) as error:
        raise BadInput(f"is not JSON: {error}", field="kafka.avro_schema", remedy="give the schema's text") from None
    return {"avro_schema": text} | ({} if framing == "none" else {"avro_framing": framing})


def _start_at(given: str | datetime | Mapping[int, int]) -> StartAt:
    if isinstance(given, Mapping):
        wrong = [one for one in given.items() if not all(isinstance(part, int) and part >= 0 for part in one)]
        if wrong or not given:
            raise BadInput(
                f"{dict(given)!r} are not offsets by topic partition",
                field="kafka.start",
                remedy="write {0: 1200, 1: 800}",
            )
        return StartAt("offsets", tuple(sorted(given.items())))
    if given in ("earliest", "latest"):
        return StartAt(str(given))
    try:
        at = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        raise BadInput(
            f"{given!r} is not a place to start",
            field="kafka.start",
            remedy="write earliest, latest, a time such as 2026-01-31T12:00:00Z, or offsets: {0: 1200}",
        ) from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return StartAt("time", milliseconds=round(at.timestamp() * 1000))

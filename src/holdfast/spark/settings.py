"""What can be set under `spark.holdfast.*`. Runs on the driver.

    settings = Settings.read(spark)     # typed, checked, with defaults; a key that does not exist is refused
    needs.check_requirements(spark)            # Spark's own settings and version; refused with the remedy

docs/reference/settings.md has the same table; a test compares them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadInput
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.store.wire.address import Address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "spark.holdfast."
STRATEGIES = tuple(RecoveryStrategy)


def _setting(key: str, read: Callable[[str], Any], default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"key": PREFIX + key, "read": read, "help": help_text})


def _whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"must be {least} or more" if most == 2**31 - 1 else f"must be {least} to {most}")
        return number

    return read


def _number(above: float, most: float = math.inf) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = float(text)
        if not above < number <= most or not math.isfinite(number):
            raise ValueError(f"must be above {above:g}" + ("" if most == math.inf else f", up to {most:g}"))
        return number

    return read


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1:
        raise ValueError("must be from 0 to below 1")
    return number


def _seconds(text: str) -> float:
    number = seconds_of(text)
    if number < 0:
        raise ValueError("must not be below 0")
    return number


def _some_seconds(text: str) -> float:
    number = seconds_of(text)
    if number <= 0:
        raise ValueError("must be above 0")
    return number


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return read


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(str(Address.parse(one)) for one in text.split(",") if one.strip())


@dataclass(frozen=True, slots=True)
class Settings:
    """How an application runs. Each field says its key, its default and what it is for."""

    directory: str | None = _setting(
        "directory",
        _text,
        None,
        "Folder or URL (s3://…) of the run, on storage that every node reaches: logs, progress, outputs.",
    )
    checkpoint_batches: int = _setting(
        "checkpoint.batches", _whole(1), 10, "A global checkpoint after so many batches, if not before."
    )
    checkpoint_seconds: float = _setting(
        "checkpoint.seconds", _some_seconds, 10.0, "A global checkpoint after so many seconds with new batches."
    )
    durable_every: int = _setting(
        "checkpoint.durableEvery", _whole(1), 5, "Every so many global checkpoints, one goes to durable storage too."
    )
    exchange: str = _setting(
        "exchange",
        _one_of("shuffle", "resident"),
        "shuffle",
        "`shuffle`: blocks travel through Spark's shuffle in short jobs. `resident`: a task per node stays, and nodes "
        "send blocks to each other, for batches in milliseconds; new, and needs executors with two cores.",
    )
    exchange_window: int = _setting(
        "exchange.window",
        _whole(1, 10_000),
        8,
        "Batches that a sender may be ahead of each consumer; more takes memory on consumers.",
    )
    exchange_port: int = _setting(
        "exchange.port", _whole(0, 65535), 0, "Port at which a node takes connections of other nodes; 0: any free one."
    )
    driver_port: int = _setting(
        "driver.port", _whole(0, 65535), 0, "Port at which the driver takes connections of its nodes; 0: any free one."
    )
    store_peers: tuple[str, ...] = _setting(
        "store.peers",
        _addresses,
        (),
        "Peers of a store that runs already, HOST:PORT,…; none: agents start with the executors.",
    )
    store_data_fragments: int | None = _setting(
        "store.dataFragments",
        _whole(1, 32),
        None,
        "m: fragments that rebuild a state. None: by `store.tolerateNodeLoss`.",
    )
    store_parity_fragments: int | None = _setting(
        "store.parityFragments", _whole(0, 31), None, "k: fragments that may be lost. Given together with m."
    )
    store_tolerate_node_loss: float = _setting(
        "store.tolerateNodeLoss",
        _share,
        0.5,
        "Share of the nodes whose loss every checkpoint survives (up to 32 nodes).",
    )
    store_secret_file: str | None = _setting(
        "store.secretFile", _text, None, "File with the store's secret, on every node. Needed beyond loopback."
    )
    store_durable: str | None = _setting(
        "store.durable", _text, None, "Folder for durable checkpoints, which every node reaches. None: in `directory`."
    )
    store_linger_seconds: float = _setting(
        "store.linger", _seconds, 600.0, "How long agents outlive their executors: the fast way back for a new driver."
    )
    driver_heartbeat_seconds: float = _setting(
        "driver.heartbeat.seconds",
        _some_seconds,
        3.0,
        "The driver writes a sign of life to the run's storage so often; one that misses three has gone.",
    )
    keepalive_seconds: float = _setting(
        "keepalive.seconds", _some_seconds, 2.5, "A node that answers nothing for so long has failed."
    )
    retention: str = _setting(
        "retention", _text, "sources", "Who keeps outputs back to checkpoints: `sources`, `all`, or a plan's file."
    )
    node_capacity: float | None = _setting(
        "node.capacity", _number(0), None, "Cost a node can carry, as recovery plans it. None: no limit, or its cores."
    )
    node_costs: str = _setting(
        "node.costs",
        _one_of("declared", "measured"),
        "declared",
        "What partitions cost: as the topology says, or the cores they were measured to use.",
    )
    node_bound: float = _setting(
        "node.bound", _number(0, 1), 0.8, "Share of a node's capacity that recovery plans with, at most."
    )
    recovery_strategy: str = _setting(
        "recovery.strategy", _one_of(*STRATEGIES), "incremental", f"One of {', '.join(STRATEGIES)}."
    )
    recovery_incremental_after_losses: int | None = _setting(
        "recovery.incrementalAfterLosses",
        _whole(1),
        None,
        "Losses since a checkpoint from which recovery is incremental. None: as fits.",
    )
    cycle_time_budget: float = _setting(
        "cycle.timeBudget",
        _some_seconds,
        1.0,
        "After so long at a level of a cycle partitions begin no second batch: live ones wait no longer.",
    )
    recovery_buffer_mb: int | None = _setting(
        "recovery.bufferMb",
        _whole(1),
        None,
        "What outboxes may hold in a recovery before the least valuable queries pause. None: no limit.",
    )
    cycle_batches: int = _setting("cycle.batches", _whole(1), 8, "Most batches that one cycle takes from the log.")
    max_pending_batches: int = _setting(
        "ingest.maxPendingBatches",
        _whole(1),
        100,
        "Micro-batches of a source that live queries may be behind before it is held back.",
    )

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if (self.store_data_fragments is None) != (self.store_parity_fragments is None):
            raise BadInput(
                "data and parity fragments come together",
                field=f"{PREFIX}store.dataFragments",
                remedy=f"set {PREFIX}store.parityFragments as well, or neither",
            )
        if (self.store_data_fragments or 0) + (self.store_parity_fragments or 0) > 32:
            raise BadInput(
                "a state has at most 32 fragments", field=f"{PREFIX}store.dataFragments", remedy="lower one of the two"
            )

    @classmethod
    def read(cls, spark: SparkSession) -> Settings:
        """Read a session's settings."""
        return cls.of(conf_of(spark))

    @classmethod
    def of(cls, conf: Mapping[str, str]) -> Settings:
        """Read settings from keys and texts; other keys than `spark.holdfast.*` are not looked at."""
        known = {one.metadata["key"]: one for one in fields(cls)}
        given: dict[str, Any] = {}
        for key, text in conf.items():
            if not key.startswith(PREFIX):
                continue
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
                raise BadInput("there is no such setting", field=key, remedy=f"the nearest is {near[0]}")
            try:
                given[known[key].name] = known[key].metadata["read"](text)
            except BadInput as bad:
                raise BadInput(bad.what, field=key, remedy=bad.remedy) from None
            except ValueError as bad:
                raise BadInput(
                    f"{text!r}: {_reason(bad)}", field=key, remedy=known[key].metadata["help"].rstrip(".")
                ) from None
        return cls(**given)

    @classmethod
    def table(cls) -> list[tuple[str, str, str]]:
        """Return key, default and help of every setting, as documented."""
        return [(one.metadata["key"], _written(one.default), one.metadata["help"]) for one in fields(cls)]


def conf_of(spark: SparkSession) -> dict[str, str]:
    """Return all settings of a session: the application's, and over them those set at run time."""
    conf = dict(spark.sparkContext.getConf().getAll())
    rows = spark._jsparkSession.conf().getAll()
    keys = rows.keysIterator()
    while keys.hasNext():
        key = keys.next()
        conf[str(key)] = str(rows.apply(key))
    return conf


def seconds_of(text: str) -> float:
    """Read a time as Spark writes it: `10s`, `1min`, `500ms`, or a number of seconds."""
    for unit, size in (
        ("ms", 0.001),
        ("min", 60.0),
        ("us", 1e-6),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
        ("d", 86400),
    ):
        if text.strip().lower().endswith(unit):
            return float(text.strip()[: -len(unit)]) * size
    return float(text)


def _reason(error: ValueError) -> str:
    text = str(error)
    return text if text.startswith("must") else "not a number"


def _written(default: object) -> str:
    if default is None or default == ():
        return "none"
    return f"{default:g}" if isinstance(default, float) else str(default)

"""What can be set under `spark.holdfast.*`. Runs on the driver.

    settings = Settings.read(spark)     # typed, checked, with defaults; a key that does not exist is refused
    needs.check_requirements(spark)            # Spark's own settings and version; refused with the remedy

docs/reference/settings.md has the same table; a test compares them.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadInput
from holdfast.planning.replicas.algorithms import ReplicaAlgorithm
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.store.wire.address import Address
from holdfast.store.wire.ports import Ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "spark.holdfast."
OPEN, HELD = "open", "held"
"""What becomes of blocks of operators that are not deterministic at the boundary of their segment."""
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


def _probability(text: str) -> float:
    number = float(text)
    if not 0 < number < 1:
        raise ValueError("must be above 0 and below 1, like 0.999")
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


def _byte_count(text: str) -> int:
    units = {"k": 10, "m": 20, "g": 30}
    low = text.strip().lower().removesuffix("b")
    number = int(low[:-1]) << units[low[-1]] if low[-1:] in units else int(low)
    if number < 1:
        raise ValueError("must be 1 or more")
    return number


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def _host(text: str) -> str:
    host = _text(text).removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if ":" in host or not host.replace("-", "").replace(".", "").replace("_", "").isalnum():
            raise ValueError("must be a host's name or number, without a port") from None
    return host


def _pairs(value: str) -> Callable[[str], tuple[tuple[str, str], ...]]:
    """Return what reads HOST=VALUE,…; `value` is what a line calls the second."""

    def read(text: str) -> tuple[tuple[str, str], ...]:
        found = []
        for one in filter(None, map(str.strip, text.split(","))):
            host, equals, given = one.partition("=")
            if not equals or not host.strip() or not given.strip():
                raise ValueError(f"must be HOST={value},…")
            found.append((host.strip(), given.strip()))
        return tuple(found)

    return read


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _some_names(text: str) -> tuple[str, ...]:
    if not (found := _names(text)):
        raise ValueError("must be asked, all, none, or names of outputs")
    return found


def _budget(text: str) -> str:
    ReplicaBudget.parse(text)
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
        "checkpoint.batches", _whole(1), 10, "Batches between two global checkpoints at most."
    )
    checkpoint_seconds: float = _setting(
        "checkpoint.seconds",
        _some_seconds,
        10.0,
        "Seconds between two global checkpoints at most, while there are new batches.",
    )
    durable_every: int = _setting(
        "checkpoint.durableEvery",
        _whole(1),
        5,
        "One of this many global checkpoints goes to durable storage too; with segments, of the one with the longest "
        "interval.",
    )
    boundaries: str = _setting(
        "checkpoint.boundaries",
        _one_of(OPEN, HELD),
        OPEN,
        f"Where a plan has segments after operators that are not deterministic: with {OPEN} blocks cross at once, and "
        f"such segments roll back with them; with {HELD} blocks wait for a checkpoint of their segment, and both sides "
        "recover alone.",
    )
    exchange: str = _setting(
        "exchange",
        _one_of("shuffle", "resident"),
        "resident",
        "`resident`: a task per node stays, and nodes send blocks to each other; executors need two cores. `shuffle`: "
        "blocks travel through Spark's shuffle in short jobs, for clusters that allow no other connections.",
    )
    exchange_window: int = _setting(
        "exchange.window",
        _whole(1, 10_000),
        8,
        "Batches that a sender may be ahead of each consumer; more takes memory on consumers.",
    )
    exchange_port: Ports = _setting(  # noqa: RUF009  what it gives is frozen
        "exchange.port",
        Ports.parse,
        Ports(),
        "Ports at which the operator processes of nodes take connections of others. A range (`7410-7417`) for all "
        "processes of a host: each takes the first that is free. One port: the second process of a node has the next "
        "one, and so on. 0: any free ones.",
    )
    driver_port: Ports = _setting(  # noqa: RUF009  what it gives is frozen
        "driver.port",
        Ports.parse,
        Ports(),
        "Port at which the driver takes connections of its nodes; of a range (`7400-7409`) the first that is free. 0: "
        "any free one.",
    )
    node_bind_address: str | None = _setting(
        "node.bindAddress",
        _host,
        None,
        "Address at which operator processes and store agents listen on every node, `0.0.0.0` for all that it has. "
        "None: the address of the node's executor.",
    )
    node_addresses: tuple[tuple[str, str], ...] = _setting(
        "node.addresses",
        _pairs("ADDRESS"),
        (),
        "Where others reach operator processes and agents, by the executor's host as Spark names it: HOST=ADDRESS,…. "
        "None: at that host.",
    )
    store_port: Ports = _setting(  # noqa: RUF009  what it gives is frozen
        "store.port",
        Ports.parse,
        Ports(),
        "Port at which the store agent of a host listens; of a range (`7420-7429`) the first that is free. 0: any "
        "free one.",
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
        "m: fragments that rebuild a state. None: by `store.tolerateNodeLoss`, or chosen from what is measured.",
    )
    store_parity_fragments: int | None = _setting(
        "store.parityFragments", _whole(0, 31), None, "k: fragments that may be lost. Given together with m."
    )
    store_tolerate_node_loss: float | None = _setting(
        "store.tolerateNodeLoss",
        _share,
        None,
        "Share of the nodes whose loss every checkpoint survives (up to 32 nodes). None: agents choose m and k from "
        "what they measure.",
    )
    store_reliability: float = _setting(
        "store.reliability",
        _probability,
        0.999,
        "Where agents choose m and k: the probability that a restore after the loss of a node finds enough fragments.",
    )
    store_secret_file: str | None = _setting(
        "store.secretFile", _text, None, "File with the store's secret, on every node. Needed beyond loopback."
    )
    tls_mode: str = _setting(
        "tls.mode",
        _one_of("auto", "off", "run", "files"),
        "auto",
        "TLS between driver and nodes. `run`: certificates that the driver makes at its start. `files`: your own, for "
        "store agents too. `auto`: `run`, on loopback `off`.",
    )
    tls_cert: str | None = _setting("tls.cert", _text, None, "This host's certificate (PEM), on every node and driver.")
    tls_key: str | None = _setting("tls.key", _text, None, "Its key (PEM), mode 600.")
    tls_ca: str | None = _setting("tls.ca", _text, None, "The authority that signed all certificates (PEM).")
    store_durable: str | None = _setting(
        "store.durable", _text, None, "Folder for durable checkpoints, which every node reaches. None: in `directory`."
    )
    store_linger_seconds: float = _setting(
        "store.linger", _seconds, 600.0, "How long agents outlive their executors: the fast way back for a new driver."
    )
    store_expiry_seconds: float = _setting(
        "store.expiry",
        _seconds,
        7 * 86400.0,
        "Spools that other runs left on a host, and whose agents ended so long ago, are removed by the agent that "
        "starts next on it. 0: never.",
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
    node_processes: int | None = _setting(
        "node.processes",
        _whole(1, 1024),
        None,
        "Operator processes of a node, each with a share of its partitions. None: the cores that its task claims, "
        "`spark.task.cpus`.",
    )
    stall_seconds: float = _setting(
        "node.stall.seconds",
        _seconds,
        60.0,
        "An operator process in which a step takes so long hangs: it is killed, and started again. Where steps are "
        "slow, one has ten times as long as the longest that has ended there, a second attempt twice as long, at most "
        "five times this setting. 0: never.",
    )
    node_memory_mb: int | None = _setting(
        "node.memoryMb",
        _whole(0),
        None,
        "Memory that an operator process may take, in MB, beside files that it maps; one that takes more is killed. "
        "0: no bound. None: its share of 80 % of `spark.executor.pyspark.memory` or `spark.executor.memoryOverhead`, "
        "where set, else on YARN and Kubernetes of what Spark takes for the latter "
        "(`spark.executor.memoryOverheadFactor`, by default 10 % of `spark.executor.memory`, at least 384 MB), "
        "elsewhere of half of the machine's or container's memory.",
    )
    node_capacity: float | None = _setting(
        "node.capacity",
        _number(0),
        None,
        "Cost a node can carry, as recovery plans it. None: no limit, or the cores it uses.",
    )
    node_costs: str = _setting(
        "node.costs",
        _one_of("auto", "declared", "measured"),
        "auto",
        "What partitions cost: as the topology says, or the cores they were measured to use. `auto`: as declared where "
        "`node.capacity` is set, else as measured.",
    )
    node_bound: float = _setting(
        "node.bound", _number(0, 1), 0.8, "Share of a node's capacity that recovery plans with, at most."
    )
    node_bound_seconds: float = _setting(
        "node.bound.seconds",
        _seconds,
        60.0,
        "With `node.costs=auto` and no `node.capacity`: partitions that no node had room for so long are restored "
        "above the bound.",
    )
    node_move_above: float = _setting(
        "node.moveAbove",
        _number(0),
        0.75,
        "While nothing is lost, partitions move off a node that is busier than this share of its bound, to nodes that "
        "have less to do; above 1: only off nodes beyond their bound. With tasks that stay.",
    )
    node_wait: float | None = _setting(
        "node.wait",
        _some_seconds,
        None,
        "A run that can do nothing for so long, because no node comes or a restore stands still, ends; the next start "
        "continues it. None: it waits, and reports every 15 s what it waits for.",
    )
    node_domains: tuple[tuple[str, str], ...] = _setting(
        "node.domains",
        _pairs("DOMAIN"),
        (),
        "Failure domain (rack, zone) of each host: HOST=DOMAIN,…; fragments of a snapshot are kept apart by it. None: "
        "what Spark's topology mapper knows.",
    )
    node_topology_script: str | None = _setting(
        "node.topologyScript",
        _text,
        None,
        "Script on the driver that prints the failure domain of the host it is called with, as Hadoop's do.",
    )
    replicas_budget: str | None = _setting(
        "replicas.budget",
        _budget,
        None,
        "Partitions that run a second time on another node: a count (`12`), a share (`0.5`), or `4 cores`. None: none.",
    )
    replicas_partitions: tuple[str, ...] = _setting(
        "replicas.partitions",
        _names,
        (),
        "Partitions with a replica, by name: `speeds[0],jams` (an operator: all of its), beside those of the budget.",
    )
    replicas_algorithm: str = _setting(
        "replicas.algorithm",
        _one_of(*ReplicaAlgorithm),
        "structure-aware",
        f"Who chooses within the budget: {', '.join(ReplicaAlgorithm)}.",
    )
    replicas_lag: int = _setting(
        "replicas.lag",
        _whole(0),
        16,
        "Batches that a slow replica may hold outboxes back behind the checkpoint; beyond, it is built again.",
    )
    replicas_adapt_seconds: float = _setting(
        "replicas.adaptSeconds",
        _seconds,
        60.0,
        "How often a run compares its replica plan with measured rates, while nothing is lost. 0: the plan of the "
        "start stays.",
    )
    replicas_tolerance: float = _setting(
        "replicas.tolerance",
        _share,
        0.10,
        "The replica plan stays while its fidelity is below that of a new plan by no more than this share.",
    )
    replicas_margin: float = _setting(
        "replicas.margin",
        _share,
        0.03,
        "A change of the replica plan must bring its fidelity to within this share of a new plan's; of such changes "
        "the cheapest is made. It must be below replicas.tolerance.",
    )
    replicas_patience: int = _setting(
        "replicas.patience",
        _whole(1),
        3,
        "Comparisons in a row that must find the replica plan below its tolerance before it changes.",
    )
    tentative_outputs: tuple[str, ...] = _setting(
        "tentative.outputs",
        _some_names,
        ("asked",),
        "Outputs that go on, marked tentative, while partitions of their queries are lost: `asked` (those with "
        "`output(tentative=True)`), `all` whose sinks can correct, `none`, or names.",
    )
    tentative_min_fidelity: float = _setting(
        "tentative.minFidelity",
        _share,
        0.0,
        "A query whose predicted fidelity is below this gives no tentative outputs: raise it where a poor answer is "
        "worse than none.",
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
    recovery_waiting_mb: int = _setting(
        "recovery.waitingMb",
        _whole(1),
        1024,
        "MB that the outboxes of all nodes together may hold while queries wait for nodes or are parked. Beyond it, or "
        "beyond a lower recovery.bufferMb, senders drop the blocks kept for those queries; they are regenerated from "
        "the batch log when the queries return. Lower it to save disk; returns then take longer.",
    )
    recovery_buffer_mb: int | None = _setting(
        "recovery.bufferMb",
        _whole(0),
        None,
        "MB that the outboxes of all nodes together may hold while something is lost or parked, before queries pause "
        "whose senders keep blocks for it that cannot be dropped, the least valuable first, another while outboxes "
        "still grow. None: recovery.waitingMb for each executor at the start, four times that at least. 0: no limit.",
    )
    errors_retries: int = _setting(
        "errors.retries",
        _whole(0),
        3,
        "How often a batch that an operator or a sink fails on is tried again before its queries are parked.",
    )
    errors_backoff: float = _setting(
        "errors.backoff",
        _seconds,
        1.0,
        "How long before a batch that failed is tried again; before each further time twice as long, up to a minute.",
    )
    errors_sink_seconds: float = _setting(
        "errors.sinkSeconds",
        _some_seconds,
        120.0,
        "A sink that has not returned for so long parks the queries of its output; it is not called again before it "
        "has. Longer than the slowest commit of a healthy sink, and 60 or more for Kafka, which waits for brokers.",
    )
    errors_quarantine_rows: int = _setting(
        "errors.quarantineRows",
        _whole(1, 10_000),
        100,
        "Rows of one partition and batch that are quarantined at most, where `on_error` says so; with more, its "
        "queries are parked.",
    )
    keep_aside: float = _setting(
        "keep.aside",
        _seconds,
        30 * 86400.0,
        "Late rows and dead letters stay for so long after durable checkpoints cover their batch, by default 30 days. "
        "0: for ever.",
    )
    keep_outputs: float | None = _setting(
        "keep.outputs",
        _some_seconds,
        None,
        "Parquet outputs stay for so long after durable checkpoints cover their batch, then they are deleted. None: "
        "for ever.",
    )
    cycle_batches: int = _setting("cycle.batches", _whole(1), 8, "Most batches that one cycle takes from the log.")
    max_pending_batches: int = _setting(
        "ingest.maxPendingBatches",
        _whole(1),
        100,
        "Micro-batches of a source that live queries may be behind before it is held back.",
    )
    batch_bytes: int = _setting(
        "ingest.batchBytes",
        _byte_count,
        32 << 20,
        "Bytes of one source that one batch takes at most (32m: 32 MiB), of files or of micro-batches, but at least "
        "one micro-batch; more takes memory on nodes.",
    )
    batch_seconds: float = _setting(
        "ingest.batchSeconds",
        _some_seconds,
        1.0,
        "How long a batch of files should take: from the measured rate follows how many bytes the next one takes.",
    )
    max_event_ahead: float = _setting(
        "ingest.maxEventAhead",
        _seconds,
        86400.0,
        "An event that is later than the time at which its batch is logged by more than this does not move the "
        "watermark; such rows are counted and reported (`future-rows`). 0: every event does.",
    )
    idle_after: float = _setting(
        "ingest.idleAfter",
        _seconds,
        0.0,
        "A source, or a partition of a source read in place, without rows for this long, by the times of batches, does "
        "not hold the watermark back; what it brings later may be late. 0: a source always does, and a partition only "
        "while there is something to read.",
    )
    max_batches_ahead: int | None = _setting(
        "ingest.maxBatchesAhead",
        _whole(1),
        None,
        "Batches that are logged ahead of the slowest query that leads at most. None: twice cycle.batches. "
        "Where sources are read in place and the last batch took all they had, at most three.",
    )
    max_batches_behind: int = _setting(
        "ingest.maxBatchesBehind",
        _whole(1),
        1000,
        "Batches that a live query may fall behind the others before sources wait for it: one that is slow, hangs, is "
        "worth less, or catches up after a recovery, counted from where it began to. Lower it to bound the lag of slow "
        "queries; the others then wait for these sooner.",
    )
    page_enabled: str = _setting(
        "page.enabled",
        _one_of("auto", "true", "false"),
        "auto",
        "Whether the driver serves the live page. auto: with an embedded cluster, not with a session that is given.",
    )
    page_host: str = _setting(
        "page.host",
        _text,
        "127.0.0.1",
        "Address that the live page listens at. Other than loopback, everyone who reaches it can read what it shows.",
    )
    page_port: int = _setting(
        "page.port",
        _whole(0, 65535),
        4050,
        "Port of the live page; where it is taken, one of the next is. 0: any free one.",
    )
    plan_adapt: str = _setting(
        "plan.adapt",
        _one_of("true", "false"),
        "true",
        "Whether a run with a joint plan (`auto`, targets, a plan's file) makes the plan again when measurements "
        "drift, and changes it without stopping. A run whose checkpoint intervals or backups are set by hand keeps "
        "its plan.",
    )
    tracing_enabled: str = _setting(
        "tracing.enabled",
        _one_of("true", "false"),
        "false",
        "Whether recoveries become OpenTelemetry spans, by the tracer provider of the driver's process. Needs the "
        "extra otel.",
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
        self.exchange_ports(self.node_processes or 1)
        for key, listens in self.node_addresses:
            try:
                _host(listens)
            except ValueError as bad:
                raise BadInput(
                    f"{key}={listens}: {bad}", field=f"{PREFIX}node.addresses", remedy="write HOST=ADDRESS,…"
                ) from None

    def exchange_ports(self, processes: int) -> Ports:
        """Return the ports that the processes of a node may take."""
        found = self.exchange_port.widened(processes)
        if not found.is_any and len(found) < processes:
            raise BadInput(
                f"{found} leaves no ports for {processes} processes",
                field=f"{PREFIX}exchange.port",
                remedy="each process of a node takes one: give as many, for each executor of a host",
            )
        return found

    def reached_at(self, host: str) -> str:
        """Return where others reach what listens on the node of an executor's host."""
        return dict(self.node_addresses).get(host, host)

    @property
    def measures_costs(self) -> bool:
        """Whether recovery plans with the cores that partitions were measured to use."""
        return self.node_costs == "measured" or (self.node_costs == "auto" and self.node_capacity is None)

    @property
    def wait_seconds(self) -> float:
        """How long a run waits that can do nothing."""
        return math.inf if self.node_wait is None else self.node_wait

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
                meaning = known[key].metadata["help"].rstrip(".")
                raise BadInput(f"{text!r}: {_reason(bad)}", field=key, remedy=f"what it sets: {meaning}") from None
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
    try:
        return _seconds_of(text.strip().lower())
    except ValueError:
        raise ValueError("must be a time such as 10s, 1min or 500ms, or a number of seconds") from None


def _seconds_of(text: str) -> float:
    for unit, size in (
        ("ms", 0.001),
        ("min", 60.0),
        ("us", 1e-6),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
        ("d", 86400),
    ):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * size
    return float(text)


def _reason(error: ValueError) -> str:
    text = str(error)
    return text if text.startswith("must") else "not a number"


def _written(default: object) -> str:
    """Write a default as it would be set."""
    if default is None or default == ():
        return "none"
    if isinstance(default, tuple):
        return ",".join(str(one) for one in default)
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    return str(default)

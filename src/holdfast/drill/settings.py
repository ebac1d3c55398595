"""What a drill is asked to do. Runs anywhere; pure.

All times are seconds. A drill's clock starts when the cluster is up and the first batch is due.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from holdfast.errors import BadInput
from holdfast.planning.replicas.budget import ReplicaBudget

MOST_NODES = 50
AUTO = "auto"
"""The plan that is made from targets."""
VICTIMS = ("primaries", "replicas", "both")
"""What killed nodes have, where they are not drawn."""


class DrillStrategy(StrEnum):
    """How outputs come back; all but the last are Holdfast's own."""

    INCREMENTAL = "incremental"
    OPERATOR_CENTRIC = "operator-centric"
    BLOCKING = "blocking"
    SOURCE_REPLAY = "source-replay"
    BEST_CASE = "best-case"
    STRUCTURED_STREAMING = "structured-streaming"


class DrillFeed(StrEnum):
    """How the input gets into the run."""

    SOURCES = "sources"
    """The run's sources read what arrives, as the application reads them: `hf.files` and `hf.kafka` in place. It
    decides what a batch holds."""
    SPARK = "spark"
    """Spark's file stream reads a file per batch interval, whatever the application reads."""
    KAFKA = "kafka"
    """The sources of a generated scenario read topics in place."""
    BATCHES = "batches"
    """The drill logs one batch per interval itself: batches are the same in every drill."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Replacement nodes come at times drawn between two moments after the failure, all alike."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"uniform:{self.low:g}-{self.high:g}"


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """One drill. `check_settings` says whether it can be done."""

    scenario: str
    strategy: DrillStrategy = DrillStrategy.INCREMENTAL
    seed: int = 1
    nodes: int = 6
    kill: int = 3
    arrivals: tuple[float, ...] | Uniform = Uniform(5.0, 30.0)
    """When replacements are started, seconds after the failure: one for each killed node, or drawn."""
    standby: bool = False
    """Replacements are started before the stream and stand by: they are there at their times exactly."""
    stagger: float = 0.0
    """Seconds between two kills of the first wave; 0: all at once."""
    kill_hosting: tuple[str, ...] = ()
    """Where given, the killed nodes are not drawn: they are those that have these partitions at the failure, in this
    order, `kill` of them."""
    victims: str | None = None
    """What the killed nodes have: `primaries` of partitions with a replica, such `replicas`, or `both` of the same
    partition in turn; partitions in an order drawn by the seed. None: nodes are drawn."""
    freeze: int = 0
    """Nodes that stop answering at the failure, and thaw later."""
    thaw_after: float = 20.0
    second_wave: int = 0
    """Nodes killed while the first failure is being recovered from; they may be ones that have just arrived."""
    kill_driver: bool = False
    """End the driver with `kill -9` during the recovery, and start it again."""
    slow: int = 0
    """Nodes that get only a part of their processor from the failure on."""
    drop_packets: float = 0.0
    """Share of messages to nodes' agents that are lost from the failure until recovery is over."""
    pause_driver: bool = False
    """Freeze the driver, Python and JVM, during the recovery, and let it go on."""
    pause_for: float = 12.0
    """Seconds for which a driver is frozen."""
    take_over: bool = False
    """A second driver takes the run over while the first is frozen; thawed, the first must end by itself."""
    partition: int = 0
    """Nodes that the network cuts off from the driver and from all other nodes."""
    heal_after: float = 15.0
    """Seconds until they are connected again."""
    fill_disk: int = 0
    """Nodes whose disk fills up, so that they fail; they are replaced as killed ones are."""
    corrupt: int = 0
    """Nodes of whose local state and fragments bits are flipped, and of one durable snapshot."""
    decommission: int = 0
    """Nodes whose executors are decommissioned: they are evacuated, and replaced as killed ones are."""
    poison: bool = False
    """An operator of the least valuable query raises on its rows until the cause is removed and it is resumed."""
    poison_for: float = 12.0
    """Seconds until the cause is removed."""
    hang: bool = False
    """An operator of the least valuable query holds its process, with Python's lock, for a while."""
    hang_for: float = 8.0
    kill_broker: bool = False
    """End the Kafka broker of the drill with `kill -9` during the recovery, and start it again with its data."""
    feed: DrillFeed = DrillFeed.SOURCES
    disorder: bool = False
    """Of what is read in place some arrives late, some twice under another name, some files in two steps."""
    batches: int = 90
    rows: int = 400
    batch_seconds: float = 1.0
    """A batch is due every so often; the stream lasts batches x batch_seconds."""
    fail_at: float = 20.0
    """When the first fault comes."""
    checkpoint_every: int = 10
    """Batches from one global checkpoint to the next."""
    capacity: float | None = None
    """What one node can carry, in the unit of partitions' costs; None: so that the start fills 60 % of it."""
    algorithm: str = "best-density"
    input: str | None = None
    """A folder with the rows of every source, recorded by a drill or given by the user; None: they are generated."""
    exchange: str | None = None
    """How nodes exchange blocks, as in spark.holdfast.exchange; None: as that setting has it."""
    replicas: str | None = None
    """Partitions with a replica, as in spark.holdfast.replicas.budget; None: none."""
    plan: str | None = None
    """The file of a plan that the run executes, or auto; None: a checkpoint every so many batches."""
    recovery: tuple[str, ...] = ()
    """With the plan auto, what it must reach: PRIORITY:SECONDS, as `plan auto --recovery` has it."""
    overhead: float | None = None
    """With the plan auto: share of the bandwidth for checkpoints, stored inputs and backups; None: 0.05."""
    tentative: bool = False
    """Whether outputs go on, marked tentative, while partitions are lost."""
    storage: str | None = None
    """A URL of object storage for the run and its outputs; None: the drill's folder."""

    def document(self) -> dict[str, Any]:
        """Return the settings as JSON knows them."""
        found = asdict(self)
        found["strategy"] = str(self.strategy)
        found["feed"] = str(self.feed)
        found["arrivals"] = str(self.arrivals) if isinstance(self.arrivals, Uniform) else list(self.arrivals)
        return found


def read_settings(document: dict[str, Any]) -> DrillSettings:
    """Read what `document` gave."""
    given = {one.name: document[one.name] for one in fields(DrillSettings) if one.name in document}
    given["strategy"] = DrillStrategy(given["strategy"])
    given["feed"] = DrillFeed(given.get("feed", DrillFeed.BATCHES))
    given["arrivals"] = read_arrivals(given["arrivals"])
    for name in ("kill_hosting", "recovery"):
        given[name] = tuple(given.get(name, ()))
    return DrillSettings(**given)


def read_arrivals(given: object) -> tuple[float, ...] | Uniform:
    """Read `10,20,30`, `uniform:10-60` or a list of numbers."""
    remedy = "write seconds after the failure for each killed node, like 10,20,30, or uniform:10-60"
    try:
        if isinstance(given, str) and given.startswith("uniform:"):
            low, _, high = given.removeprefix("uniform:").partition("-")
            span = Uniform(float(low), float(high))
            if not 0 <= span.low <= span.high < math.inf:
                raise ValueError
            return span
        words = [word for word in given.split(",") if word.strip()] if isinstance(given, str) else list(given)  # type: ignore[call-overload]
        times = tuple(float(word) for word in words)
        if any(not 0 <= time < math.inf for time in times):
            raise ValueError
        return times
    except (TypeError, ValueError):
        raise BadInput(f"{given!r} is not a list of times", field="--arrivals", remedy=remedy) from None


def draws_nodes(asked: DrillSettings) -> bool:
    """Whether a drill draws nodes for faults beside the first kills."""
    numbers = (asked.freeze, asked.second_wave, asked.slow, asked.partition, asked.fill_disk)
    return any((*numbers, asked.corrupt, asked.decommission)) or bool(asked.drop_packets)


def check_settings(asked: DrillSettings) -> None:
    """Refuse a drill that cannot be done, with what would be right."""

    def need(holds: bool, field: str, problem: str, remedy: str) -> None:
        if not holds:
            raise BadInput(problem, field=field, remedy=remedy)

    if asked.replicas is not None:
        try:
            ReplicaBudget.parse(asked.replicas)
        except ValueError:
            remedy = "give a whole number, a share from 0.0 to 1.0, or cores like '4 cores'"
            raise BadInput(f"{asked.replicas!r} is not a budget", field="--replicas", remedy=remedy) from None
    need(1 <= asked.nodes <= MOST_NODES, "--nodes", f"{asked.nodes} nodes", f"give 1 to {MOST_NODES}")
    faults = asked.kill + asked.freeze
    need(
        asked.kill >= 0 and asked.freeze >= 0 and faults <= asked.nodes,
        "--kill",
        f"{asked.kill} killed and {asked.freeze} frozen of {asked.nodes} nodes",
        "together at most as many as there are",
    )
    if isinstance(asked.arrivals, tuple):
        need(
            len(asked.arrivals) == asked.kill,
            "--arrivals",
            f"{len(asked.arrivals)} times for {asked.kill} killed nodes",
            "give one time for each killed node, or uniform:LOW-HIGH",
        )
    survivors = asked.nodes - asked.kill - asked.freeze
    need(
        0 <= asked.second_wave <= survivors + asked.kill,
        "--second-wave",
        f"{asked.second_wave} nodes, of {survivors} that survive and {asked.kill} that replace the killed",
        "give fewer",
    )
    need(
        0 <= asked.slow <= max(0, survivors),
        "--slow",
        f"{asked.slow} slow nodes of {survivors} that survive",
        "give fewer",
    )
    chosen = {name: getattr(asked, name) for name in ("partition", "fill_disk", "corrupt", "decommission")}
    for name, count in chosen.items():
        option = f"--{name.replace('_', '-')}"
        need(count >= 0, option, f"{count} nodes", "give 0 or more")
        need(
            not count or asked.slow + sum(chosen.values()) <= survivors,
            option,
            f"{asked.slow + sum(chosen.values())} nodes with faults of their own of {survivors} that are neither "
            "killed nor frozen",
            "give fewer, or lower --kill",
        )
    need(
        not (asked.pause_driver and asked.kill_driver),
        "--pause-driver",
        "one driver cannot be killed and frozen",
        "leave out --kill-driver",
    )
    need(asked.pause_driver or not asked.take_over, "--take-over", "there is no frozen driver", "give --pause-driver")
    for option, times in (
        ("--pause-for", asked.pause_for),
        ("--heal-after", asked.heal_after),
        ("--poison-for", asked.poison_for),
        ("--hang-for", asked.hang_for),
    ):
        need(0 < times < math.inf, option, f"{times:g} s", "give more than 0")
    ours = asked.strategy is not DrillStrategy.STRUCTURED_STREAMING
    need(
        asked.plan is None or (ours and asked.feed is not DrillFeed.BATCHES),
        "--plan",
        "only a run that reads its sources executes a plan",
        "leave out --feed batches, and the strategy structured-streaming",
    )
    need(
        asked.plan == AUTO or not (asked.recovery or asked.overhead is not None),
        "--recovery" if asked.recovery else "--overhead",
        "only the plan auto is made from targets",
        "give --plan auto, or leave it out",
    )
    need(
        asked.feed not in (DrillFeed.KAFKA, DrillFeed.SPARK) or ours,
        "--feed",
        "Spark's own engine reads batches of the drill",
        "leave it out, or the strategy",
    )
    need(
        not asked.disorder or (ours and asked.feed in (DrillFeed.SOURCES, DrillFeed.KAFKA)),
        "--disorder",
        "only what is read in place may arrive in any order",
        "leave out --feed spark or batches, and the strategy structured-streaming",
    )
    only_ours = ("pause_driver", "partition", "fill_disk", "corrupt", "decommission", "poison", "hang")
    for name in only_ours:
        need(
            ours or not getattr(asked, name),
            f"--{name.replace('_', '-')}",
            "Spark's own engine has no such fault here",
            "leave it out, or the strategy",
        )
    need(
        not asked.decommission or asked.exchange != "shuffle",
        "--decommission",
        "nodes are evacuated by tasks that stay",
        "leave out --exchange shuffle",
    )
    need(
        not asked.tentative or (asked.exchange != "shuffle" and ours and asked.strategy != DrillStrategy.SOURCE_REPLAY),
        "--tentative",
        "tentative outputs need tasks that stay, and partitions that stay where they are",
        "leave out --exchange shuffle, and the strategies source-replay and structured-streaming",
    )
    need(0 <= asked.drop_packets < 1, "--drop-packets", f"{asked.drop_packets:g}", "give a share from 0 to below 1")
    need(
        not asked.kill_hosting or not draws_nodes(asked),
        "kill_hosting",
        "other nodes' faults are drawn, and these are not",
        "leave out freezing, slowing, dropping, a second wave, and whatever else breaks nodes",
    )
    need(
        asked.victims is None or asked.victims in VICTIMS,
        "--victims",
        f"{asked.victims!r} is none of {', '.join(VICTIMS)}",
        f"give one of {', '.join(VICTIMS)}",
    )
    need(
        asked.victims is None or asked.replicas is not None,
        "--victims",
        "no partition has a replica",
        "give --replicas too",
    )
    need(
        asked.victims is None or not draws_nodes(asked),
        "--victims",
        "other nodes' faults are drawn, and these are not",
        "leave out --victims, or whatever else breaks nodes",
    )
    need(
        asked.victims is None or (asked.kill > 0 and not (asked.victims == "both" and asked.kill % 2)),
        "--victims",
        f"{asked.kill} nodes are killed",
        "give --kill 1 or more; for both an even number: a primary's node and its replica's in turn",
    )
    need(asked.stagger >= 0, "--stagger", f"{asked.stagger:g} s", "give 0 or more")
    need(asked.fail_at >= 0, "--fail-at", f"{asked.fail_at:g} s", "give 0 or more")
    need(asked.batch_seconds > 0, "--batch-seconds", f"{asked.batch_seconds:g} s", "give more than 0")
    need(asked.capacity is None or asked.capacity > 0, "--capacity", f"{asked.capacity}", "give more than 0")
    need(
        asked.fail_at < asked.batches * asked.batch_seconds,
        "--batches",
        f"the stream lasts {asked.batches * asked.batch_seconds:g} s and the failure comes at {asked.fail_at:g} s",
        "give more batches, or an earlier --fail-at",
    )

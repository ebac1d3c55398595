"""What happens when in a drill: every fault with its time and its node, all from the seed. Runs anywhere; pure.

Nodes are named as the embedded cluster names them: node-1 … in the order they are started, so a replacement that has
not been started yet has its name already, and a second wave can end it soon after it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.drill.settings import DrillSettings, DrillStrategy, Uniform
from holdfast.ids import NodeId
from holdfast.topology.draws import Draws

SLOW_SHARE = 0.3
"""What a slow node gets of its processor."""
DRIVER_AWAY = 2.0
"""Seconds from the driver's end to its next start."""
BROKER_AWAY = 5.0
"""Seconds from the end of the Kafka broker to its next start."""
TAKEN_OVER_AFTER = 1.0
"""Seconds from the moment a driver is frozen to the start of the one that takes over."""
SETTLED = 8.0
"""Seconds after its start in which a new node is not yet part of the cluster: a second wave spares it so long."""


class FaultKind(StrEnum):
    """What the drill does to the cluster."""

    KILL = "kill"
    FREEZE = "freeze"
    THAW = "thaw"
    SLOW = "slow"
    FULL_SPEED = "full-speed"
    DROP_PACKETS = "drop-packets"
    DELIVER_PACKETS = "deliver-packets"
    KILL_DRIVER = "kill-driver"
    START_DRIVER = "start-driver"
    ADD_NODE = "add-node"
    PAUSE_DRIVER = "pause-driver"
    TAKE_OVER = "take-over"
    THAW_DRIVER = "thaw-driver"
    PARTITION = "partition"
    HEAL = "heal"
    FILL_DISK = "fill-disk"
    CORRUPT = "corrupt"
    DECOMMISSION = "decommission"
    POISON = "poison"
    CURE = "cure"
    HANG = "hang"
    KILL_BROKER = "kill-broker"
    START_BROKER = "start-broker"


HARMFUL = frozenset(
    {
        FaultKind.KILL,
        FaultKind.FREEZE,
        FaultKind.SLOW,
        FaultKind.DROP_PACKETS,
        FaultKind.KILL_DRIVER,
        FaultKind.TAKE_OVER,
        FaultKind.PARTITION,
        FaultKind.FILL_DISK,
    }
)


class Role(StrEnum):
    """What a kill is aimed at."""

    ANY = "any"
    """A node that has a partition, whether or not that has a replica."""
    PRIMARY = "primary"
    REPLICA = "replica"
    ITS_REPLICA = "its-replica"
    """The replica of the partition whose primary the kill before has hit."""


ROLES: Mapping[str, tuple[Role, ...]] = {
    "primaries": (Role.PRIMARY,),
    "replicas": (Role.REPLICA,),
    "both": (Role.PRIMARY, Role.ITS_REPLICA),
}
"""By `--victims`: the roles of kills, in turn."""


def role_of(victims: str | None, number: int) -> Role:
    """Return what the kill of this number is aimed at."""
    turn = ROLES.get(victims or "", (Role.ANY,))
    return turn[number % len(turn)]


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing done at one time, to one node (or to none: the driver)."""

    at: float
    kind: FaultKind
    node: NodeId | None = None
    value: float | None = None
    """Of `slow`: the share of the processor left; of `drop-packets`: the share lost; of `hang`: seconds."""
    hosting: tuple[str, ...] = ()
    """Where no node is named: the first node alive that has one of these partitions, in this order."""
    role: Role = Role.ANY
    """What of the partition it has."""


def make_schedule(asked: DrillSettings) -> tuple[Fault, ...]:
    """Lay out all faults of a drill in the order of their times; the same settings give the same faults."""
    draws = Draws(asked.seed)
    names = [NodeId(f"node-{number}") for number in range(1, asked.nodes + 1)]
    chosen = draws.branch("nodes").sample(names, len(names))
    killed, frozen = chosen[: asked.kill], chosen[asked.kill : asked.kill + asked.freeze]
    survivors = chosen[asked.kill + asked.freeze :]
    began = asked.fail_at
    faults = [
        Fault(at, FaultKind.KILL, None, None, asked.kill_hosting, role_of(asked.victims, number))
        if asked.kill_hosting
        else Fault(at, FaultKind.KILL, node)
        for number, node in enumerate(killed)
        for at in (round(began + number * asked.stagger, 3),)
    ]
    faults += [Fault(began, FaultKind.FREEZE, node) for node in frozen]
    faults += [Fault(round(began + asked.thaw_after, 3), FaultKind.THAW, node) for node in frozen]
    offsets = _arrivals(asked, draws.branch("arrivals"), asked.kill)
    added = [Fault(round(began + offset, 3), FaultKind.ADD_NODE) for offset in offsets]
    # Recovery is under way from the failure until the last replacement has come, at least for a while.
    ends = [asked.thaw_after if frozen else 0.0, asked.heal_after if asked.partition else 0.0]
    until = began + max([*offsets, *ends, 6.0])
    alone = _chosen(asked, survivors)
    reserved = {node for nodes in alone.values() for node in nodes}
    if asked.second_wave:
        at = round(draws.branch("second wave").real(began + 0.3 * (until - began), began + 0.8 * (until - began)), 3)
        come = sorted(one.at for one in added)
        arrived = [
            NodeId(f"node-{asked.nodes + number}") for number, when in enumerate(come, 1) if when + SETTLED <= at
        ]
        there = [*(node for node in survivors if node not in reserved), *arrived]
        victims = draws.branch("second victims").sample(there, min(asked.second_wave, len(there)))
        faults += [Fault(at, FaultKind.KILL, node) for node in victims]
        again = _arrivals(asked, draws.branch("second arrivals"), len(victims))
        added += [Fault(round(at + offset, 3), FaultKind.ADD_NODE) for offset in again]
        survivors = [node for node in survivors if node not in victims]
    full = _arrivals(asked, draws.branch("arrivals for full disks"), len(alone[FaultKind.FILL_DISK]))
    leaving = _arrivals(asked, draws.branch("arrivals for leaving nodes"), len(alone[FaultKind.DECOMMISSION]))
    added += [Fault(round(began + offset, 3), FaultKind.ADD_NODE) for offset in (*full, *leaving)]
    faults += [
        Fault(one.at, one.kind, NodeId(f"node-{asked.nodes + number}"))
        for number, one in enumerate(sorted(added), start=1)
    ]
    if asked.kill_driver:
        at = round(draws.branch("driver").real(began + 0.2 * (until - began), began + 0.8 * (until - began)), 3)
        faults += [Fault(at, FaultKind.KILL_DRIVER), Fault(round(at + DRIVER_AWAY, 3), FaultKind.START_DRIVER)]
    if asked.pause_driver:
        at = round(draws.branch("pause").real(began, began + 0.5 * (until - began)), 3)
        faults += [Fault(at, FaultKind.PAUSE_DRIVER), Fault(round(at + asked.pause_for, 3), FaultKind.THAW_DRIVER)]
        if asked.take_over:
            faults.append(Fault(round(at + min(TAKEN_OVER_AFTER, asked.pause_for / 2), 3), FaultKind.TAKE_OVER))
    if asked.kill_broker:
        at = round(draws.branch("broker").real(began, began + 0.5 * (until - began)), 3)
        faults += [Fault(at, FaultKind.KILL_BROKER), Fault(round(at + BROKER_AWAY, 3), FaultKind.START_BROKER)]
    faults += [Fault(began, kind, node) for kind, nodes in alone.items() for node in nodes]
    faults += [Fault(round(began + asked.heal_after, 3), FaultKind.HEAL, node) for node in alone[FaultKind.PARTITION]]
    if asked.poison:
        faults += [Fault(began, FaultKind.POISON), Fault(round(began + asked.poison_for, 3), FaultKind.CURE)]
    if asked.hang:
        faults.append(Fault(began, FaultKind.HANG, None, asked.hang_for))
    for node in [node for node in survivors if node not in reserved][: asked.slow]:
        faults += [Fault(began, FaultKind.SLOW, node, SLOW_SHARE), Fault(until, FaultKind.FULL_SPEED, node)]
    if asked.drop_packets:
        for node in survivors:
            faults += [
                Fault(began, FaultKind.DROP_PACKETS, node, asked.drop_packets),
                Fault(until, FaultKind.DELIVER_PACKETS, node),
            ]
    return tuple(sorted(faults, key=lambda one: (one.at, one.kind, one.node or "")))


def left_out(asked: DrillSettings, schedule: Sequence[Fault]) -> str | None:
    """Say which faults were asked for and have no place in the schedule; None: all have one.

    A second wave needs nodes that are there at its moment, and slow nodes ones that it has not killed.
    """
    there = Counter(one.kind for one in schedule)
    wanted = {
        FaultKind.KILL: (asked.kill + asked.second_wave, "kills (with the second wave)"),
        FaultKind.SLOW: (asked.slow, "slow nodes"),
        FaultKind.DROP_PACKETS: (int(asked.drop_packets > 0), "nodes that lose messages"),
    }
    for kind, (count, words) in wanted.items():
        if there[kind] < count:
            return f"only {there[kind]} of {count} {words} had a node that was there"
    return None


def _chosen(asked: DrillSettings, survivors: list[NodeId]) -> dict[FaultKind, list[NodeId]]:
    """Choose nodes for faults of one node each, from the end of those that are neither killed nor frozen."""
    left = list(survivors)
    wanted = {
        FaultKind.PARTITION: asked.partition,
        FaultKind.FILL_DISK: asked.fill_disk,
        FaultKind.CORRUPT: asked.corrupt,
        FaultKind.DECOMMISSION: asked.decommission,
    }
    return {kind: [left.pop() for _ in range(count) if left] for kind, count in wanted.items()}


def _arrivals(asked: DrillSettings, draws: Draws, count: int) -> list[float]:
    """Return when replacements are started after their failure; a second wave goes round a given list again."""
    if isinstance(asked.arrivals, Uniform):
        offsets = sorted(draws.real(asked.arrivals.low, asked.arrivals.high) for _ in range(count))
    else:
        offsets = sorted(asked.arrivals[number % len(asked.arrivals)] for number in range(count) if asked.arrivals)
    if asked.strategy is DrillStrategy.BEST_CASE and offsets:
        return [max(offsets) / 2] * len(offsets)  # the paper's BestCase: all at half of the last arrival
    return offsets

"""What a drill's faults took, and when the run noticed: losses of partitions, silent and dead nodes. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.drill.history import Event
from holdfast.drill.schedule import FaultKind

LOST = "lost"
"""The state of a partition that runs nowhere."""
TAKES_EVERYTHING = frozenset({FaultKind.KILL_DRIVER, FaultKind.TAKE_OVER})
"""The faults after which a driver begins anew with every partition."""
TAKES_PARTITIONS = TAKES_EVERYTHING | {FaultKind.KILL, FaultKind.FREEZE, FaultKind.PARTITION, FaultKind.FILL_DISK}
"""The faults that take partitions; others only slow them.

Not a decommission: partitions run until they have moved. What is lost with its node all the same is down from then on,
and the check `evacuated` names it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A partition that was lost: by the fault at `at`, noticed at `seen`, restored at `back` (None: never)."""

    partition: str
    at: float
    seen: float
    back: float | None


@dataclass(frozen=True, slots=True)
class Detection:
    """How long it took to notice what a fault did to a node; None where it was not noticed (a frozen node may thaw)."""

    what: str
    node: str
    at: float
    after: float | None


def find_losses(history: Sequence[Event], partitions: Iterable[str]) -> list[Loss]:
    """Find every loss of a partition: which fault took it, when that was noticed, when it was restored.

    A loss is known from the driver's event that the partition is lost; the fault is the last one, before that, on the
    node it was on. The end of the driver takes every partition. In a history without any restore (Structured
    Streaming has none) a query is back with its next output.
    """
    host_of = _hosts(history)
    where: dict[str, str] = {}
    faults: dict[str, float] = {}
    last: float | None = None
    found: list[Loss] = []
    restored: dict[str, list[float]] = {}
    for event in history:
        if event.kind == "restored":
            restored.setdefault(str(event.fields["partition"]), []).append(event.at)
    everything = sorted(set(partitions))

    def add(partition: str, at: float, seen: float) -> None:
        times = restored.get(partition, [])
        place = bisect.bisect_left(times, seen)
        back = times[place] if place < len(times) else None if restored else seen
        found.append(Loss(partition, at, seen, back))

    for event in history:
        given = event.fields
        if event.kind == "fault" and given["what"] in TAKES_PARTITIONS:
            last = event.at
            if given["what"] in TAKES_EVERYTHING:
                for partition in everything:
                    add(partition, event.at, event.at)
            elif given.get("node") is not None:
                faults[host_of.get(str(given["node"]), str(given["node"]))] = event.at
        elif event.kind == "state" and given["after"] == LOST and given["before"] != LOST:
            partition = str(given["partition"])
            node = str(given.get("node") or where.get(partition, ""))
            # The run names a node by its host and executor; the drill by the order of its start.
            # What no fault of a node took (a process that ended, say) is down from when that was noticed.
            at = next((when for host, when in faults.items() if is_on(host, node)), last)
            add(partition, event.at if at is None else at, event.at)
        else:
            _follow(where, event)
    return found


def find_takeovers(history: Iterable[Event]) -> list[str]:
    """Find the partitions whose replica took over because their node was lost or silent; moves are none of these."""
    gone: set[str] = set()
    found = []
    for event in history:
        if event.kind in {"node-lost", "node-silent"}:
            gone.update(map(str, event.fields["nodes"]))
        elif event.kind == "promoted" and str(event.fields.get("before")) in gone:
            found.append(str(event.fields["partition"]))
    return found


def find_detections(history: Sequence[Event]) -> list[Detection]:
    """Find when the run noticed each node that was killed, frozen, cut off or filled up."""
    host_of = _hosts(history)
    found = []
    for fault in history:
        if fault.kind != "fault" or fault.fields["what"] not in TAKES_PARTITIONS - TAKES_EVERYTHING:
            continue
        node = str(fault.fields["node"])
        seen = next(
            (
                event.at - fault.at
                for event in history
                if event.kind in {"node-lost", "node-silent"}
                and event.at >= fault.at
                and any(is_on(host_of.get(node, node), str(name)) for name in event.fields["nodes"])
            ),
            None,
        )
        found.append(Detection(str(fault.fields["what"]), node, fault.at, seen))
    return found


def placement_of(history: Iterable[Event]) -> dict[str, str]:
    """Return where each partition is after these events, as the run names its nodes."""
    where: dict[str, str] = {}
    for event in history:
        _follow(where, event)
    return where


def is_on(host: str, node: str) -> bool:
    """Say whether a node of the run (`127.0.0.3-1`: host and executor) is on this host."""
    return node == host or node.startswith(f"{host}-")


def _hosts(history: Iterable[Event]) -> dict[str, str]:
    """Return the host of each node that the drill started."""
    return {
        str(event.fields["node"]): str(event.fields["host"])
        for event in history
        if event.kind == "node-started" and "host" in event.fields
    }


def _follow(where: dict[str, str], event: Event) -> None:
    """Note where an event puts partitions."""
    if event.kind in {"placed", "planned"}:
        where.update({str(name): str(node) for name, node in event.fields.get("placement", {}).items()})
    elif event.kind in {"restored", "restoring", "promoted"} and event.fields.get("node") is not None:
        where[str(event.fields["partition"])] = str(event.fields["node"])

"""Which node a kill hits that is aimed at what a node has: a partition, or its replica. Runs beside the cluster; pure.

A kill names partitions in an order that comes from the seed. Where it is aimed at roles, partitions whose replica is
level count, with their primary and their replica on nodes that are alive: only there a replica can take over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.drill.history import Event
from holdfast.drill.losses import is_on, placement_of
from holdfast.drill.schedule import Role
from holdfast.ids import NodeId


class Victims:
    """Chooses nodes, one kill after the other."""

    def __init__(self) -> None:
        self._its_replica: str | None = None
        """Where the replica was of the partition whose primary was hit last."""

    def choose(
        self, order: Iterable[str], role: Role, history: Iterable[Event], alive: Mapping[NodeId, str]
    ) -> NodeId | None:
        """Return the node to hit, of those that are alive with their hosts; None: there is none."""
        events = list(history)
        where, copies = placement_of(events), replicas_of(events)

        def node(place: str | None) -> NodeId | None:
            return next((name for name, host in alive.items() if place is not None and is_on(host, place)), None)

        if role is Role.ITS_REPLICA:
            place, self._its_replica = self._its_replica, None
            return node(place)
        for partition in order:
            primary, replica = node(where.get(partition)), node(copies.get(partition))
            if role is Role.ANY and primary is not None:
                return primary
            if role is not Role.ANY and primary is not None and replica is not None:
                self._its_replica = copies[partition]
                return primary if role is Role.PRIMARY else replica
        return None


def replicas_of(history: Iterable[Event]) -> dict[str, str]:
    """Return where replicas are that are level with their primaries, as the run names its nodes."""
    found: dict[str, str] = {}
    for event in history:
        if event.kind == "replica-level":
            found[str(event.fields["partition"])] = str(event.fields["node"])
        elif event.kind in {"replica-dropped", "replica-building", "promoted"}:
            found.pop(str(event.fields["partition"]), None)
    return found

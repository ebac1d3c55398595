"""That partitions of nodes which will go get copies elsewhere, whatever else is lost meanwhile. Runs anywhere.

After a turn of the driver, a partition that has to leave its node has a copy, or something keeps it from one: what it
would need is not kept, it is not at work, or no other node has room beside what is there and beside those lost
partitions that fit on it. Rooms are counted here anew. Draws nothing.
"""

from __future__ import annotations

from holdfast.ids import NodeId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.copies import costs, inputs_kept, needs
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.states import AT_WORK_STATES
from holdfast_lab.simulation.recovery.checks import Violation

MOST_TURNS = 3
"""Turns in a row in which nothing keeps a partition from a copy, and it has none."""


class LeavingWatch:
    """Looks after every turn in which a cycle has ended."""

    def __init__(self) -> None:
        self._machine: RecoveryMachine | None = None
        self._turns: dict[PartitionId, int] = {}

    def look(self, machine: RecoveryMachine) -> Violation | None:
        """Return what is wrong with a driver's evacuations."""
        if machine is not self._machine:
            self._machine, self._turns = machine, {}
        state = machine.state
        waiting = [p for p, node in state.placement.items() if node in state.copies.leaving and _could(machine, p)]
        room = _room(state)
        cost = costs(state)
        fit = [p for p in waiting if any(left >= cost[p] + 1e-6 for left in room.values())]
        self._turns = {p: self._turns.get(p, 0) + 1 for p in fit}
        late = [p for p, turns in self._turns.items() if turns > MOST_TURNS]
        if not late:
            return None
        node = state.partitions[late[0]].node
        return Violation(f"{node} will go, and {late[0]} gets no copy though another node has room", tuple(late))


def _could(machine: RecoveryMachine, partition: PartitionId) -> bool:
    state = machine.state
    if not state.settings.promotes or not state.graph.deterministic(partition) or partition in state.copies.at:
        return False
    if state.partitions[partition].state not in AT_WORK_STATES or not state.copies.is_due(partition, state.logged):
        return False
    start, outbox_from = machine._copies._reach(partition)
    return inputs_kept(state, partition, start) and outbox_from <= min(needs(state, partition), default=outbox_from)


def _room(state: ClusterState) -> dict[NodeId, float]:
    """Return the room of nodes that stay, beside what is on them and beside all lost partitions that fit there."""
    cost = costs(state)
    found = {}
    for node, capacity in state.nodes.items():
        if node in state.copies.leaving:
            continue
        here = [
            cost[p] for placed in (state.placement, state.copies.placement) for p, at in placed.items() if at == node
        ]
        left = state.settings.bound * capacity - sum(here)
        found[node] = left - sum(cost[p] for p in state.lost if cost[p] <= left)
    return found

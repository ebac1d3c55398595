"""What becomes of tentative outputs as events come: queries go tentative, are corrected, or give it up. Pure.

The recovery machine has one of these and calls it after every event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.branches import Branch, TentativeQuery, branch_of, gone_of
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import BranchChanged, BranchEnded, Changed, Corrected, Effect, WentTentative
from holdfast.recovery.states import LIVE_STATES, Cause, PartitionState

_LEAVING = frozenset({Cause.NODE_LOST, Cause.STATE_MISSING, Cause.RESTORE_FAILED, Cause.ROLLED_BACK, Cause.PLACED})


class BranchLifecycle:
    """See the module."""

    def __init__(self, state: ClusterState, emit: Callable[[Effect], None], new_epoch: Callable[[str], None]) -> None:
        self._state, self._emit, self._new_epoch = state, emit, new_epoch
        self._seen: object = None
        self._epoch = state.epoch

    def settle(self, effects: Sequence[Effect]) -> None:
        """After an event: see who is away, which branch should run, and what is corrected."""
        state, branches = self._state, self._state.branches
        if not state.settings.tentative and not branches.at and not branches.chosen:
            return
        for one in effects:
            if isinstance(one, Changed) and one.cause in _LEAVING:
                branches.away.add(one.partition)
        branches.away -= {p for p in branches.away if self._is_back(p)}
        if not branches.away and all(one.state in LIVE_STATES for one in state.partitions.values()):
            branches.failed.clear()  # the outage is over: the next one begins anew
        self._begin_anew()
        seen = (
            state.epoch,
            frozenset(branches.away),
            tuple((s in LIVE_STATES, s is PartitionState.LOST) for s in (p.state for p in state.partitions.values())),
            frozenset(state.nodes),
            frozenset(state.copies.leaving),
            frozenset(state.dropped),
            frozenset(state.parked),
            frozenset(branches.failed),
            tuple(branches.chosen.items()),
            id(branches.rates),
        )
        if seen != self._seen:
            self._seen = seen
            gone = gone_of(state)
            branches.whole |= {q for q in state.graph.outputs if gone.isdisjoint(state.graph.members(q))}
            self._change(branch_of(state))
            branches.lacked.update(branches.now.holes)
        self._corrected()

    def _begin_anew(self) -> None:
        """Forget what members lacked in an earlier epoch; begin one where they lack what is back, once for all of it.

        While others are on their way back, the branch goes on: its fidelity counts what it lacks.
        """
        state, branches = self._state, self._state.branches
        if self._epoch != state.epoch:
            branches.lacked.clear()
        elif branches.now.queries and branches.lacked:
            gone = gone_of(state)
            back = [p for p in state.graph.order if p in branches.lacked and p not in gone]
            needed = gone.intersection(p for query in branches.now.queries for p in state.graph.members(query))
            if back and needed and all(state.partitions[p].state is PartitionState.LOST for p in needed):
                self._new_epoch(f"tentative outputs begin anew with {', '.join(map(str, back))}")
                branches.lacked.clear()
        self._epoch = state.epoch

    def choose(self, queries: Sequence[PartitionId], *, on: bool) -> None:
        """Let queries give tentative outputs from now on, or none. Partitions that are behind now count as away."""
        state, branches = self._state, self._state.branches
        if not state.settings.tentative and not branches.at and not branches.chosen:
            branches.away |= {p for p in state.graph.order if not self._is_back(p)}
        branches.chosen.update(dict.fromkeys(queries, on))
        if on:
            for query in queries:
                branches.failed.pop(query, None)
                if any(state.partitions[p].state in LIVE_STATES for p in state.graph.members(query)):
                    branches.whole.add(query)  # a choice in an outage holds at once

    def _is_back(self, partition: PartitionId) -> bool:
        """Whether a partition is live, and about where its senders are, or the log."""
        state, mine = self._state, self._state.partitions[partition]
        if mine.state not in LIVE_STATES:
            return False
        senders = [state.partitions[one].frontier for one in state.graph.senders(partition)]
        return mine.frontier >= min(senders, default=state.logged) - state.settings.level_lag

    def published(self, batches: Mapping[PartitionId, BatchId]) -> None:
        """Tentative rows of these queries are out, up to these batches."""
        for query, batch in batches.items():
            if (one := self._state.branches.at.get(query)) is not None:
                one.through = max(one.through, batch)

    def inherited(self, through: BatchId) -> None:
        """No earlier driver can log a batch any more: the last one that they have is this."""
        for one in self._state.branches.at.values():
            if one.may_grow:
                one.may_grow, one.through = False, max(one.through, through)

    def failed(self, problems: Mapping[PartitionId, str]) -> None:
        """Members of the branch have failed: the queries that need them give no tentative outputs in this outage."""
        branches = self._state.branches
        for partition, why in problems.items():
            for query in branches.now.queries:
                if partition in self._state.graph.members(query):
                    branches.failed.setdefault(query, why)

    def _change(self, branch: Branch) -> None:
        branches = self._state.branches
        before, branches.now = branches.now, branch
        for query, fidelity in branch.queries.items():
            one = branches.at.get(query)
            if one is None:
                since = BatchId(self._state.published[query] + 1)
                one = branches.at[query] = TentativeQuery(since, fidelity, BatchId(since - 1))
                self._emit(WentTentative(query, since, fidelity, branch.holes, branch.stand_ins.get(query)))
            elif not one.active or one.fidelity != fidelity:
                one.active, one.fidelity = True, fidelity
                self._emit(WentTentative(query, one.since, fidelity, branch.holes, branch.stand_ins.get(query)))
        for query in before.queries:
            if query not in branch.queries:
                branches.at[query].active = False
                self._emit(BranchEnded(query, branches.failed.get(query)))
        if (before.members, before.stand_ins) != (branch.members, branch.stand_ins):
            self._emit(BranchChanged(tuple(branch.members)))

    def _corrected(self) -> None:
        """Final rows have replaced all tentative ones of a query whose branch has ended.

        A driver that starts later knows only what is written: what an earlier one may still publish must be known.
        """
        branches, published = self._state.branches, self._state.published
        for query in [q for q, one in branches.at.items() if not one.active]:
            one = branches.at[query]
            if query not in published or (published[query] >= one.through and not one.may_grow):
                del branches.at[query]
                self._emit(Corrected(query, one.since, one.through))

"""Deliberate bugs of tentative outputs, which the simulator must find in runs that have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.recovery import branches
from holdfast.recovery.branches import Branches
from holdfast.recovery.branching import BranchLifecycle
from holdfast.runtime.blocks import Block
from holdfast.runtime.io import parquet_sink
from holdfast.runtime.io.sinks import MemorySink
from holdfast.runtime.messages import CycleResult, NodeReport
from holdfast.runtime.worker.branching import Branching
from holdfast.runtime.worker.host import PartitionHost
from simulation.bugs import Bug, Patch


def tentative_rows_published_as_final(patch: Patch) -> None:
    """Outputs of a branch go the way of all others."""
    right = CycleResult.add

    def add(self: CycleResult, report: NodeReport, *given: Any) -> None:
        right(self, report, *given)
        self.outputs += [block for block in report.outputs if block.header.tentative]

    patch.setattr(CycleResult, "add", add)


def tentative_before_it_is_logged(patch: Patch) -> None:
    """That a query is tentative is not part of the progress."""
    patch.setattr(Branches, "written", lambda self: {})


def corrected_too_early(patch: Patch) -> None:
    """A query counts as corrected when its branch has ended."""

    def corrected(self: BranchLifecycle) -> None:
        at = self._state.branches.at
        for query in [q for q, one in at.items() if not one.active]:
            del at[query]

    patch.setattr(BranchLifecycle, "_corrected", corrected)


def state_mixed(patch: Patch) -> None:
    """A branch goes on in the store of the clean line."""
    right = Branching._empty

    def empty(self: Branching, epoch: Any) -> Any:
        store, host = right(self, epoch)
        host._store = self._clean._store
        return store, host

    def begin(self: Branching, partition: Any) -> Any:
        self.host.take(partition, self._clean.frontier(partition))
        return self._clean.frontier(partition)

    patch.setattr(Branching, "_empty", empty)
    patch.setattr(Branching, "_begin", begin)
    patch.setattr(PartitionHost, "lose", PartitionHost.release)


def clean_line_takes_blocks_of_the_branch(patch: Patch) -> None:
    """Blocks of a branch are delivered to the clean line as well."""
    right = Branching.deliver

    def deliver(self: Branching, blocks: Any) -> None:
        given = list(blocks)
        self._clean.deliver(given)
        right(self, given)

    patch.setattr(Branching, "deliver", deliver)


def branch_passes_for_clean(patch: Patch) -> None:
    """Forged barriers, and blocks to a branch, are not marked."""
    right = PartitionHost.deliver

    def deliver(self: PartitionHost, blocks: Any) -> Any:
        return right(self, [Block(replace(one.header, tentative=False), one.rows, one.rejected) for one in blocks])

    patch.setattr(PartitionHost, "deliver", deliver)


def tentative_rows_shown_in_place_of_final_ones(patch: Patch) -> None:
    """Readers of all versions get the tentative version of a batch where there is one."""
    right = parquet_sink.versions_in

    def versions_in(names: Any) -> Any:
        every = list(names)
        hidden = {name.split("/", 1)[1] for name in every if name.startswith(parquet_sink.TENTATIVE)}
        return right(name for name in every if name not in hidden)

    patch.setattr(parquet_sink, "versions_in", versions_in)
    patch.setattr(
        MemorySink,
        "outputs",
        lambda self, right=MemorySink.outputs: {k: rows for k, rows in right(self).items() if k not in self._tentative},
    )


def rows_of_a_stand_in_count_as_final(patch: Patch) -> None:
    """What a stand-in has published passes for the final output of its partition."""
    right = BranchLifecycle.published

    def published(self: BranchLifecycle, batches: Any) -> None:
        right(self, batches)
        state = self._state
        for query, batch in batches.items():
            if query in state.branches.now.stand_ins:
                state.published[query] = max(state.published[query], batch)

    patch.setattr(BranchLifecycle, "published", published)


def a_stand_in_beside_its_partition(patch: Patch) -> None:
    """A stand-in goes on when its partition has a node again."""
    right = branches.place_stand_ins

    def place(state: Any, queries: Any) -> Any:
        before = state.branches.now.stand_ins
        held = {q: before[q] for q in queries if q in before and before[q] in state.nodes}
        return {**held, **right(state, queries)}

    patch.setattr(branches, "place_stand_ins", place)


BRANCH_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        tentative_rows_published_as_final,
        tentative_before_it_is_logged,
        corrected_too_early,
        state_mixed,
        clean_line_takes_blocks_of_the_branch,
        branch_passes_for_clean,
        tentative_rows_shown_in_place_of_final_ones,
        rows_of_a_stand_in_count_as_final,
        a_stand_in_beside_its_partition,
    )
)

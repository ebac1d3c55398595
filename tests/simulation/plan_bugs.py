"""Deliberate bugs of plans that change while a run goes on. The simulator must find each; see bugs.py."""

from __future__ import annotations

from typing import Any

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery import checkpointing
from holdfast.recovery.checkpoints import Checkpoints
from holdfast.recovery.executed_plan import PlanChange
from holdfast.runtime.coordinator import resumed_state as resumed
from simulation.bugs import Bug, Patch


def plan_takes_effect_at_once(patch: Patch) -> None:
    """A plan takes effect when it is chosen, wherever the checkpoints of its partitions are."""
    patch.setattr(PlanChange, "may_take_effect", lambda self, line: self.next is not None)


def plan_takes_effect_at_an_early_checkpoint(patch: Patch) -> None:
    """A plan takes effect at a checkpoint that partitions were past when it was chosen, whatever they have dropped."""
    right = PlanChange.choose

    def choose(self: PlanChange, plan: Any, frontiers: Any) -> bool:
        found = right(self, plan, frontiers)
        self.after = BatchId(-1)
        return found

    patch.setattr(PlanChange, "choose", choose)
    patch.setattr(checkpointing, "_is_kept", lambda state, plan: True)


def new_edges_kept_from_the_change_on(patch: Patch) -> None:
    """Senders begin to keep what a plan wants kept when it takes effect, and it does without it."""
    patch.setattr(checkpointing, "_is_kept", lambda state, plan: True)
    patch.setattr(PlanChange, "keeps", lambda self, sender, consumer: self.now.keeps(sender, consumer))


def old_edges_dropped_at_the_choice(patch: Patch) -> None:
    """Senders keep what the chosen plan wants kept, and drop what the one in force does."""

    def keeps(self: PlanChange, sender: PartitionId, consumer: PartitionId) -> bool:
        return (self.next or self.now).keeps(sender, consumer)

    patch.setattr(PlanChange, "keeps", keeps)


def chosen_plan_not_logged(patch: Patch) -> None:
    """The progress has the plan in force, and not the one that was chosen."""
    right = PlanChange.written

    def written(self: PlanChange) -> dict[str, Any]:
        return {**right(self), "next": None}

    patch.setattr(PlanChange, "written", written)


def restart_goes_back_to_the_first_plan(patch: Patch) -> None:
    """A driver that starts again executes what its start asked for, whatever plan had taken effect."""
    patch.setattr(resumed, "resumed_plan", lambda given, written, graph: (given, None))


def segments_change_and_their_marks_stay(patch: Patch) -> None:
    """Open marks of the old segments stay, and new segments of the same names take them for theirs."""

    def change_segments(self: Checkpoints, segments: Any) -> Any:
        self.segments = segments
        return {}

    patch.setattr(Checkpoints, "change_segments", change_segments)


PLAN_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        plan_takes_effect_at_once,
        plan_takes_effect_at_an_early_checkpoint,
        new_edges_kept_from_the_change_on,
        old_edges_dropped_at_the_choice,
        chosen_plan_not_logged,
        restart_goes_back_to_the_first_plan,
        segments_change_and_their_marks_stay,
    )
)

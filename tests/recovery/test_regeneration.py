"""What is kept for waiting partitions, in the recovery machine: when it is dropped, and from where it comes again."""

from __future__ import annotations

import math

import pytest

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.cluster_state import ParkedQuery
from holdfast.recovery.effects import GlobalCheckpoint, KeptNoMore, PlanTookEffect, Regenerated, RollBack
from holdfast.recovery.events import (
    PartitionsReported,
    PlanChosen,
    QueriesParked,
    QueriesResumed,
    RestoreFailed,
    StateMissing,
)
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.recovery_line import is_consistent
from holdfast.recovery.regeneration import regenerated, regeneration_problems, regenerators
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.coordinator import regeneration
from holdfast.runtime.coordinator.regeneration import Regenerations
from holdfast.runtime.messages import PartitionAssignment
from recovery.machine_driving import Driven, part, star

WHY = ParkedQuery(part("b"), BatchId(4), "ValueError: thirteen", 100.0, 4)
S, A, B = part("s"), part("a"), part("b")


def waiting(unsure: str = "", bound: float = 100.0, buffers: float = math.inf) -> Driven:
    """Source `s`, queries `a`, `b`, `c`; a durable checkpoint of everything at batch 3; then `b` is parked."""
    settings = RecoverySettings(waiting_bytes=bound, buffer_bytes=buffers)
    driven = Driven(star([3, 1, 2]), settings, unsure=unsure, nodes={"m": 9.0, "n": 9.0})
    driven.cycle(1)
    driven.checkpoint(1, durable=True)
    driven.cycle(3)
    driven.checkpoint(3, durable=True)
    driven.tell(QueriesParked({B: WHY}))
    return driven


def go_on(driven: Driven, batch: int, kept_bytes: int) -> None:
    """Let all but `b` complete batches, and say what outboxes hold."""
    driven.logged = BatchId(batch)
    driven.machine.state.keep_from()
    live = {part(one): BatchId(batch) for one in "sac"}
    out = {part(one): BatchId(batch) for one in "ac"}
    epoch = driven.machine.state.epoch
    driven.tell(PartitionsReported(epoch, BatchId(batch), live, frozenset(live), out, kept_bytes=kept_bytes))


def dropped() -> Driven:
    """`b` is parked at batch 3, the others have a checkpoint at 5, and outboxes are above the bound."""
    driven = waiting()
    go_on(driven, 5, 1000)
    driven.checkpoint(5, without="b")
    go_on(driven, 6, 1000)
    assert driven.of(KeptNoMore) == [KeptNoMore((B,), 1000)]
    return driven


def test_it_is_dropped_above_the_bound_once_a_senders_checkpoint_has_passed() -> None:
    driven = waiting()
    go_on(driven, 5, 1000)
    assert not driven.of(KeptNoMore), "a wait shorter than a checkpoint is replayed from outboxes"
    driven.checkpoint(5, without="b")
    go_on(driven, 6, 100)
    assert not driven.of(KeptNoMore), "that is within the bound"
    assert driven.machine.state.keep_from()[S] == 4
    go_on(driven, 7, 101)
    assert driven.of(KeptNoMore) == [KeptNoMore((B,), 101)]
    assert driven.machine.state.keep_from()[S] == 6, "only what the others would start from"
    assert driven.machine.state.written()["dropped"] == [str(B)]
    go_on(driven, 8, 1000)
    assert not driven.of(KeptNoMore), "once"
    assert regeneration_problems(driven.machine.state) == []


def test_it_is_dropped_before_live_queries_pause_also_where_their_bound_is_the_lower_one() -> None:
    """Paused queries send nothing more: the higher bound would never be reached, and all would wait for people."""
    driven = waiting(bound=1000.0, buffers=100.0)
    go_on(driven, 5, 50)
    driven.checkpoint(5, without="b")
    go_on(driven, 6, 101)
    assert driven.of(KeptNoMore) == [KeptNoMore((B,), 101)]
    assert not driven.machine.state.paused
    go_on(driven, 7, 40)
    assert [driven.state(one) for one in "sabc"] == ["running", "running", "parked", "running"]


def test_what_comes_from_an_operator_that_is_not_deterministic_is_never_dropped() -> None:
    driven = waiting(unsure="s")
    for batch in (5, 7):
        go_on(driven, batch, 1000)
        driven.checkpoint(batch, without="b")
    assert not driven.machine.state.dropped
    assert driven.machine.state.keep_from()[S] == 4


def test_senders_move_their_checkpoints_with_snapshots_that_hold_nothing_for_it() -> None:
    driven = dropped()
    state = driven.machine.state
    go_on(driven, 9, 0)
    driven.checkpoint(9, without="b")
    assert driven.of(GlobalCheckpoint)
    line, reach = state.checkpoints.line, state.checkpoints.outbox_from
    assert [line[part(one)] for one in "sacb"] == [9, 9, 9, 3]
    first = reach(S, BatchId(9))
    assert first is None or first > 4
    assert not is_consistent(state.graph, line, reach)
    assert is_consistent(state.graph, line, reach, state.dropped)


def test_a_returning_partition_gets_the_gap_from_the_durable_checkpoint_and_nobody_rolls_back() -> None:
    driven = dropped()
    state = driven.machine.state
    go_on(driven, 9, 0)
    driven.checkpoint(9, without="b")
    go_on(driven, 10, 0)
    assert regenerators(state) == {}, "while it waits nothing is regenerated"
    kept = state.keep_from()[S]
    driven.tell(QueriesResumed((B,)))
    assert not driven.of(RollBack)
    assert regenerated(state) == {B: {S: BatchId(kept - 1)}}
    assert {p: one and one.batch for p, one in regenerators(state).items()} == {S: 3}
    go_on(driven, 12, 0)
    assert state.keep_from()[S] == kept, "from now on senders keep everything again"
    driven.cycle(12)
    assert regenerated(state) == {}
    driven.checkpoint(12)
    driven.cycle(12)
    assert not state.dropped
    assert state.written()["dropped"] == []


def test_the_loss_of_everything_rolls_nobody_back_for_a_dropped_partition() -> None:
    driven = dropped()
    state = driven.machine.state
    go_on(driven, 9, 0)
    driven.checkpoint(9, without="b")
    node = driven.node("b")
    assert node is not None
    driven.lose(node)
    back = [p for one in driven.of(RollBack) for p in one.partitions]
    assert S not in back
    assert state.partitions[S].frontier == 9


def test_where_the_durable_checkpoint_is_damaged_the_one_before_is_enough() -> None:
    driven = dropped()
    state = driven.machine.state
    go_on(driven, 9, 0)
    driven.checkpoint(9, without="b")
    driven.tell(QueriesResumed((B,)))
    for batch, older in ((3, 1), (1, None)):
        start = regenerators(state)[S]
        assert start is not None
        assert start.batch == batch
        lost = RestoreFailed(S, start.id, state.epoch, "it is damaged", regenerating=True)
        driven.tell(lost)
        assert driven.state("s") == "running", "the live partition has nothing to do with it"
        if older is None:
            with pytest.raises(CheckFailed, match="regenerated from are lost"):
                go_on(driven, 10, 0)
        else:
            go_on(driven, 9, 0)


def regenerating() -> tuple[Driven, SavedSnapshot]:
    """`b` is back, and regenerators of `s` make what was dropped for it; with the snapshot that they start from."""
    driven = dropped()
    go_on(driven, 9, 0)
    driven.checkpoint(9, without="b")
    driven.tell(QueriesResumed((B,)))
    start = regenerators(driven.machine.state)[S]
    assert start is not None
    return driven, start


def test_a_durable_checkpoint_that_regenerators_found_damaged_is_not_the_one_to_fall_back_to() -> None:
    driven, start = regenerating()
    state = driven.machine.state
    assert start.batch == 3
    driven.tell(RestoreFailed(S, start.id, state.epoch, "it is damaged", regenerating=True))
    for batch in (10, 12, 14):
        driven.cycle(batch)
        driven.checkpoint(batch, durable=batch == 14)
    checkpoints = state.checkpoints
    assert checkpoints.durable_batch == 14
    assert state.inputs_from == 1, "the log reaches back to the last one before it that is whole"
    assert all(checkpoints.at(p, BatchId(1)) is not None for p in (S, A, B))
    # Later the last durable checkpoint turns out to be damaged, too.
    node = driven.node("s")
    assert node is not None
    driven.lose(node)
    last = checkpoints.at(S, BatchId(14))
    assert last is not None
    driven.tell(RestoreFailed(S, last.id, state.epoch, "it is damaged"))
    assert set(checkpoints.line.values()) == {1}
    assert {state.partitions[p].start.batch for p in (S, A, B)} == {1}


def test_what_was_said_of_a_regenerator_in_another_epoch_does_not_count() -> None:
    driven, start = regenerating()
    state = driven.machine.state
    driven.tell(RestoreFailed(S, start.id, type(state.epoch)(state.epoch - 1), "late", regenerating=True))
    assert regenerators(state)[S] == start


def test_a_plan_waits_for_a_checkpoint_from_which_on_senders_have_kept_what_it_wants() -> None:
    """At the bound they have dropped more than a checkpoint behind it needs: its promise would not hold."""
    driven = Driven(star([3, 1, 2]), nodes={"m": 9.0, "n": 9.0})
    driven.cycle(3)
    driven.checkpoint(3, durable=True)
    driven.cycle(4)
    driven.tell(PlanChosen(ExecutedPlan(backups=frozenset({S}), number=1)))
    driven.cycle(6)
    driven.machine.state.partitions[S].kept_from = BatchId(7)
    driven.checkpoint(5)
    assert set(driven.machine.state.checkpoints.line.values()) == {5}
    assert not driven.of(PlanTookEffect), "batch 6 is not kept for consumers that start after 5"
    driven.cycle(8)
    driven.checkpoint(8)
    (took,) = driven.of(PlanTookEffect)
    assert took.plan.number == 1  # type: ignore[attr-defined]


def test_it_is_said_when_all_is_kept_again() -> None:
    driven = dropped()
    go_on(driven, 9, 0)
    driven.checkpoint(9, without="b")
    driven.tell(QueriesResumed((B,)))
    seen = []
    for batch in (10, 12, 14):
        driven.cycle(batch)
        seen += driven.of(Regenerated)
        driven.checkpoint(batch)
    driven.cycle(14)
    assert [*seen, *driven.of(Regenerated)] == [Regenerated((B,))]


def test_one_that_is_lost_again_before_its_next_checkpoint_rolls_nobody_back() -> None:
    """Its senders' snapshots hold what it starts from, and their outboxes do not: it is not as all others yet."""
    driven = dropped()
    state = driven.machine.state
    assert state.checkpoints.outbox_from(S, state.checkpoints.line[S]) == 4, "saved before it was dropped"
    driven.cycle(6)
    driven.tell(QueriesResumed((B,)))
    driven.cycle(7)
    assert driven.state("b") == "running"
    assert state.checkpoints.line[B] + 1 < state.partitions[S].kept_from <= state.partitions[B].frontier
    node = state.partitions[B].node
    assert node is not None
    driven.tell(StateMissing(B, node, state.epoch))
    assert not driven.of(RollBack)
    driven.cycle(8)
    driven.checkpoint(8)
    driven.cycle(8)
    assert driven.of(Regenerated) == [Regenerated((B,))]
    driven.tell(StateMissing(B, node, state.epoch))
    assert not driven.of(RollBack)


def test_checksums_begin_where_the_slowest_that_has_reported_is_and_it_is_said_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that begins anew is behind what its partition had reported: it must not read without checksums."""
    monkeypatch.setattr(regeneration, "CHECKED_AHEAD", 2)
    driven = dropped()
    state = driven.machine.state
    go_on(driven, 9, 0)
    driven.checkpoint(9, without="b")
    go_on(driven, 10, 0)
    state.keep_from()
    driven.tell(QueriesResumed((B,)))
    known = {BatchId(number): (number,) for number in range(10)}
    given = Regenerations(state, lambda p, after: tuple(one for one in known.items() if one[0] > after))
    mine = state.partitions[B]
    assert mine.node is not None

    def handed() -> tuple[int, list[int], int]:
        assert mine.node is not None
        assignments = {B: PartitionAssignment(mine.node, mine.start, mine.frontier, mine.kept_from, mine.frontier)}
        one = given.assign(assignments)[S]
        return one.since, [batch for batch, _ in one.checks], one.through

    assert handed() == (3, [4, 5], 5)
    given.took({B: BatchId(6)})
    assert handed() == (6, [7, 8], 8)
    driven.lose(mine.node)
    assert handed()[0] == 6, "what its process had reached stands until the new one has reported"
    given.took({B: BatchId(3)})
    assert handed() == (3, [4, 5], 5)

"""Operators that save between two checkpoints of their segment: where lost partitions and their senders start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.ids import BatchId, Epoch, OperatorId, SegmentId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.effects import Effect, GlobalCheckpoint, IntermediateSnapshots, RollBack
from holdfast.recovery.events import CheckpointGivenUp, CheckpointMarked, CheckpointStored
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.intermediate import kept_between
from holdfast.recovery.segments import Segments, segments_of
from holdfast.recovery.strategy import RecoverySettings
from holdfast.topology import Input, Operator, Partitioning, Topology
from recovery.machine_driving import Driven, chain, part

MULTIPLES = {"a": 4, "b": 2, "c": 1}


def refined(anchors: str, multiples: dict[str, int], letters: str = "abc") -> Segments:
    found = segments_of(chain(letters), anchors)
    return replace(found, multiples={OperatorId(name): multiple for name, multiple in multiples.items()})


def driven(anchors: str = "", multiples: dict[str, int] | None = None, *, unsure: str = "") -> Driven:
    """A chain on one node for each operator, of which all but the last save between two checkpoints."""
    settings = RecoverySettings(segments=refined(anchors, multiples or MULTIPLES))
    return Driven(chain("abc"), settings, unsure=unsure, nodes={f"n{letter}": 1.3 for letter in "abc"})


def save_between(run: Driven, batch: int, operators: str, *, without: str = "") -> list[Effect]:
    """Have operators save at a batch that moves no checkpoint."""
    run.cycle(batch)
    between = frozenset(map(OperatorId, operators))
    run.tell(CheckpointMarked(BatchId(batch), durable=False, segments=frozenset(), between=between))
    found: list[Effect] = []
    for p in run.machine.state.graph.order:
        if BatchId(batch) in run.machine.state.marks_for(p) and str(p.operator) not in without:
            found += run.save(p, batch)
    return found


def starts(run: Driven) -> list[int]:
    return [int(run.machine.state.partitions[part(letter)].start.batch) for letter in "abc"]


def rolled_back(run: Driven) -> list[tuple[str, int]]:
    return [
        ("".join(sorted(str(p.operator) for p in one.partitions)), int(one.batch))
        for one in run.effects
        if isinstance(one, RollBack)
    ]


def test_steps_of_an_interval_and_who_saves_at_them() -> None:
    found = refined("c", {"a": 4, "b": 2, "c": 3})
    assert (found.steps(SegmentId("a")), found.steps(SegmentId("c"))) == (4, 3)
    assert [sorted(found.saving_at(SegmentId("a"), step)) for step in (1, 2, 3)] == [["a"], ["a", "b"], ["a"]]
    one = refined("", {"a": 3, "b": 2, "c": 1})
    assert [sorted(one.saving_at(one.names[0], step)) for step in range(1, 6)] == [[], ["a"], ["b"], ["a"], []]
    assert segments_of(chain("abc"), "").steps(SegmentId("*")) == 1


def test_an_intermediate_snapshot_moves_no_checkpoint() -> None:
    run = driven()
    run.cycle(3)
    run.checkpoint(3)
    found = save_between(run, 5, "ab")
    assert IntermediateSnapshots(BatchId(5), (OperatorId("a"), OperatorId("b"))) in found
    assert not any(isinstance(one, GlobalCheckpoint) for one in found)
    checkpoints = run.machine.state.checkpoints
    assert set(checkpoints.line.values()) == {3}
    assert checkpoints.at(part("a"), BatchId(5)) is not None
    assert checkpoints.at(part("c"), BatchId(5)) is None


def test_a_lost_partition_starts_from_its_own_last_snapshot_and_its_senders_from_theirs_at_that_batch() -> None:
    run = driven()
    run.cycle(3)
    run.checkpoint(3)
    save_between(run, 4, "a")
    save_between(run, 5, "ab")
    save_between(run, 6, "a")
    run.cycle(7)
    run.lose(run.node("b") or "")
    assert rolled_back(run) == [("a", 5)], "a has a later one, which is too late for b"
    assert starts(run)[:2] == [5, 5]
    assert run.machine.state.partitions[part("c")].frontier == 7, "its consumer stays"


def test_what_saves_most_often_loses_least_and_what_saves_least_takes_all_back() -> None:
    for lost, wanted in (("a", [6, None, None]), ("b", [5, 5, None]), ("c", [3, 3, 3])):
        run = driven()
        run.cycle(3)
        run.checkpoint(3)
        save_between(run, 4, "a")
        save_between(run, 5, "ab")
        save_between(run, 6, "a")
        run.cycle(7)
        run.lose(run.node(lost) or "")
        again = [p is not None for p in wanted]
        assert [one for one, moved in zip(starts(run), again, strict=True) if moved] == [
            one for one in wanted if one is not None
        ], lost


def test_a_partition_does_not_start_where_its_consumer_has_not_come_to() -> None:
    run = driven()
    run.cycle(3)
    run.checkpoint(3)
    save_between(run, 5, "ab")
    run.machine.state.partitions[part("b")].frontier = BatchId(4)  # its report of batch 5 has not come
    run.lose(run.node("a") or "")
    assert starts(run)[0] == 3


def test_a_consumer_that_is_lost_later_takes_its_sender_further_back() -> None:
    run = driven()
    run.cycle(3)
    run.checkpoint(3)
    save_between(run, 5, "a")
    run.cycle(7)
    run.lose(run.node("a") or "")
    assert starts(run)[0] == 5
    run.arrive({"m": 1.3})
    assert run.state("a") == "restoring"
    run.lose(run.node("b") or "")
    assert rolled_back(run) == [("a", 3)], "it holds nothing before batch 6, and b starts at 3"


def test_partitions_that_are_not_deterministic_start_from_their_checkpoint() -> None:
    run = driven(multiples={"a": 2, "b": 2, "c": 1}, unsure="bc")
    run.cycle(3)
    run.checkpoint(3)
    save_between(run, 5, "ab")
    assert run.machine.state.checkpoints.at(part("b"), BatchId(5)) is None, "it is not asked to save there"
    run.cycle(7)
    run.lose(run.node("b") or "")
    assert starts(run) == [3, 3, 3]


def test_a_mark_that_a_partition_cannot_save_at_is_given_up() -> None:
    run = driven()
    run.cycle(3)
    run.checkpoint(3)
    save_between(run, 5, "ab", without="b")
    assert run.machine.state.checkpoints.open_marks(run.machine.state.segments.names[0]) == [5]
    run.tell(CheckpointGivenUp(BatchId(5), part("b")))
    assert run.machine.state.checkpoints.open_marks(run.machine.state.segments.names[0]) == []
    run.cycle(7)
    run.checkpoint(7)
    assert set(run.machine.state.checkpoints.line.values()) == {7}


def test_senders_keep_the_snapshots_that_others_start_from_and_no_more() -> None:
    assert kept_between([3, 4, 5, 6], BatchId(3), [BatchId(5), BatchId(3)]) == {5}
    assert kept_between([3, 4, 6], BatchId(3), [BatchId(5)]) == {4}, "the latest that is early enough"
    run = driven()
    run.cycle(3)
    run.checkpoint(3, durable=True)
    for batch, operators in ((4, "a"), (5, "ab"), (6, "a"), (7, "a")):
        save_between(run, batch, operators)
    held = sorted(one.batch for one in run.machine.state.checkpoints.snapshots(part("a")))
    assert held == [3, 5, 7], "its checkpoint, that of b's last snapshot, and its own last"
    run.cycle(9)
    run.checkpoint(9)
    assert sorted(one.batch for one in run.machine.state.checkpoints.snapshots(part("a"))) == [3, 9]


def test_a_plan_with_multiples_is_written_and_read() -> None:
    plan = ExecutedPlan(refined("c", {"a": 4, "b": 2, "c": 1}))
    assert ExecutedPlan.read(plan.written()) == plan
    before = plan.written()
    del before["multiples"]  # of an earlier version
    assert ExecutedPlan.read(before).segments.multiples == {}


# -- found by a review -------------------------------------------------------------------------------------------------


def operator(name: str, sender: str = "", *, priority: int = 0) -> Operator:
    inputs = (Input(OperatorId(sender), Partitioning.ONE_TO_ONE),) if sender else ()
    return Operator(OperatorId(name), 1, inputs, cost=1.0, output=bool(priority), priority=priority or 1)


@pytest.mark.parametrize("saves_between", [False, True])
def test_checkpoints_move_without_a_consumer_that_waits(saves_between: bool) -> None:
    """Its last snapshot was later than where it starts: the checkpoints of its senders stood still with it."""
    queries = [operator("e", "c", priority=1), operator("d", "p", priority=9)]
    topology = Topology("x", [operator("s"), operator("p", "s"), operator("c", "p"), *queries])
    segments = segments_of(topology, "")
    if saves_between:
        multiples = {"s": 4, "p": 4, "c": 4, "e": 2}
        segments = replace(segments, multiples={OperatorId(name): many for name, many in multiples.items()})
    settings = RecoverySettings(segments=segments, incremental_after_losses=1, buffer_bytes=1000, waiting_bytes=500)
    run = Driven(topology, settings, nodes={f"n{number}": 1.3 for number in range(5)})
    run.cycle(3)
    run.checkpoint(3, durable=True)
    if saves_between:
        for batch, operators in ((4, "spc"), (5, "spce"), (6, "spc")):
            save_between(run, batch, operators)
    run.cycle(7)
    run.lose(run.node("p"), run.node("c"), run.node("e"))
    run.arrive({"m": 1.3})
    run.cycle(8)
    for batch in (9, 11, 13):
        run.cycle(batch)
        run.checkpoint(batch)
    state = run.machine.state
    assert state.checkpoints.line[part("p")] == 13
    for batch in (14, 15, 16):
        run.cycle(batch, kept_bytes=1200)
    assert state.dropped
    assert state.partitions[part("p")].kept_from > 10


def test_a_start_is_judged_by_the_version_that_stands_for_its_batch() -> None:
    run = driven()
    run.cycle(3)
    run.checkpoint(3)
    save_between(run, 5, "a")
    run.cycle(7)
    state = run.machine.state
    state.checkpoints.stored(part("a"), SavedSnapshot(BatchId(6), Epoch(3), outbox_from=BatchId(4)))
    state.checkpoints.stored(part("a"), SavedSnapshot(BatchId(6), Epoch(5)))
    state.partitions[part("b")].frontier = BatchId(4)
    run.lose(run.node("a"))
    assert state.partitions[part("a")].kept_from <= 5


def test_a_late_answer_does_not_take_the_start_of_a_lost_partition_back() -> None:
    run = driven(multiples={"a": 4, "b": 2, "c": 1})
    state = run.machine.state
    run.cycle(3)
    run.checkpoint(3)
    save_between(run, 5, "a")
    run.cycle(7)
    state.partitions[part("c")].frontier = BatchId(5)
    run.tell(CheckpointMarked(BatchId(6), durable=True))
    run.tell(CheckpointStored(part("b"), SavedSnapshot(BatchId(6), Epoch(9), outbox_from=BatchId(4))))
    run.lose(run.node("a"), run.node("b"))
    run.arrive({"m": 1.3})
    run.tell(CheckpointStored(part("b"), SavedSnapshot(BatchId(6), Epoch(1), durable=True)))
    run.arrive({"m2": 1.3})
    assert state.partitions[part("a")].kept_from <= state.partitions[part("b")].frontier + 1

"""Segments: which operators they have, what moves their checkpoints, what is kept between them, what rolls back."""

from __future__ import annotations

import pickle
import random

import pytest

from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId, SegmentId
from holdfast.recovery.checkpoints import NOTHING, Checkpoints
from holdfast.recovery.effects import Effect, GlobalCheckpoint, Keep, RecoveryEnded, RollBack
from holdfast.recovery.events import CheckpointGivenUp, CheckpointMarked, PartitionsReported
from holdfast.recovery.recovery_line import is_consistent
from holdfast.recovery.segments import ALL_PARTITIONS, ONE_SEGMENT, Segments, segments_of
from holdfast.recovery.strategy import RecoverySettings
from holdfast.topology import Input, Operator, Partitioning, Topology
from recovery.machine_driving import Driven, chain, part, parts

A, B, C, D = parts("a b c d")


def driven(anchors: str, letters: str = "abcd", *, unsure: str = "") -> Driven:
    """A chain on one node for each operator, with segments that these anchors begin."""
    topology = chain(letters)
    settings = RecoverySettings(segments=segments_of(topology, anchors))
    found = Driven(topology, settings, unsure=unsure, nodes={f"n{letter}": 1.3 for letter in letters})
    assert len({found.node(letter) for letter in letters}) == len(letters)
    return found


def mark(run: Driven, batch: int, segment: str | None, *, durable: bool = False, without: str = "") -> list[Effect]:
    """Mark a batch for a segment, and let its live partitions save there."""
    names = None if segment is None else {SegmentId(segment)}
    run.tell(CheckpointMarked(BatchId(batch), durable, names))
    found: list[Effect] = []
    for p in run.machine.state.graph.order:
        if BatchId(batch) in run.machine.state.marks_for(p) and str(p.operator) not in without:
            found += run.save(p, batch, durable=durable)
    return found


def line(run: Driven) -> list[int]:
    return list(run.machine.state.checkpoints.line.values())


# -- which segments anchors make ---------------------------------------------------------------------------------------


def test_anchors_begin_segments_in_a_chain() -> None:
    found = segments_of(chain("abcd"), "c")
    assert {name: str(one) for name, one in found.operators.items()} == {"a": "a", "b": "a", "c": "c", "d": "c"}
    assert found.many
    assert found.names == ("a", "c")
    assert found.crosses(B, C)
    assert not found.crosses(A, B)
    assert segments_of(chain("abcd"), "").names == (ALL_PARTITIONS,), "one segment is the global checkpoint"
    assert segments_of(chain("abcd"), "abcd").names == ("a", "b", "c", "d")
    with pytest.raises(BadInput, match="'z' is an anchor and no operator of chain"):
        segments_of(chain("abcd"), "z")


def test_an_anchor_whose_segment_another_path_joins_is_in_it_and_still_keeps_its_inputs() -> None:
    def operator(name: str, *inputs: str) -> Operator:
        return Operator(OperatorId(name), 1, tuple(Input(OperatorId(one), Partitioning.ONE_TO_ONE) for one in inputs))

    topology = Topology("diamond", [operator("a"), operator("b", "a"), operator("c", "a"), operator("d", "b", "c")])
    found = segments_of(topology, "b")
    assert not found.many, "d is in the segment of b and of c, and c in that of a"
    assert found.keeps(A, B)
    assert not found.keeps(A, C)
    both = segments_of(topology, "bc")
    assert both.by_name(parts("a b c d")) == {SegmentId("a"): {A}, SegmentId("b"): {B, C, D}}


# -- checkpoints of their own ------------------------------------------------------------------------------------------


def test_a_segment_moves_its_checkpoint_at_its_own_marks() -> None:
    run = driven("c")
    run.cycle(5)
    moved = [one for one in mark(run, 5, "a") if isinstance(one, GlobalCheckpoint)]
    assert [(one.batch, one.segments, one.without) for one in moved] == [(5, ("a",), ())]
    assert line(run) == [5, 5, -1, -1]
    assert run.machine.state.checkpoints.outbox_from(B, BatchId(5)) == 0, "its snapshot holds what c would need"
    assert run.machine.state.checkpoints.outbox_from(A, BatchId(5)) is None, "nothing inside the segment"
    run.cycle(8)
    mark(run, 8, "c")
    assert line(run) == [5, 5, 8, 8], "the one that is behind makes blocks again that the other drops"
    run.cycle(9)
    assert run.machine.state.keep_from()[B] == 9, "trimmed by the checkpoint of c, which is at 8"


def test_a_segment_does_not_save_at_a_mark_of_another() -> None:
    run = driven("c")
    run.tell(CheckpointMarked(BatchId(3), durable=False, segments={SegmentId("a")}))
    run.cycle(3)
    assert run.machine.state.marks_for(A) == (3,)
    assert run.machine.state.marks_for(C) == ()
    run.save(C, 3)
    assert run.machine.state.checkpoints.at(C, BatchId(3)) is None, "nobody asked for it"


def test_outboxes_between_segments_reach_back_to_the_consumers_checkpoint() -> None:
    run = driven("c")
    run.cycle(3)
    mark(run, 3, None)
    run.cycle(6)
    run.cycle(9)
    keep = run.machine.state.keep_from()
    assert keep[B] == 4, "from the checkpoint of c on"
    assert keep[A] == 10, "inside a segment nothing is kept"


def test_what_a_sender_sent_since_its_checkpoint_is_the_unstored_tail() -> None:
    run = driven("c")
    run.cycle(6)
    mark(run, 6, "a")
    run.cycle(9)
    assert run.machine.state.unstored_tail() == {"a": 3}, "c sends to nobody"


def test_a_durable_mark_is_of_all_segments_and_holds_when_the_last_has_come_to_it() -> None:
    run = driven("c")
    checkpoints = run.machine.state.checkpoints
    run.cycle(4)
    mark(run, 4, None, durable=True, without="cd")
    assert line(run) == [4, 4, -1, -1], "a segment does not wait for the other"
    assert checkpoints.durable_batch == NOTHING
    run.cycle(7)
    mark(run, 7, "a")
    assert line(run) == [7, 7, -1, -1]
    assert checkpoints.at(A, BatchId(4)) is not None, "it is part of what may become durable"
    for p in (C, D):
        run.save(p, 4, durable=True)
    assert line(run) == [7, 7, 4, 4]
    assert set(checkpoints.durable_line.values()) == {4}
    assert checkpoints.marks == []
    run.cycle(9)
    mark(run, 9, "a")
    assert checkpoints.at(A, BatchId(4)) is not None, "it is the durable line"
    assert checkpoints.at(A, BatchId(7)) is None, "and this one nobody needs"


def test_a_durable_mark_that_a_segment_cannot_save_is_of_use_to_the_others_and_never_durable() -> None:
    run = driven("c")
    run.tell(CheckpointMarked(BatchId(4), durable=True))
    run.cycle(4)
    run.tell(CheckpointGivenUp(BatchId(4), D))
    for p in (A, B, C):
        run.save(p, 4, durable=True)
    assert line(run) == [4, 4, -1, -1]
    assert run.machine.state.checkpoints.durable_batch == NOTHING
    assert run.machine.state.checkpoints.marks == []
    run.cycle(6)
    mark(run, 6, None, durable=True)
    assert set(run.machine.state.checkpoints.durable_line.values()) == {6}


def test_an_ordered_checkpoint_at_the_batch_of_a_segments_own_is_asked_for_again_durably() -> None:
    run = driven("c")
    run.cycle(4)
    mark(run, 4, "a")
    mark(run, 4, None, durable=True)
    assert line(run) == [4, 4, 4, 4]
    assert run.machine.state.checkpoints.durable_batch == 4


def test_consumers_of_what_may_make_other_rows_do_not_move_past_it() -> None:
    run = driven("c", unsure="bcd")
    run.cycle(5)
    mark(run, 5, "c")
    assert line(run) == [-1, -1, -1, -1], "b would make other rows again"
    run.cycle(6)
    mark(run, 6, "a")
    assert line(run) == [6, 6, 5, 5], "and then it may"


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("anchors", "lost", "back"),
    [
        ("", "d", "a b c"),  # one segment: everything before it
        ("abcd", "d", ""),  # as many as operators: itself alone
        ("c", "d", "c"),  # within its segment
        ("c", "c", ""),
        ("c", "b", "a"),
    ],
)
def test_what_is_lost_takes_back_its_own_segment_alone(anchors: str, lost: str, back: str) -> None:
    run = driven(anchors)
    run.cycle(3)
    mark(run, 3, None)
    run.cycle(6)
    for segment in run.machine.state.segments.names:
        if segment not in ("c", ALL_PARTITIONS):
            mark(run, 6, segment)
    run.cycle(9)
    run.cycle(9)
    effects = run.lose(f"{run.node(lost)}")
    found = [p for one in effects if isinstance(one, RollBack) for p in one.partitions]
    assert found == parts(back)


def test_segments_start_again_at_different_batches_and_every_loss_can_be_restored() -> None:
    run = driven("c")
    run.cycle(6)
    mark(run, 6, "a")
    run.cycle(8)
    nodes = [f"{run.node(letter)}" for letter in "abcd"]
    run.lose(*nodes)
    run.arrive({f"m{letter}": 1.3 for letter in "abcd"})
    state = run.machine.state
    assert [state.partitions[p].start.batch for p in (A, B, C, D)] == [6, 6, -1, -1]
    assert state.partitions[B].kept_from == 0, "the restored outbox has what c processes again"


def test_a_recovery_ends_when_the_segments_that_lost_something_have_a_checkpoint() -> None:
    run = driven("c")
    run.cycle(3)
    mark(run, 3, None)
    run.cycle(5)
    run.lose(f"{run.node('d')}")
    run.arrive({"new": 1.3})
    run.cycle(6)
    run.cycle(7)
    effects = mark(run, 7, "a")
    assert not [one for one in effects if isinstance(one, RecoveryEnded)], "that of the other segment says nothing"
    effects = mark(run, 7, "c")
    assert [one for one in effects if isinstance(one, RecoveryEnded)]
    assert [one for one in effects if isinstance(one, Keep)] == [Keep(everything=False)]


def test_a_recovery_goes_on_while_a_segments_checkpoint_is_not_at_one_batch() -> None:
    """A sender is ahead of its consumer: its later snapshots have to hold rows, also before anybody goes on."""
    run = driven("c")
    run.cycle(3)
    run.lose(f"{run.node('b')}")
    mark(run, 3, "a", without="b")
    assert line(run) == [3, -1, -1, -1]
    run.lose(*(f"{run.node(letter)}" for letter in "acd"))
    run.arrive({f"m{letter}": 1.3 for letter in "abcd"})
    state = run.machine.state
    starts = {p: state.partitions[p].start.batch for p in (A, B, C, D)}
    assert list(starts.values()) == [3, -1, -1, -1]
    effects = run.tell(PartitionsReported(state.epoch, BatchId(3), starts, frozenset(starts), {}))
    assert not [one for one in effects if isinstance(one, RecoveryEnded)]
    assert state.with_outbox(A)
    run.cycle(3)
    effects = mark(run, 3, None, durable=True)
    assert [one for one in effects if isinstance(one, RecoveryEnded)]
    assert state.checkpoints.durable_batch == 3


def test_random_runs_with_random_segments_always_have_a_consistent_line() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        letters = "abcdef"[: draw.randint(2, 6)]
        unsure = letters[draw.randint(1, len(letters)) :] if draw.random() < 0.3 else ""
        run = driven("".join(one for one in letters if draw.random() < 0.5), letters, unsure=unsure)
        state, fresh = run.machine.state, 0
        for batch in range(40):
            run.cycle(batch)
            names = [None, *state.segments.names] if state.segments.many else [None]
            if draw.random() < 0.5:
                segment = draw.choice(names)
                slow = draw.choice(["", "", draw.choice(letters)])
                mark(run, batch, segment, durable=segment is None and draw.random() < 0.5, without=slow)
            if draw.random() < 0.1 and len(state.nodes) > 1:
                run.lose(*draw.sample(sorted(state.nodes), draw.randint(1, len(state.nodes) - 1)))
            if len(state.nodes) < len(letters) and draw.random() < 0.6:
                run.arrive({f"x{fresh}": 1.3})
                fresh += 1
            for one in (state.checkpoints.line, state.checkpoints.durable_line):
                assert is_consistent(state.graph, one, state.checkpoints.outbox_from), f"seed {seed}, batch {batch}"
                for p, at in one.items():
                    assert at == NOTHING or state.checkpoints.at(p, at) is not None, f"seed {seed}, batch {batch}"
            assert len(set(state.checkpoints.durable_line.values())) == 1


def test_settings_with_segments_can_be_sent() -> None:
    settings = RecoverySettings(segments=segments_of(chain("abcd"), "c"))
    assert pickle.loads(pickle.dumps(settings.segments)) == settings.segments


def test_one_segment_is_the_default_and_marks_of_it_are_of_all() -> None:
    checkpoints = Checkpoints(parts("a b"))
    assert checkpoints.segments is ONE_SEGMENT
    checkpoints.mark(BatchId(2), durable=False)
    assert checkpoints.concerns(part("a"), BatchId(2))
    assert Segments().of(part("a")) == ALL_PARTITIONS

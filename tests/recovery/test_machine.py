"""The recovery machine by hand: one event after the other, no rows, no clock."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, NodeId
from holdfast.recovery import machine as machines
from holdfast.recovery.checkpoints import Checkpoints, SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import (
    BuffersFull,
    Changed,
    Fence,
    Forget,
    GlobalCheckpoint,
    Keep,
    Place,
    PlanRejected,
    RecoveryEnded,
    RequestNodes,
    RollBack,
    Waiting,
)
from holdfast.recovery.events import (
    CheckpointGivenUp,
    CheckpointMarked,
    CheckpointStored,
    CostsMeasured,
    NodesArrived,
    NodesSilent,
    PartitionsReported,
    RestoreFailed,
    StateMissing,
    Timer,
)
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.runtime.coordinator.catching_up import CatchingUp
from holdfast.runtime.coordinator.event_log import effect_line
from holdfast.runtime.coordinator.publishing import Publishing, PublishSettings
from holdfast.runtime.coordinator.sink_calls import InlineRunner
from holdfast.runtime.coordinator.status import RunStatus, has_room
from recovery.machine_driving import Driven, chain, part, star

SIZE = 1.25
"""Room for one partition of cost 1 at the bound of 0.8."""


def running(**more: object) -> Driven:
    """A chain of three on three nodes, at batch 5, its checkpoint at 3."""
    driven = Driven(chain("abc"), nodes={"n1": SIZE, "n2": SIZE, "n3": SIZE}, **more)  # type: ignore[arg-type]
    driven.cycle(3)
    driven.checkpoint(3, durable=True)
    driven.cycle(5)
    return driven


def test_a_start_is_a_recovery_of_everything() -> None:
    driven = Driven(chain("abc"))
    effects = driven.arrive({"n1": 5.0})
    assert [type(effect) for effect in effects if not isinstance(effect, Changed)] == [
        Fence,
        Place,
    ]
    assert driven.state("a") == "restoring"
    driven.cycle(0)
    assert driven.state("c") == "running"


def test_a_lost_node_takes_back_what_was_not_kept_and_the_rest_stays() -> None:
    driven = running()
    driven.cycle(6)
    before = driven.machine.state.epoch
    home = driven.node("c")
    assert home is not None
    effects = driven.lose(home)
    assert isinstance(effects[0], RequestNodes)
    assert effects[0].count == 1
    assert isinstance(effects[1], Fence)
    assert driven.machine.state.epoch == before + 1
    assert [effect.partitions for effect in driven.of(RollBack) if isinstance(effect, RollBack)] == [
        (part("a"), part("b"))
    ]
    assert driven.of(Keep) == [Keep(everything=True)]
    assert driven.state("c") == "lost"
    assert driven.machine.state.recovering
    assert not driven.of(Place), "there is no room for it"


def test_an_arrival_brings_back_what_is_left_and_takes_nobody_back() -> None:
    driven = running()
    driven.lose(str(driven.node("c")))
    driven.cycle(6)
    driven.arrive({"n4": SIZE})
    assert driven.node("c") == "n4"
    assert not driven.of(RollBack)
    start = driven.machine.state.partitions[part("c")].start
    assert [snapshot.batch for snapshot in start.snapshots] == [3]
    driven.cycle(7)
    assert driven.state("c") == "running"


def test_the_next_global_checkpoint_ends_it() -> None:
    driven = running()
    driven.lose(str(driven.node("c")))
    driven.arrive({"n4": SIZE})
    driven.cycle(7)
    assert driven.machine.state.buffering
    effects = driven.checkpoint(7)
    assert [effect.batch for effect in effects if isinstance(effect, RecoveryEnded)] == [7]
    assert Keep(everything=False) in effects
    assert not driven.machine.state.recovering
    assert driven.machine.state.losses == 0


def test_where_nobody_is_past_the_checkpoint_no_new_batch_is_needed_to_end_it() -> None:
    driven = Driven(chain("abc"), nodes={"n1": 5.0})
    driven.cycle(3)
    driven.checkpoint(3)
    driven.tell(StateMissing(part("b"), NodeId("n1"), driven.machine.state.epoch))
    assert driven.machine.state.recovering
    driven.cycle(3)
    assert not driven.machine.state.recovering
    assert driven.of(RecoveryEnded) == [RecoveryEnded(BatchId(3))]


def test_no_checkpoint_is_global_while_a_partition_has_not_saved() -> None:
    driven = running()
    driven.cycle(8)
    effects = driven.checkpoint(8, without="b")
    assert not [effect for effect in effects if isinstance(effect, GlobalCheckpoint)]
    effects = driven.save(part("b"), 8)
    assert [effect.batch for effect in effects if isinstance(effect, GlobalCheckpoint)] == [8]
    assert any(isinstance(effect, Forget) for effect in effects) is False, "the durable one at 3 is still needed"


def test_a_second_failure_during_recovery_costs_only_itself() -> None:
    driven = running()
    driven.lose(str(driven.node("c")))
    driven.arrive({"n4": SIZE})
    driven.cycle(6)
    driven.lose("n4")
    assert not driven.of(RollBack), "all outboxes reach back to the checkpoint by now"
    driven.arrive({"n5": SIZE})
    driven.cycle(7)
    assert driven.state("c") == "running"


def test_a_node_that_keeps_outboxes_fails_too() -> None:
    driven = running()
    driven.lose(str(driven.node("c")))
    driven.cycle(6)
    driven.lose(str(driven.node("b")))
    assert {str(p.operator) for p in driven.machine.state.lost} == {"b", "c"}
    assert not driven.of(RollBack), "a kept, since buffering is on"
    driven.arrive({"n4": SIZE, "n5": SIZE})
    driven.cycle(7)
    assert {driven.state(one) for one in "abc"} == {"running"}


def test_a_node_is_lost_as_it_arrives() -> None:
    driven = running()
    driven.lose(str(driven.node("c")))
    driven.arrive({"n4": SIZE})
    assert driven.state("c") == "restoring"
    driven.lose("n4")
    assert driven.state("c") == "lost"
    assert driven.machine.state.awaited == 1


def test_a_silent_node_counts_as_lost_and_may_come_back_under_its_name() -> None:
    driven = running()
    home = str(driven.node("c"))
    driven.tell(NodesSilent((NodeId(home),)))
    assert driven.state("c") == "lost"
    driven.arrive({home: SIZE})
    assert driven.node("c") == home
    assert driven.machine.state.partitions[part("c")].start.epoch == driven.machine.state.epoch, (
        "what is there is of an old epoch"
    )


def test_losing_nodes_that_are_not_there_changes_nothing() -> None:
    driven = running()
    epoch = driven.machine.state.epoch
    assert driven.lose("nobody") == []
    assert driven.machine.state.epoch == epoch


def test_missing_state_is_a_failure_of_one_partition() -> None:
    driven = running()
    home = driven.machine.state.partitions[part("b")].node
    assert home is not None
    driven.tell(StateMissing(part("b"), home, driven.machine.state.epoch))
    assert driven.state("b") == "restoring", "its node is there: it comes back at once"
    assert driven.node("b") == home


def test_missing_state_of_an_old_epoch_or_another_node_is_not_heard() -> None:
    driven = running()
    home = driven.machine.state.partitions[part("b")].node
    assert home is not None
    assert driven.tell(StateMissing(part("b"), NodeId("elsewhere"), driven.machine.state.epoch)) == []
    assert driven.tell(StateMissing(part("b"), home, Epoch(0))) == []


def test_an_image_that_is_lost_takes_everything_to_the_durable_one() -> None:
    driven = running()
    driven.cycle(7)
    driven.checkpoint(7)
    assert driven.machine.state.checkpoints.global_batch == 7
    driven.lose(str(driven.node("c")))
    driven.arrive({"n4": SIZE})
    snapshot = driven.machine.state.partitions[part("c")].start.snapshots[-1]
    driven.tell(RestoreFailed(part("c"), snapshot.id, driven.machine.state.epoch, "two fragments"))
    assert driven.machine.state.checkpoints.global_batch == 3
    assert {driven.machine.state.partitions[part(one)].start.batch for one in "abc"} == {3}
    driven.cycle(8)
    assert {driven.state(one) for one in "abc"} == {"running"}


def lose_the_checkpoint(driven: Driven, node: str) -> None:
    """Lose the node of c, and find that its snapshot is damaged."""
    driven.lose(str(driven.node("c")))
    driven.arrive({node: SIZE})
    snapshot = driven.machine.state.partitions[part("c")].start.snapshots[-1]
    driven.tell(RestoreFailed(part("c"), snapshot.id, driven.machine.state.epoch, "the disk burnt"))


def test_a_durable_checkpoint_that_is_lost_takes_everything_to_the_one_before() -> None:
    """Finding 7: one damaged file was final, and the log was trimmed to the newest checkpoint."""
    driven = running()
    driven.cycle(7)
    trimmed = [one.inputs_from for one in driven.checkpoint(7, durable=True) if isinstance(one, GlobalCheckpoint)]
    assert trimmed == [3], "inputs reach back to the older one"
    checkpoints = driven.machine.state.checkpoints
    assert (checkpoints.durable_batch, checkpoints.durable_before) == (7, 3)
    lose_the_checkpoint(driven, "n4")
    assert (checkpoints.global_batch, checkpoints.durable_batch, checkpoints.durable_before) == (3, 3, None)
    assert {driven.machine.state.partitions[part(one)].start.batch for one in "abc"} == {3}
    driven.cycle(9)
    assert {driven.state(one) for one in "abc"} == {"running"}
    trimmed = [one.inputs_from for one in driven.checkpoint(9, durable=True) if isinstance(one, GlobalCheckpoint)]
    assert trimmed == [3]


def test_the_first_durable_checkpoint_that_is_lost_takes_everything_to_the_beginning() -> None:
    driven = running()
    lose_the_checkpoint(driven, "n4")
    assert {driven.machine.state.partitions[part(one)].start.batch for one in "abc"} == {-1}
    driven.cycle(5)
    assert {driven.state(one) for one in "abc"} == {"running"}


def test_two_durable_checkpoints_that_are_lost_are_said() -> None:
    driven = running()
    driven.cycle(7)
    driven.checkpoint(7, durable=True)
    lose_the_checkpoint(driven, "n4")
    driven.cycle(8)
    with pytest.raises(CheckFailed, match="durable checkpoint at batch 3 is lost"):
        lose_the_checkpoint(driven, "n5")


def test_what_is_out_and_would_come_out_otherwise_again_keeps_its_checkpoint() -> None:
    driven = running(unsure="c")
    with pytest.raises(CheckFailed, match="durable checkpoint at batch 3 is lost"):
        lose_the_checkpoint(driven, "n4")


def test_what_a_driver_may_have_given_out_before_it_died_keeps_its_checkpoint() -> None:
    """The sink may have what progress does not: a driver that dies between the two leaves no word of it."""
    driven = running(unsure="c")
    driven.cycle(7)
    driven.checkpoint(7, durable=True)
    driven.machine.state.published[part("c")] = BatchId(3)  # as the next driver finds it
    with pytest.raises(CheckFailed, match="durable checkpoint at batch 7 is lost"):
        lose_the_checkpoint(driven, "n4")


def test_a_failed_restore_of_an_image_during_recovery_goes_to_the_global_one() -> None:
    driven = running()
    driven.lose(str(driven.node("c")))
    driven.arrive({"n4": SIZE})
    driven.cycle(6)
    driven.tell(CheckpointMarked(BatchId(6), durable=False))
    driven.save(part("c"), 6)
    driven.lose("n4")
    driven.arrive({"n5": SIZE})
    mine = driven.machine.state.partitions[part("c")]
    assert mine.start.batch == 6, "its own snapshot, with its outbox"
    driven.tell(RestoreFailed(part("c"), mine.start.snapshots[-1].id, driven.machine.state.epoch, "gone"))
    assert mine.start.batch == 3
    assert driven.state("c") == "restoring"


def test_a_mark_that_is_given_up_takes_those_along_that_wait_for_it() -> None:
    """A partition that restarts saves from the latest mark on: without that one, the mark before it never ends."""
    driven = running()
    for batch in (6, 9):
        driven.tell(CheckpointMarked(BatchId(batch), durable=False))
    driven.lose(str(driven.node("c")))
    driven.arrive({"n4": SIZE})
    checkpoints = driven.machine.state.checkpoints
    assert driven.machine.state.marks_for(part("c")) == (9,)
    driven.tell(CheckpointGivenUp(BatchId(9)))
    assert checkpoints.marks == [], "a driver logs no further mark while one is open"
    driven.tell(CheckpointMarked(BatchId(12), durable=False))
    driven.tell(CheckpointMarked(BatchId(15), durable=False))
    driven.tell(CheckpointGivenUp(BatchId(15)))
    assert checkpoints.marks == [12], "everybody saves at it"


def test_blocking_waits_until_everything_fits() -> None:
    driven = running(settings=RecoverySettings(strategy=RecoveryStrategy.BLOCKING))
    driven.lose(str(driven.node("b")), str(driven.node("c")))
    driven.arrive({"n4": SIZE})
    assert {driven.state("b"), driven.state("c")} == {"lost"}
    driven.arrive({"n5": SIZE})
    assert {driven.state("b"), driven.state("c")} == {"restoring"}


def test_few_losses_wait_for_their_nodes_where_that_is_asked() -> None:
    settings = RecoverySettings(incremental_after_losses=2)
    driven = Driven(star([1, 2]), settings, nodes={"n1": SIZE, "n2": SIZE, "n3": SIZE})
    driven.cycle(2)
    driven.lose(str(driven.node("a")))
    driven.arrive({"m1": SIZE / 2})
    assert driven.state("a") == "lost", "it does not fit yet"
    driven.lose(str(driven.node("b")))
    driven.arrive({"m2": SIZE})
    assert driven.state("b") == "restoring", "two are lost: the most valuable comes first"
    assert driven.state("a") == "lost"


def test_incremental_brings_back_the_most_valuable_first() -> None:
    driven = Driven(star([1, 9, 5]), nodes={f"n{number}": SIZE for number in range(4)})
    driven.cycle(2)
    driven.lose(*(str(driven.node(one)) for one in "abc"))
    back = []
    for number in range(3):
        driven.arrive({f"m{number}": SIZE})
        back += [one for one in "abc" if driven.node(one) == f"m{number}"]
    assert back == ["b", "c", "a"]


def test_source_replay_takes_everything_back_at_every_failure_and_plan() -> None:
    driven = Driven(
        star([1, 2]),
        RecoverySettings(strategy=RecoveryStrategy.SOURCE_REPLAY),
        nodes={"n1": SIZE, "n2": SIZE, "n3": SIZE},
    )
    driven.cycle(2)
    driven.lose(str(driven.node("a")))
    assert {p for effect in driven.effects if isinstance(effect, RollBack) for p in effect.partitions} == {
        part("s"),
        part("b"),
    }
    driven.cycle(3)
    driven.arrive({"n4": SIZE})
    assert driven.of(RollBack), "and again when the next plan is made"
    assert not driven.machine.state.buffering


def test_no_node_is_planned_above_its_bound() -> None:
    driven = Driven(star([1, 2, 3]))
    driven.arrive({"n1": 2 * SIZE})
    assert len(driven.machine.state.placement) == 2
    driven.tell(CostsMeasured({part("s"): 0.1, part("a"): 0.1, part("b"): 0.1, part("c"): 0.1}))
    driven.arrive({"n2": 0.125})
    assert len(driven.machine.state.placement) == 4, "measured costs are what counts"


def test_at_the_bound_on_buffers_the_dead_pause_first_then_the_least_valuable() -> None:
    driven = Driven(
        star([1, 5, 9]),
        RecoverySettings(buffer_bytes=100),
        unsure="s",
        nodes={f"n{number}": SIZE for number in range(4)},
    )
    driven.cycle(2)
    driven.lose(str(driven.node("c")))
    driven.cycle(3)
    driven.cycle(4, kept_bytes=150)
    assert driven.machine.state.paused == {part("c")}
    assert driven.state("a") == "running", "so far only dead queries are held back"
    assert driven.of(BuffersFull) == [BuffersFull((part("c"),), 150)]
    driven.cycle(5, kept_bytes=150)
    assert driven.state("a") == "running", "it grows no more"
    driven.cycle(5, kept_bytes=160)
    assert driven.state("a") == "paused"
    (said,) = driven.of(BuffersFull)
    assert effect_line(said) == (
        "outboxes hold 0 MB, their bound: a[0] paused until less is kept for what is lost or parked; add a node, "
        "resume parked queries, or raise spark.holdfast.recovery.bufferMb"
    )
    assert driven.state("b") == "running"
    driven.cycle(6, kept_bytes=170)
    assert driven.state("b") == "paused"
    assert driven.state("s") == "paused", "nobody is left who reads it"
    driven.arrive({"n9": SIZE})
    driven.cycle(7, kept_bytes=20)
    assert {driven.state(one) for one in "sab"} <= {"catching-up", "running"}


def test_what_is_not_deterministic_takes_its_consumers_back_to_the_checkpoint() -> None:
    driven = running(unsure="bc")
    driven.lose(str(driven.node("b")))
    assert driven.state("c") == "restoring"
    assert driven.machine.state.partitions[part("c")].start.batch == 3
    assert driven.machine.state.partitions[part("c")].start.epoch == driven.machine.state.epoch


def test_a_mark_that_cannot_be_saved_any_more_is_given_up() -> None:
    driven = running()
    driven.tell(CheckpointMarked(BatchId(6), durable=True))
    driven.cycle(7)
    assert driven.machine.state.marks_for(part("a")) == (6,)
    driven.tell(CheckpointGivenUp(BatchId(6)))
    assert driven.machine.state.marks_for(part("a")) == ()
    assert [effect.batch for effect in driven.checkpoint(7) if isinstance(effect, GlobalCheckpoint)] == [7]


def test_a_global_checkpoint_can_be_asked_for_again_durably() -> None:
    driven = running()
    driven.cycle(8)
    driven.checkpoint(8)
    assert (driven.machine.state.checkpoints.global_batch, driven.machine.state.checkpoints.durable_batch) == (8, 3)
    driven.checkpoint(8, durable=True)
    assert driven.machine.state.checkpoints.durable_batch == 8


def test_a_timer_says_who_waits_for_how_many() -> None:
    driven = running()
    driven.lose(str(driven.node("c")))
    assert driven.tell(Timer()) == [Waiting(1, (part("c"),))]


def test_reports_of_an_old_epoch_are_not_heard() -> None:
    driven = running()
    machine = driven.machine
    driven.tell(
        PartitionsReported(Epoch(machine.state.epoch - 1), BatchId(9), {part("a"): BatchId(9)}, frozenset({part("a")}))
    )
    assert machine.state.partitions[part("a")].frontier == 5


def test_outboxes_are_kept_for_who_is_behind_and_no_further_than_the_driver_knows() -> None:
    driven = running()
    machine = driven.machine
    told = machine.state.keep_from()
    assert told[part("a")] == 6
    machine.state.partitions[part("a")].frontier = BatchId(7)
    machine.state.partitions[part("b")].frontier = BatchId(7)
    assert machine.state.keep_from()[part("b")] == 6, "c is at 5"


def test_what_is_written_down_is_enough_to_start_again() -> None:
    driven = running()
    checkpoints = Checkpoints.read(driven.machine.state.graph.order, driven.machine.state.written()["checkpoints"])  # type: ignore[arg-type]
    before = driven.machine.state
    again = RecoveryMachine(ClusterState(before.graph, epoch=before.epoch, checkpoints=checkpoints))
    assert again.state.checkpoints.global_batch == 3
    assert {one.frontier for one in again.state.partitions.values()} == {3}
    assert not again.state.placement


@pytest.mark.parametrize("few", [1, 3])
def test_a_driver_that_starts_with_too_few_nodes_brings_back_what_fits_and_goes_on(few: int) -> None:
    """Also then those that run keep what those that wait will need, and nobody goes back for them."""
    driven = Driven(star([1, 2, 3]), RecoverySettings(incremental_after_losses=few))
    driven.arrive({"n1": 2 * SIZE})
    assert len(driven.machine.state.placement) == 2
    assert driven.machine.state.buffering
    driven.cycle(5)
    driven.arrive({"n2": SIZE})
    assert len(driven.machine.state.placement) == 3, "not only once everything fits"
    driven.cycle(7)
    driven.tell(StateMissing(part("c"), NodeId(str(driven.node("c"))), driven.machine.state.epoch))
    assert driven.state("c") == "restoring", "a loss without a lost node is brought back at once too"
    assert not driven.of(RollBack)


def test_a_long_recovery_keeps_only_the_images_that_may_be_needed() -> None:
    driven = Driven(star([1, 5]), nodes={"n1": SIZE, "n2": SIZE, "n3": SIZE})
    driven.cycle(3)
    driven.checkpoint(3, durable=True)
    driven.lose(str(driven.node("b")))
    forgotten: list[int] = []
    for batch in range(5, 60, 5):
        driven.cycle(batch)
        for effect in driven.checkpoint(batch, durable=batch % 10 == 0):
            if isinstance(effect, Forget):
                forgotten += [snapshot.batch for p, snapshot in effect.snapshots if p == part("a")]
    checkpoints = driven.machine.state.checkpoints
    assert checkpoints.global_batch == 3
    assert forgotten == list(range(5, 55, 5)), "all but the last"
    kept = sorted(batch for batch, _ in checkpoints._snapshots[part("a")])
    assert kept == [3, 55], "the durable checkpoint of all, and its own"
    assert [checkpoints.line[part(one)] for one in "sab"] == [55, 55, 3]


def test_images_that_came_too_late_to_be_of_use_are_forgotten() -> None:
    driven = running()
    driven.cycle(8)
    driven.checkpoint(8)
    late = SavedSnapshot(BatchId(5), driven.machine.state.epoch)
    assert driven.tell(CheckpointStored(part("a"), late)) == [Forget(((part("a"), late),))]
    there = driven.machine.state.checkpoints.at(part("a"), BatchId(8))
    assert there is not None
    assert driven.tell(CheckpointStored(part("a"), there)) == [], "said twice"


def test_an_image_that_is_being_deleted_does_not_count_when_it_is_reported_again() -> None:
    driven = running()
    driven.cycle(8)
    checkpoints, epoch = driven.machine.state.checkpoints, driven.machine.state.epoch
    given_up = SavedSnapshot(BatchId(8), epoch, None, None, durable=True)
    assert driven.tell(CheckpointStored(part("a"), given_up)) == [Forget(((part("a"), given_up),))], "not marked"
    driven.tell(CheckpointMarked(BatchId(8), durable=True))
    assert driven.tell(CheckpointStored(part("a"), given_up)) == []
    assert not checkpoints.has(part("a"), BatchId(8))
    count = driven.machine.state.partitions[part("a")].forgotten
    driven.tell(CheckpointStored(part("a"), replace(given_up, saved=(0, count))))
    assert checkpoints.has(part("a"), BatchId(8))


def test_a_plan_that_fails_its_check_does_not_run_and_the_simplest_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = machines.assign

    def overfull(*given: Any, even: bool = True) -> Any:
        """A planner at fault: everything on one node, whatever it can carry."""
        found = right(*given, even=even)
        if not even:
            return found
        wrong = dict.fromkeys(found.placement, NodeId("n1"))
        return replace(found, placement=wrong, placed=replace(found.placed, placement=wrong))

    monkeypatch.setattr(machines, "assign", overfull)
    driven = Driven(chain("abc"))
    driven.arrive({"n1": SIZE, "n2": SIZE, "n3": SIZE})
    (rejected,) = driven.of(PlanRejected)
    assert isinstance(rejected, PlanRejected)
    assert "above its bound" in rejected.problems[0]
    (placed,) = driven.of(Place)
    assert isinstance(placed, Place)
    assert len({node for _, node in placed.placement}) == 3


def nothing_waits() -> SimpleNamespace:
    """Outputs whose publishers hold nothing."""
    return SimpleNamespace(publishing=Publishing({}, InlineRunner(), PublishSettings(), lambda: 0.0))


def test_the_feed_does_not_wait_for_live_partitions_behind_a_lost_one() -> None:
    """Finding 6: they were counted as those that can go on, and live queries waited for dead ones."""
    driven = running()
    driven.lose(str(driven.node("b")))
    state = driven.machine.state
    state.partitions[part("a")].frontier = BatchId(9)
    assert (driven.state("b"), driven.state("c")) == ("lost", "running")
    assert state.partitions[part("c")].frontier < 9
    status = RunStatus(None, state, None, nothing_waits())  # type: ignore[arg-type]
    assert status.live_frontier == 9


def test_what_waits_for_a_durable_checkpoint_is_no_work() -> None:
    """A run with such a query, and one that waited for nodes, turned in vain until it gave up."""
    driven = Driven(star([1, 9]), unsure="a")
    driven.arrive({"n1": 1.3, "n2": 1.3, "n3": 1.3})
    driven.cycle(3)
    state, a, b = driven.machine.state, part("a"), part("b")
    driven.lose(str(driven.node("b")))
    state.published[a] = BatchId(-1)
    outputs = SimpleNamespace(
        publishing=SimpleNamespace(takes=lambda query: True, last=lambda query: None),
        deterministic=lambda query: query != a,
        handed=lambda query: BatchId(-1),
        held={a: BatchId(0)},
    )
    program, log = SimpleNamespace(outputs=(a, b)), SimpleNamespace(frontier=BatchId(3))
    status = RunStatus(program, state, log, outputs)  # type: ignore[arg-type]
    assert not status.can_go_on, "the first batch of the query waits, and all after it"
    state.checkpoints.durable_line[a] = BatchId(2)
    assert status.can_go_on, "they may be published now"
    state.published[a], outputs.held[a] = BatchId(2), BatchId(3)
    assert not status.can_go_on


@pytest.mark.parametrize(("behind", "room"), [(None, False), (4, False), (50, True)])
def test_a_query_that_stands_still_does_not_hold_back_one_that_is_worth_more(behind: int | None, room: bool) -> None:
    """An operator that holds Python's global lock for ten seconds stopped the log, and so all queries."""
    driven = Driven(star([1, 9]))
    driven.arrive({"n1": 100.0})
    driven.cycle(3)
    state = driven.machine.state
    low, high = state.graph.outputs
    log, catching_up = SimpleNamespace(frontier=BatchId(6)), CatchingUp.of(8)
    status = RunStatus(None, state, log, nothing_waits(), catching_up=catching_up)  # type: ignore[arg-type]
    for now in (6, 20):
        log.frontier = BatchId(now)
        for p in state.graph.members(high):
            state.partitions[p].frontier = BatchId(now)
        catching_up.look(status.queries(), status.logged)
    assert (status.live_frontier, status.leading_frontier) == (state.partitions[low].frontier, 20)
    assert has_room(status, 8, behind) == room
    for p in state.graph.members(high):
        state.partitions[p].frontier = BatchId(10)
    assert not has_room(status, 8, 1000), "the most valuable ones hold it back, however far others may be behind"


@pytest.mark.parametrize("kept", [0, 101])
def test_a_restored_query_does_not_hold_back_the_others_while_it_catches_up(kept: int) -> None:
    """It did: 600 batches behind, of the same priority, it stopped the log for all until it was within 16 of it."""
    driven = Driven(star([1, 1]))
    driven.arrive({"n1": 100.0})
    driven.cycle(3)
    state = driven.machine.state
    state.settings = replace(state.settings, waiting_bytes=100)
    back, live = state.graph.outputs
    for p in {*state.graph.members(live)}:
        state.partitions[p].frontier = BatchId(600)
    assert not set(state.graph.members(back)).issubset(state.graph.members(live))
    status = RunStatus(None, state, SimpleNamespace(frontier=BatchId(600)), nothing_waits())  # type: ignore[arg-type]
    state.kept_bytes = kept
    assert (status.leading_frontier == 600) == (kept == 0), "at the bound of outboxes sources wait for it"
    assert has_room(status, 16, 1000) == (kept == 0)


def test_a_start_with_checkpoints_at_several_batches_keeps_what_those_behind_need() -> None:
    """Else the others could save no durable snapshot any more: a consumer would need what it does not hold."""
    driven = Driven(star([2, 1]), nodes={"n1": 5 * SIZE, "n2": SIZE})
    driven.cycle(3)
    driven.checkpoint(3)
    moved = Checkpoints.read(
        driven.machine.state.graph.order,
        driven.machine.state.written()["checkpoints"],  # type: ignore[arg-type]
    )
    moved.line[part("s")] = moved.line[part("a")] = BatchId(5)
    for name in "sa":
        moved.stored(part(name), SavedSnapshot(BatchId(5), Epoch(1), outbox_from=BatchId(0)))
    machine = RecoveryMachine(ClusterState(driven.machine.state.graph, checkpoints=moved))
    effects = machine.handle(NodesArrived({NodeId("n1"): 5 * SIZE}))
    assert Keep(everything=True) in effects
    assert machine.state.recovering
    machine.handle(
        PartitionsReported(
            machine.state.epoch,
            BatchId(5),
            dict.fromkeys(machine.state.graph.order, BatchId(5)),
            frozenset(machine.state.graph.order),
            {},
        )
    )
    assert machine.state.keep_from()[part("s")] <= 4, "b starts at 3, if it is lost again"

"""Parked queries in the recovery machine: who is held back, what is kept, what survives a loss and a restart."""

from __future__ import annotations

from holdfast.ids import BatchId, OperatorId
from holdfast.recovery.cluster_state import ParkedQuery
from holdfast.recovery.effects import (
    BuffersFull,
    Fence,
    Forget,
    GlobalCheckpoint,
    Parked,
    RecoveryEnded,
    Resumed,
    RollBack,
)
from holdfast.recovery.events import PartitionsReported, QueriesParked, QueriesResumed
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.coordinator.event_log import effect_line
from holdfast.topology import Input, Operator, Partitioning, Topology
from recovery.machine_driving import Driven, chain, part, star

WHY = ParkedQuery(part("b"), BatchId(4), "ValueError: thirteen", 100.0, 4)


def park(driven: Driven, *queries: str) -> None:
    driven.tell(QueriesParked({part(one): WHY for one in queries}))


def resume(driven: Driven, *queries: str, request: int = -1) -> None:
    driven.tell(QueriesResumed(tuple(map(part, queries)), request))


def running(settings: RecoverySettings | None = None, unsure: str = "") -> Driven:
    """Source `s`, queries `a`, `b`, `c`; all at batch 3, and a checkpoint there."""
    driven = Driven(star([3, 1, 2]), settings, unsure=unsure, nodes={"m": 10.0, "n": 10.0})
    driven.cycle(3)
    driven.checkpoint(3)
    return driven


def test_a_parked_query_is_held_back_and_no_other() -> None:
    driven = running()
    park(driven, "b")
    assert [type(one).__name__ for one in driven.effects] == ["Parked", "Changed", "Keep"]
    assert driven.of(Parked) == [Parked(part("b"), WHY)]
    assert not driven.of(Fence), "no epoch begins"
    assert not driven.of(RollBack)
    assert [driven.state(one) for one in "sabc"] == ["running", "running", "parked", "running"]
    park(driven, "b")
    assert driven.effects == [], "once"


def test_what_a_parked_query_needs_is_kept_until_it_has_passed() -> None:
    driven = running()
    park(driven, "b")
    driven.machine.state.partitions[part("b")].frontier = BatchId(3)
    for batch in (5, 8):
        live = {part(one): BatchId(batch) for one in "sac"}
        out = {part(one): BatchId(batch) for one in "ac"}
        driven.tell(PartitionsReported(driven.machine.state.epoch, BatchId(batch), live, frozenset(live), out))
    assert driven.machine.state.keep_from()[part("s")] == 4, "it stands at 3"
    resume(driven, "b")
    assert driven.of(Resumed) == [Resumed(part("b"))]
    assert driven.state("b") == "catching-up"
    driven.cycle(8)
    driven.checkpoint(8)
    assert driven.of(RecoveryEnded)
    assert driven.machine.state.keep_from()[part("s")] == 9


def test_while_a_query_is_parked_the_others_checkpoint_without_it() -> None:
    """Those who go on move their checkpoint, and drop what they saved before."""
    driven = running()
    park(driven, "b")
    dropped = 0
    for batch in (5, 7, 9):
        live = {part(one): BatchId(batch) for one in "sac"}
        out = {part(one): BatchId(batch) for one in "ac"}
        driven.tell(PartitionsReported(driven.machine.state.epoch, BatchId(batch), live, frozenset(live), out))
        driven.checkpoint(batch, without="b")
        (moved,) = driven.of(GlobalCheckpoint)
        assert moved == GlobalCheckpoint(BatchId(batch), BatchId(-1), BatchId(-1), (part("b"),))
        dropped += len(driven.of(Forget))
    checkpoints = driven.machine.state.checkpoints
    assert [checkpoints.line[part(one)] for one in "sacb"] == [9, 9, 9, 3]
    assert driven.machine.state.keep_from() == {part("s"): 4, part("a"): 10, part("c"): 10, part("b"): 4}
    assert dropped


def test_a_sink_that_fails_parks_its_query_and_its_partition_goes_on_for_others() -> None:
    driven = Driven(chain("sab", outputs={"a": 1, "b": 1}), nodes={"m": 10.0})
    driven.cycle(3)
    park(driven, "a")
    assert [driven.state(one) for one in "sab"] == ["running"] * 3, "b needs a's rows"
    assert not driven.machine.state.available(part("a"))
    assert driven.machine.state.available(part("b"))
    park(driven, "b")
    assert [driven.state(one) for one in "sab"] == ["parked"] * 3, "nobody needs them now"
    resume(driven, "b")
    assert [driven.state(one) for one in "sab"] == ["catching-up"] * 3


def test_a_lost_partition_of_a_parked_query_comes_back_parked() -> None:
    driven = running()
    park(driven, "b")
    lost = driven.node("b")
    assert lost is not None
    driven.lose(lost)
    driven.arrive({"x": 10.0})
    driven.cycle(3)
    assert driven.state("b") == "parked"
    assert set(driven.machine.state.parked) == {part("b")}
    resume(driven, "b")
    driven.cycle(3)
    assert driven.state("b") == "running"


def test_what_is_parked_and_which_requests_were_taken_is_written_down() -> None:
    driven = running()
    park(driven, "b", "c")
    resume(driven, "c", request=7)
    written = driven.machine.state.written()
    assert written["parked"] == {"b[0]": WHY.written()}
    assert written["requests"] == 7
    assert ParkedQuery.read(WHY.written()) == WHY
    resume(driven, "a", request=8)
    assert (driven.effects, driven.machine.state.requests) == ([], 8), "a query that is not parked: nothing to do"


def test_at_the_bound_of_buffers_the_least_valuable_live_query_pauses() -> None:
    driven = running(RecoverySettings(buffer_bytes=100.0), unsure="s")
    park(driven, "b")
    for kept in (1000, 1001):
        live = {part(one): BatchId(5) for one in "sac"}
        driven.tell(
            PartitionsReported(driven.machine.state.epoch, BatchId(5), live, frozenset(live), {}, kept_bytes=kept)
        )
    assert [driven.state(one) for one in "sabc"] == ["running", "running", "parked", "paused"]
    resume(driven, "b")
    driven.tell(PartitionsReported(driven.machine.state.epoch, BatchId(5), {}, frozenset(), {}, kept_bytes=1000))
    assert "paused" not in [driven.state(one) for one in "sabc"], "nothing is kept for anybody"


def two_pipelines(unsure: str = "x") -> Driven:
    """`s` feeds `x`, `x` feeds `b` and `c`; `a` has a source `t` of its own, and is worth the least."""
    shared = [*chain("sxb", outputs={"b": 5}).operators, chain("xc", outputs={"c": 9}).operators[1]]
    alone = chain("ta").operators
    settings = RecoverySettings(buffer_bytes=100.0)
    driven = Driven(Topology("two", [*shared, *alone]), settings, unsure=unsure, nodes={"m": 9.0, "n": 9.0})
    driven.cycle(3)
    driven.checkpoint(3)
    return driven


def test_a_query_that_sends_nothing_to_what_is_parked_is_not_paused() -> None:
    """By default, one query parked behind an operator that is not deterministic paused all others, a report each."""
    driven = two_pipelines()
    park(driven, "b", "c")
    for report in range(4, 12):
        driven.cycle(report, kept_bytes=1000)
    assert [driven.state(one) for one in "sxbcta"] == [*["parked"] * 4, "running", "running"]
    driven.cycle(12, kept_bytes=1001)
    assert driven.of(BuffersFull) == [BuffersFull((), 1001)]
    line = effect_line(driven.of(BuffersFull)[0])
    assert line is not None
    assert "beyond their bound, and grow: no query is left to pause" in line
    driven.cycle(13, kept_bytes=1002)
    assert not driven.of(BuffersFull), "it is said once"
    assert [driven.state(one) for one in "ta"] == ["running"] * 2


def test_while_outboxes_grow_queries_pause_that_share_a_sender_with_what_is_parked() -> None:
    driven = two_pipelines()
    park(driven, "b")
    for report in range(4, 9):
        driven.cycle(report, kept_bytes=1000)
    assert driven.state("c") == "running", "since `b` paused they do not grow"
    driven.cycle(9, kept_bytes=1001)
    assert driven.of(BuffersFull) == [BuffersFull((part("c"),), 1001)]
    assert [driven.state(one) for one in "sxbcta"] == ["paused", "paused", "parked", "paused", "running", "running"]
    driven.cycle(10, kept_bytes=1001)
    assert not driven.of(BuffersFull)
    driven.cycle(11, kept_bytes=1002)
    assert driven.of(BuffersFull) == [BuffersFull((), 1002)]
    driven.cycle(12, kept_bytes=40)
    assert driven.state("c") == "catching-up"


def test_what_pauses_counts_as_waiting_for_its_other_senders() -> None:
    """`t` keeps for `a`, which pauses because it reads what `b` reads: `d` reads `t`."""
    one, both = Input(OperatorId("t"), Partitioning.ONE_TO_ONE), Input(OperatorId("s"), Partitioning.ONE_TO_ONE)
    operators = [
        *chain("sb").operators,
        *chain("td", outputs={"d": 2}).operators,
        Operator(OperatorId("a"), 1, (one, both), cost=1.0, output=True, priority=1),
    ]
    settings = RecoverySettings(buffer_bytes=100.0)
    driven = Driven(Topology("join", operators), settings, unsure="s", nodes={"m": 9.0, "n": 9.0})
    driven.cycle(3)
    park(driven, "b")
    for kept, states in ((1000, "running running"), (1001, "paused running"), (1002, "paused paused")):
        driven.cycle(4, kept_bytes=kept)
        assert " ".join(driven.state(name) for name in "ad") == states


def test_partitions_continue_with_the_last_paused_query_that_is_resumed() -> None:
    """Queries `a` and `b` were paused and then parked and resumed one after the other, with no report in between."""
    settings = RecoverySettings(buffer_bytes=100.0)
    driven = Driven(chain("sab", outputs={"a": 1, "b": 1}), settings, unsure="s", nodes={"m": 10.0})
    driven.cycle(3)
    park(driven, "a")
    for kept in (1000, 1001):
        driven.cycle(5, kept_bytes=kept)
    assert [driven.state(one) for one in "sab"] == ["paused"] * 3
    resume(driven, "a")
    assert [driven.state(one) for one in "sab"] == ["catching-up"] * 3, "nothing waits that b would pause for"
    park(driven, "b")
    resume(driven, "b")
    assert [driven.state(one) for one in "sab"] == ["catching-up"] * 3
    driven.cycle(5, kept_bytes=1000)
    assert "paused" not in [driven.state(one) for one in "sab"]


def test_a_query_that_is_whole_again_goes_on_whatever_stays_parked() -> None:
    """Query `c` was held back because it gave nothing: what is kept for it gets less only if it goes on."""
    driven = Driven(
        star([1, 2, 9]),
        RecoverySettings(buffer_bytes=100.0),
        unsure="s",
        nodes={f"n{number}": 1.25 for number in range(4)},
    )
    driven.cycle(3)
    driven.checkpoint(3)
    park(driven, "b")
    driven.lose(str(driven.node("c")))
    driven.cycle(4)
    driven.cycle(5, kept_bytes=150)
    assert driven.machine.state.paused == {part("b"), part("c")}, "they give nothing"
    driven.arrive({"n9": 1.25})
    driven.cycle(6, kept_bytes=80)
    assert driven.machine.state.paused == {part("b")}
    driven.cycle(7, kept_bytes=160)
    states = [driven.state(one) for one in "sabc"]
    assert states == ["running", "paused", "parked", "running"], "a is worth the least"


def test_no_live_query_pauses_where_the_next_checkpoint_lets_senders_drop_what_they_keep() -> None:
    """Senders drop nothing before their own checkpoint has passed: a live query that paused would never reach it."""
    driven = running(RecoverySettings(buffer_bytes=100.0))
    park(driven, "b")
    for kept in (1000, 1001, 1002):
        driven.cycle(5, kept_bytes=kept)
    assert [driven.state(one) for one in "sabc"] == ["running", "running", "parked", "running"]
    assert not driven.machine.state.dropped
    driven.checkpoint(5)
    driven.cycle(6, kept_bytes=1003)
    assert driven.machine.state.dropped == {part("b")}


def test_a_live_query_that_paused_goes_on_once_it_pauses_for_nobody() -> None:
    """`a` pauses for `b`, whose source may bring other rows; then `b` goes on, and `d` of another pipeline waits."""
    shared = [*chain("sa", outputs={"a": 1}).operators, chain("sb", outputs={"b": 5}).operators[1]]
    other = chain("td", outputs={"d": 9}).operators
    settings = RecoverySettings(buffer_bytes=100.0)
    driven = Driven(Topology("two", [*shared, *other]), settings, unsure="st", nodes={"m": 9.0, "n": 9.0})
    driven.cycle(3)
    park(driven, "b", "d")
    for kept in (1000, 1001):
        driven.cycle(4, kept_bytes=kept)
    assert driven.state("a") == "paused"
    resume(driven, "b")
    assert [driven.state(one) for one in "sabtd"] == [*["catching-up"] * 3, "parked", "parked"]


def test_a_live_query_goes_on_at_the_event_that_ends_tentative_outputs_of_what_waits() -> None:
    """`a` pauses because `s` keeps for the branch of `b`, which has no input of `t`; then that branch fails."""
    both = tuple(Input(OperatorId(one), Partitioning.ONE_TO_ONE) for one in "st")
    operators = [
        *chain("sa").operators,
        *chain("t", outputs={}).operators,
        Operator(OperatorId("b"), 1, both, cost=1.0, output=True, priority=5),
    ]
    settings = RecoverySettings(buffer_bytes=100.0, tentative=frozenset({part("b")}))
    driven = Driven(Topology("join", operators), settings, nodes={f"n{number}": 1.25 for number in range(4)})
    driven.cycle(3)
    driven.checkpoint(3)
    driven.lose(str(driven.node("t")))
    assert driven.machine.state.branches.now.members
    for kept in (1000, 1001):
        driven.cycle(4, kept_bytes=kept)
    assert driven.state("a") == "paused"
    driven.tell(
        PartitionsReported(
            driven.machine.state.epoch,
            BatchId(4),
            {},
            frozenset(),
            {},
            kept_bytes=1001,
            branch_problems={part("b"): "it raised"},
        )
    )
    assert not driven.machine.state.branches.now.members
    assert driven.state("a") == "catching-up"


def test_partitions_of_a_query_that_is_whole_again_are_released() -> None:
    """`x` was not lost: it paused while `c`, which it feeds, had no node."""
    driven = Driven(
        Topology("two", [*chain("sxc").operators, *star([1]).operators[1:]]),
        RecoverySettings(buffer_bytes=100.0),
        nodes={f"n{number}": 1.25 for number in range(4)},
    )
    driven.cycle(3)
    driven.checkpoint(3)
    park(driven, "a")
    driven.lose(str(driven.node("c")))
    driven.cycle(4)
    driven.cycle(5, kept_bytes=150)
    assert driven.state("x") == "paused"
    driven.arrive({"n9": 1.25})
    driven.cycle(6, kept_bytes=80)
    assert [driven.state(one) for one in "sxc"] == ["catching-up", "catching-up", "running"]
    driven.cycle(6, kept_bytes=80)
    assert [driven.state(one) for one in "sxc"] == ["running"] * 3

"""Workers that stay: subscriptions, cycles, and joins and diamonds under a window of one batch."""

from __future__ import annotations

import random
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.application import Application
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime import InProcess, in_process
from holdfast.runtime.blocks import decode_blocks, encode_blocks
from holdfast.runtime.messages import CycleEnded, DesiredState, PartitionAssignment
from holdfast.runtime.resident_cycle import ResidentCycle
from holdfast.runtime.worker import resident
from holdfast.runtime.worker.spill import InboxSpill
from holdfast.runtime.worker.subscriptions import Publications, Request, Subscriptions
from holdfast_lab.simulation.recovery.applications import SHAPES, Recipe, inputs_of
from runtime.resident_loop import ResidentLoop

CONSUMER, SENDER = PartitionId(OperatorId("b"), 0), PartitionId(OperatorId("a"), 0)
NODE = NodeId("n")
FIRST, SECOND = Epoch(1), Epoch(2)


def request(epoch: Epoch = FIRST, *, after: int | None = -1, through: int = 3, connection: int = 1) -> Request:
    begins = None if after is None else BatchId(after)
    return Request(epoch, CONSUMER, SENDER, begins, BatchId(through), connection)


def due(publications: Publications, epoch: Epoch = FIRST, at: int = 9) -> list[tuple[int, int]]:
    return [(after, through) for _, after, through in publications.due(epoch, lambda p: BatchId(at))]


class TestPublications:
    def test_what_is_there_is_sent_as_far_as_there_is_room(self) -> None:
        one = Publications()
        one.take(7, request())
        assert due(one, at=1) == [(-1, 1)]
        assert one.sent((CONSUMER, SENDER, None), BatchId(1)) == 7
        assert due(one, at=1) == []
        assert due(one) == [(1, 3)]
        one.take(7, request(after=None, through=5))
        assert due(one) == [(1, 5)]

    def test_a_subscription_of_a_later_epoch_waits_and_one_of_an_earlier_epoch_ends(self) -> None:
        one = Publications()
        one.take(1, request(SECOND))
        assert due(one, FIRST) == []
        assert due(one, SECOND) == [(-1, 3)]
        assert due(one, Epoch(3)) == []
        assert one.subscribers == ()

    def test_what_is_late_on_an_old_connection_does_not_count(self) -> None:
        one = Publications()
        one.take(2, request(after=4, through=8, connection=2))
        one.take(1, request(after=0, connection=1))
        one.take(1, request(after=None, through=99, connection=1))
        assert due(one) == [(4, 8)]
        one.disconnected(1)
        assert due(one) == [(4, 8)]
        one.disconnected(2)
        assert due(one) == []

    def test_a_connection_that_is_full_gets_no_second_copy(self) -> None:
        """A consumer for which blocks are long on their way requests them again."""
        one, full = Publications(), True
        one.is_full = lambda link: full and link == 7
        one.take(7, request())
        assert due(one) == []
        one.take(7, request())
        assert due(one) == []
        assert one.waits, "somebody has to come back"
        full = False
        assert due(one) == [(-1, 3)]
        assert not one.waits

    def test_credit_alone_subscribes_to_nothing(self) -> None:
        one = Publications()
        one.take(1, request(after=None))
        assert one.subscribers == ()


class TestSubscriptions:
    def ask(
        self, one: Subscriptions, frontier: int, epoch: Epoch = FIRST, *, room: bool = True
    ) -> list[tuple[int | None, int]]:
        found = one.requests(epoch, {CONSUMER: BatchId(frontier)}, lambda p: [(SENDER, NODE)], room)
        return [(r.after, r.through) for r in found.get(NODE, [])]

    def test_a_connection_an_epoch_and_a_lost_inbox_are_new_subscriptions(self) -> None:
        one = Subscriptions(2)
        assert self.ask(one, -1) == []
        one.connected(NODE, 1)
        assert self.ask(one, -1) == [(-1, 1)]
        assert self.ask(one, -1) == []
        one.connected(NODE, 2)
        assert self.ask(one, 0) == [(0, 2)]
        assert self.ask(one, 0, SECOND) == [(0, 2)]
        one.again(CONSUMER)
        assert self.ask(one, 0, SECOND) == [(0, 2)]

    def test_the_end_of_an_old_connection_leaves_the_new_one(self) -> None:
        one = Subscriptions()
        one.connected(NODE, 2)
        one.disconnected(NODE, 1)
        assert one.is_connected(NODE)
        one.disconnected(NODE, 2)
        assert not one.is_connected(NODE)

    @given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 9))
    def test_the_batch_that_is_needed_next_is_always_admitted(self, rooms: list[bool], window: int) -> None:
        one, admitted = Subscriptions(window), -1
        one.connected(NODE, 1)
        for frontier, room in enumerate(rooms):
            for _, through in self.ask(one, frontier, room=room):
                admitted = max(admitted, through)
            assert admitted > frontier


def test_a_cycle_ends_when_all_have_applied_its_state_and_are_idle() -> None:
    def assigned(node: str) -> PartitionAssignment:
        return PartitionAssignment(NodeId(node), None, BatchId(-1), BatchId(0), BatchId(0))  # type: ignore[arg-type]

    desired = DesiredState("run", 5, FIRST, {CONSUMER: assigned("x"), SENDER: assigned("y")}, {})
    cycle = ResidentCycle(desired)
    cycle.reported(NodeId("x"), 4, idle=True)
    cycle.reported(NodeId("x"), 5, idle=False)
    cycle.reported(NodeId("y"), 5, idle=True)
    assert cycle.end() is None
    cycle.reported(NodeId("y"), 5, idle=False)
    cycle.reported(NodeId("x"), 6, idle=True)
    assert cycle.end() is None
    cycle.lost(NodeId("y"))
    assert cycle.end() == CycleEnded(5, FIRST)
    assert cycle.end() is None


class AnyOrder(ResidentLoop):
    """Connections that keep their own order, and none between them. Time stands: nothing is requested a second time."""

    seed = 0
    spill: InboxSpill | None = None
    """Where given, through it comes what is sent."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **{**named, "window": 1, "clock": lambda: 0.0})
        self.draw = random.Random(self.seed)
        self.ways: dict[Any, deque[Callable[[], None]]] = {}

    def _turn(self) -> None:
        names = list(self.residents)
        self.draw.shuffle(names)
        for name in names:
            done = self.residents[name].work()
            for other, requests in done.requests.items():
                for one in requests:
                    way = self.ways.setdefault((name, other), deque())
                    way.append(lambda o=other, n=name, r=one: self._request(n, o, r))
            for link, blocks in done.blocks.items():
                data: Any = encode_blocks(blocks)
                if self.spill is not None:
                    data = self.spill.arrived(data)
                way = self.ways.setdefault(link, deque())
                way.append(lambda k=link, d=data: self._deliver(k, decode_blocks(d)))
            if done.report is not None:
                self._reports.append(done.report)
            if self._cycle is not None and not any(self.ways.values()):  # what is on its way is work to come
                self._cycle.reported(name, done.applied, idle=done.idle)
        for _ in range(self.draw.randint(1, 6)):
            if waiting := [way for way in self.ways.values() if way]:
                self.draw.choice(waiting).popleft()()


class OneInbox(Subscriptions):
    """What must not be: one window for all streams of a consumer, so that one stream takes the room of another."""

    def requests(self, *given: Any, **named: Any) -> dict[NodeId, list[Request]]:
        first: dict[PartitionId, PartitionId] = {}
        epoch, consumers, senders, *rest = given

        def admitted(consumer: PartitionId) -> list[tuple[PartitionId, NodeId]]:
            return [
                (sender, node) for sender, node in senders(consumer) if first.setdefault(consumer, sender) == sender
            ]

        return super().requests(epoch, consumers, admitted, *rest, **named)


def results_of(shape: str, sizes: tuple[int, ...], given_rows: list[dict[str, Any]], nodes: int) -> dict[str, Any]:
    """Process batches on so many nodes; return the rows of every output."""
    app = Application("again")
    SHAPES[shape][0](app, sizes)
    done = InProcess(app, nodes=nodes)
    for batch in given_rows:
        done.feed(batch)
    done.close()
    done.run()
    return {str(p.operator): done.rows(p.operator).to_pylist() for p in done.program.outputs}


@pytest.mark.parametrize("shape", ["diamond", "join"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 5), size=st.integers(0, 1), spills=st.booleans())
def test_joins_and_diamonds_under_a_window_of_one_never_deadlock(
    shape: str, seed: int, nodes: int, size: int, spills: bool
) -> None:
    recipe = Recipe(shape, SHAPES[shape][1][size % len(SHAPES[shape][1])])
    given_rows = [dict(batch) for batch in inputs_of(recipe, seed % 4, 6)]
    with pytest.MonkeyPatch.context() as patch:
        expected = results_of(shape, recipe.sizes, given_rows, 1)
        assert any(expected.values())
        patch.setattr(AnyOrder, "seed", seed)
        patch.setattr(in_process, "LoopBackend", AnyOrder)
        if not spills:
            assert results_of(shape, recipe.sizes, given_rows, nodes) == expected
            return
        with tempfile.TemporaryDirectory() as folder:  # inboxes that are always full
            patch.setattr(AnyOrder, "spill", InboxSpill(Path(folder), most=-1))
            assert results_of(shape, recipe.sizes, given_rows, nodes) == expected
            assert AnyOrder.spill is not None
            assert AnyOrder.spill.spilled > 0


@pytest.mark.parametrize("shape", ["diamond", "join"])
def test_where_one_stream_takes_the_room_of_another_they_do_deadlock(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above finds it when the batch after the frontier is not admitted on every stream."""
    recipe = Recipe(shape, SHAPES[shape][1][0])
    given_rows = [dict(batch) for batch in inputs_of(recipe, 1, 6)]
    monkeypatch.setattr(resident, "Subscriptions", OneInbox)
    monkeypatch.setattr(in_process, "LoopBackend", AnyOrder)
    with pytest.raises(CheckFailed, match="no partition makes progress"):
        results_of(shape, recipe.sizes, given_rows, 4)


class Repeats(AnyOrder):
    """Every first request of a subscription comes again with each desired state, as frames that are repeated do."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.first: dict[tuple[NodeId, NodeId, Any], Request] = {}

    def _request(self, consumer: NodeId, sender: NodeId, request: Request) -> None:
        super()._request(consumer, sender, request)
        if request.after is not None:
            self.first.setdefault((consumer, sender, (request.epoch, request.subscriber)), request)

    def reconcile(self, desired: DesiredState) -> None:
        super().reconcile(desired)
        for (consumer, sender, _), request in self.first.items():
            way = self.ways.setdefault((consumer, sender), deque())
            way.append(lambda c=consumer, s=sender, r=request: AnyOrder._request(self, c, s, r))


def test_a_request_that_comes_again_long_after_does_not_end_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it names is trimmed, because its consumer has completed it: the stream goes on behind that."""
    recipe = Recipe("chain", SHAPES["chain"][1][0])
    given_rows = [dict(batch) for batch in inputs_of(recipe, 1, 8)]
    expected = results_of("chain", recipe.sizes, given_rows, 1)
    assert any(expected.values())
    monkeypatch.setattr(in_process, "LoopBackend", Repeats)
    app = Application("again")
    SHAPES["chain"][0](app, recipe.sizes)
    done = InProcess(app, nodes=3)
    for batch in given_rows:
        done.feed(batch)
        done.run()
    done.close()
    done.run()
    assert {str(p.operator): done.rows(p.operator).to_pylist() for p in done.program.outputs} == expected

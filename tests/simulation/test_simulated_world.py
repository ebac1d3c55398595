"""What the simulator itself promises to what runs in it: see FAILED_SINCE for the seeds that showed the opposite."""

from __future__ import annotations

import json
import random

import pytest

from holdfast.errors import HoldfastError
from holdfast.ids import NodeId, OperatorId
from holdfast.storage.memory import MemoryStorage
from holdfast_lab.simulation.recovery.applications import Recipe
from holdfast_lab.simulation.recovery.cluster import FakeClock
from holdfast_lab.simulation.recovery.connections import Connection, End, Events, Message
from holdfast_lab.simulation.recovery.dead_connections import REPLACED_SECONDS, DeadConnections
from holdfast_lab.simulation.recovery.drivers import Drivers
from holdfast_lab.simulation.recovery.faults import Fault, Mischief
from holdfast_lab.simulation.recovery.network import Network
from holdfast_lab.simulation.recovery.storage import LogWatch, identity_of
from holdfast_lab.simulation.recovery.stores import SlowSnapshotStore
from holdfast_lab.simulation.recovery.world import Driver, DriverDied


def test_messages_that_one_late_one_holds_up_come_in_order() -> None:
    """Their time is reckoned from several moments, and may differ in its last bits."""
    draw = random.Random(1)
    mischief = Mischief(draw, dict.fromkeys(Fault, 0.0))
    came: list[object] = []
    ends = [End(NodeId(name), lambda link, message: came.append(message[1]), _nothing) for name in ("a", "b")]
    for _ in range(20):
        clock = FakeClock()
        events, clock.now = Events(clock), draw.uniform(0.0, 4.0)
        link = Connection(events, clock, mischief, Network(mischief, clock, _nothing), *ends)
        came.clear()
        link.send(0, _message(0), draw.uniform(16.0, 60.0))
        for number in range(1, 50):
            clock.now += draw.uniform(0, 0.3)
            link.send(0, _message(number))
        while link.on_the_way:
            events.run_next()
        assert came == list(range(50))


def test_a_connection_that_a_late_message_holds_up_says_so_until_it_has_come() -> None:
    """A query behind it has nothing to go on with: that is no standstill of its own."""
    clock = FakeClock()
    mischief = Mischief(random.Random(1), dict.fromkeys(Fault, 0.0))
    events = Events(clock)
    ends = End(NodeId("n1"), _nothing, _nothing), End(NodeId("driver"), _nothing, _nothing)
    link = Connection(events, clock, mischief, Network(mischief, clock, _nothing), *ends)
    link.send(1, _message(0))
    assert not link.is_late, "it takes as long as messages do"
    link.send(1, _message(1), 30.0)
    link.send(1, _message(2))
    events.run_next()
    assert link.is_late, "both of them are on the way"
    while link.on_the_way:
        events.run_next()
    assert clock.now > 30.0
    assert not link.is_late


def test_a_dead_connection_is_to_be_replaced_once_something_is_missing_from_it() -> None:
    """Nothing is asked over one while nothing is to come, however long it has been dead."""
    clock = FakeClock()
    mischief = Mischief(random.Random(1), dict.fromkeys(Fault, 0.0))
    ends = End(NodeId("n1"), _nothing, _nothing), End(NodeId("n2"), _nothing, _nothing)
    link = Connection(Events(clock), clock, mischief, Network(mischief, clock, _nothing), *ends)
    link.forget()
    dead = DeadConnections()

    def stays(now: float, *, reachable: bool = True, hindered_at: float = 0.0) -> bool:
        return dead.stays(link, now, reachable=reachable, hindered_at=hindered_at)

    begins = 1.0 + REPLACED_SECONDS
    assert not stays(begins), "nothing was missing until now"
    times = [begins + 2.0 * turn for turn in range(1, 30)]
    assert [stays(now) for now in times] == [now - begins > REPLACED_SECONDS for now in times]
    assert not stays(times[-1] + 2.0, hindered_at=times[-1]), "its process was held up"
    assert stays(times[-1] + 4.0)
    assert not stays(times[-1] + 6.0, reachable=False), "nobody could replace it"
    assert not stays(times[-1] + 8.0)
    assert not stays(times[-1] + 8.0 + 3 * REPLACED_SECONDS), "nothing was missing in between"


def _message(number: int) -> Message:
    return "number", number


def test_a_snapshot_that_is_being_saved_or_fetched_is_on_the_way() -> None:
    """Nothing else has to move meanwhile: a run that waits for it does not stand still."""
    clock = FakeClock()
    mischief = Mischief(random.Random(1), dict.fromkeys(Fault, 0.0) | {Fault.SAVE_LATE: 1.0, Fault.FETCH_LATE: 1.0})
    store = SlowSnapshotStore(mischief, clock, _fails)
    assert not store.on_the_way()
    store.save("one", b"rows", epoch=1, durable=True)
    assert store.on_the_way()
    assert store.saved("one") is None
    clock.now += 90
    assert not store.on_the_way()
    assert store.saved("one") is not None
    store.fetch("one")
    assert store.on_the_way()
    assert store.fetched("one") is None
    clock.now += 60
    assert not store.on_the_way()
    assert store.fetched("one") is not None


def _fails(what: str) -> None:
    raise AssertionError(what)


def _nothing(*given: object) -> None:
    pass


@pytest.mark.parametrize("why", [OSError("no answer"), HoldfastError("its claim is over"), DriverDied()])
def test_a_driver_that_has_ended_never_goes_on(why: BaseException) -> None:
    drivers = Drivers(0, record=False, observe=_nothing, turn=_nothing)
    drivers.world.mischief.active = False
    drivers.start({}, 0)
    first = drivers.driver
    drivers.restart(old_goes_on=True)
    assert drivers.old is first

    def work(driver: Driver) -> None:
        raise why

    assert not drivers.do(first, work)
    assert drivers.old is None
    assert drivers.driver is not first, "another one has the run"


def test_what_drivers_have_given_up_of_a_layout_one_after_the_other_stays_given_up() -> None:
    """The second gives up `q1` of what the first has left: the application without `q2`, as it is deployed now."""
    objects, wrong = MemoryStorage(), list[str]()
    layouts = [Recipe("wide", sizes) for sizes in ((2, 1, 2, 1), (2, 1, 2), (2, 1))]
    watch = LogWatch(objects, wrong.append, {}, {identity_of(one): one for one in layouts})

    def write(number: int, recipe: Recipe) -> None:
        fields = {"machine": None, "generation": 0, "identity": {"operators": json.loads(identity_of(recipe))}}
        name = f"progress/{number}"
        assert objects.create(name, b"\n" + json.dumps(fields).encode())
        watch.created(name)

    def given_up() -> str:
        return " ".join(name for name in ("q0", "q1", "q2", "q3") if watch.is_given_up(OperatorId(name), 0))

    write(0, layouts[0])
    assert given_up() == ""
    first = Recipe("wide", (2, 1, 2, 1), (OperatorId("q2"),))
    watch.gives_up(0, first)
    write(1, first)
    assert given_up() == "q2"
    second = Recipe("wide", (2, 1, 2), (OperatorId("q1"),))
    watch.gives_up(0, second)
    write(2, second)
    assert given_up() == "q1 q2"
    assert watch.layouts == {0: layouts[0]}
    assert not wrong
    write(3, first)
    assert wrong == ["layout 0 has q1 again, which was given up"]

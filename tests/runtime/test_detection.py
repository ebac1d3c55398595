"""Which nodes are declared silent, by table: nodes that fall silent, a driver that sleeps, a driver that is cut off."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from holdfast.ids import NodeId
from holdfast.runtime.detection import RETURN_FACTOR, SelfCheck, SilenceDetector
from holdfast.runtime.worker.lease import DriverLease

SECONDS = 2.5
NODES = tuple(NodeId(f"n{number}") for number in range(6))
REACHES, CUT_OFF = SelfCheck(storage=True, master=True), SelfCheck(storage=False, master=False)


@dataclass
class Driven:
    """A detector with a clock: who answers is said for each stretch of time."""

    check: SelfCheck = REACHES
    detector: SilenceDetector = field(default_factory=lambda: SilenceDetector(SECONDS, first_seconds=10.0))
    now: float = 0.0
    declared: dict[NodeId, float] = field(default_factory=dict)
    questions: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.detector.watch(NODES)
        self.run(1.0)

    def run(self, seconds: float, quiet: tuple[NodeId, ...] = ()) -> None:
        """Let time pass, a ping every half second, each answered by all but those that are quiet."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now += 0.25
            self.detector.passed(self.now)
            if self.now % 0.5 < 1e-9:
                self.detector.pinged()
                for node in NODES:
                    if node not in quiet and node not in self.declared:
                        self.detector.answered(node)
            self.look()

    def look(self) -> None:
        self.detector.passed(self.now)
        found = self.detector.look()
        self.declared |= dict.fromkeys(found.silent, self.now)
        if found.question is not None:
            self.questions.add(found.question)
            self.detector.checked(found.question, self.check)

    def sleep(self, seconds: float) -> None:
        """Let the driver sleep: it pings nobody and looks at nothing."""
        self.now += seconds
        self.look()


@pytest.mark.parametrize(
    ("silent", "check", "declared", "asks"),
    [
        (1, CUT_OFF, 1, False),
        (3, CUT_OFF, 3, False),  # half of them is not most
        (4, REACHES, 4, True),
        (6, REACHES, 6, True),
        (6, SelfCheck(storage=True), 6, True),  # there is no master to ask
        (6, SelfCheck(), 6, True),
        (4, CUT_OFF, 0, True),
        (6, CUT_OFF, 0, True),
        (6, SelfCheck(storage=True, master=False), 0, True),
        (6, SelfCheck(storage=False, master=True), 0, True),
    ],
)
def test_how_many_are_silent_and_whether_the_driver_is_cut_off(
    silent: int, check: SelfCheck, declared: int, asks: bool
) -> None:
    driven = Driven(check)
    driven.run(SECONDS + 1.5, quiet=NODES[:silent])
    assert set(driven.declared) == set(NODES[:silent] if declared else ())
    assert bool(driven.questions) == asks
    assert all(SECONDS <= at - 1.0 <= SECONDS + 1.5 for at in driven.declared.values())


def test_a_driver_that_is_cut_off_for_a_while_declares_nobody_and_goes_on() -> None:
    driven = Driven(CUT_OFF)
    driven.run(20.0, quiet=NODES)
    assert not driven.declared
    assert len(driven.questions) > 1, "it asks again"
    driven.check = REACHES
    driven.run(SECONDS, quiet=NODES[:3])
    assert not driven.declared, "connections take a while to recover"
    driven.run(0.5)
    driven.run(SECONDS + 1.0, quiet=NODES[:1])
    assert set(driven.declared) == {NODES[0]}, "and one that is silent then is found"


def test_most_nodes_that_do_not_fall_silent_in_one_moment_are_not_declared_one_by_one() -> None:
    driven = Driven(CUT_OFF)
    driven.run(0.5, quiet=NODES[:2])
    driven.run(0.5, quiet=NODES[:4])
    driven.run(10.0, quiet=NODES)
    assert not driven.declared


def test_nodes_that_are_lost_one_after_the_other_raise_no_suspicion() -> None:
    driven = Driven(CUT_OFF)
    for count in (1, 2, 3, 4):
        driven.run(SECONDS + 1.0, quiet=NODES[:count])
    assert set(driven.declared) == set(NODES[:4])
    assert not driven.questions


@pytest.mark.parametrize("seconds", [3.0, 60.0, 86_400.0])
def test_a_driver_that_slept_blames_nobody(seconds: float) -> None:
    driven = Driven()
    driven.run(1.25, quiet=NODES)  # some pings were missed before it was stopped
    driven.sleep(seconds)
    driven.run(1.0)
    assert not driven.declared
    driven.sleep(seconds)
    driven.run(SECONDS + 3.0, quiet=NODES[:1])
    assert set(driven.declared) == {NODES[0]}, "one that froze meanwhile is found after it woke up"


def test_a_short_cut_that_is_over_before_the_check_has_answered_declares_nobody() -> None:
    driven = Driven()
    driven.check = CUT_OFF
    while driven.detector.look().question is None:
        driven.now += 0.5
        driven.detector.pinged()
        driven.detector.passed(driven.now)
    for node in NODES[1:]:
        driven.detector.answered(node)
    driven.run(SECONDS, quiet=NODES[:1])
    assert not driven.declared, "its connection may take longer to recover"
    driven.run(SECONDS + 1.0, quiet=NODES[:1])
    assert set(driven.declared) == {NODES[0]}


def test_an_answer_to_an_earlier_question_is_too_old() -> None:
    driven = Driven()
    driven.detector.watch(NODES[:1])
    found = driven.detector.look()
    for _ in range(20):
        driven.now += 0.5
        driven.detector.pinged()
        driven.detector.passed(driven.now)
        found = driven.detector.look()
    assert found.question is not None
    driven.detector.answered(NODES[0])
    assert driven.detector.look().question is None
    driven.detector.checked(found.question, REACHES)
    for _ in range(20):
        driven.now += 0.5
        driven.detector.pinged()
        driven.detector.passed(driven.now)
        again = driven.detector.look()
        assert not again.silent
    assert again.question not in (None, found.question)


def test_a_node_that_ended_its_connections_has_twice_as_long() -> None:
    driven = Driven()
    driven.detector.left(NODES[:1])
    driven.run(SECONDS * RETURN_FACTOR - 0.5, quiet=NODES[:1])
    assert not driven.declared
    driven.run(1.5, quiet=NODES[:1])
    assert set(driven.declared) == {NODES[0]}


def test_a_node_that_never_answered_has_longer() -> None:
    driven = Driven()
    fresh = NodeId("fresh")
    driven.detector.watch((*NODES, fresh))
    driven.run(9.0)
    assert not driven.declared
    driven.run(2.0)
    assert set(driven.declared) == {fresh}


def test_a_node_that_answers_after_it_was_declared_is_a_false_alarm_once() -> None:
    driven = Driven()
    driven.run(SECONDS + 1.0, quiet=NODES[:1])
    assert set(driven.declared) == {NODES[0]}
    assert [driven.detector.answered(NODES[0]), driven.detector.answered(NODES[0])] == [True, False]
    assert not driven.detector.answered(NODES[1])
    assert driven.detector.false_alarms == 1


def test_who_answers_is_heard() -> None:
    driven = Driven()
    driven.run(1.5, quiet=NODES[:1])
    assert [driven.detector.is_answering(node) for node in NODES[:2]] == [False, True]


# -- leases ------------------------------------------------------------------------------------------------------------


def leased() -> DriverLease:
    lease = DriverLease(SECONDS)
    lease.connected(0.0)
    return lease


def test_a_lease_counts_from_the_answer_that_the_driver_has_got() -> None:
    lease = leased()
    lease.pinged(1, -1, 1.0)
    assert lease.holds(1.9)
    assert not lease.holds(2.0), "that it was pinged does not show that its answer arrived"
    lease.pinged(2, 1, 2.5)
    assert lease.holds(2.9)
    assert not lease.holds(3.0), "the answer that arrived was sent at 1.0"
    lease.pinged(3, 2, 3.0)
    assert lease.holds(4.4)


def test_a_lease_ends_before_the_driver_declares_its_process_silent() -> None:
    """An answer between two pings counts from the one before: time is counted by pings."""
    detector, lease = SilenceDetector(SECONDS), DriverLease(SECONDS)
    detector.watch(NODES)
    detector.passed(0.0)
    detector.answered(NODES[0])  # 0.49 s later, and before the next ping
    lease.connected(0.49)
    now = 0.0
    while NODES[0] not in detector.look().silent:
        now += detector.every
        assert now < 10
        detector.passed(now)
        detector.pinged()
        for node in NODES[1:]:
            detector.answered(node)
    assert not lease.holds(now)


def test_pings_that_waited_while_the_process_was_frozen_give_no_lease() -> None:
    lease = leased()
    lease.pinged(1, -1, 0.5)
    lease.pinged(2, 1, 60.0)  # sent long ago: it names an answer of long ago
    lease.pinged(3, 1, 60.0)
    assert not lease.holds(60.0)
    lease.pinged(4, 3, 60.2)
    assert lease.holds(60.2)


def test_a_new_connection_gives_a_lease_from_when_it_was_dialled() -> None:
    lease = leased()
    lease.pinged(7, 3, 1.0)
    lease.connected(10.0)
    assert lease.holds(11.9)
    lease.pinged(8, 7, 12.1)  # of a connection before: it is not known any more
    assert not lease.holds(12.1)


def test_answers_that_nobody_gets_are_not_kept_for_ever() -> None:
    lease = leased()
    for number in range(10_000):
        lease.pinged(number, -1, float(number))
    assert len(lease._sent) <= 64


def test_short_cuts_of_the_driver_and_late_answers_between_them_declare_no_node() -> None:
    """Seed 424625493306: the other nodes answer between the cuts, so most never fall silent together."""
    driven = Driven(CUT_OFF)
    for _ in range(3):
        driven.run(0.5, quiet=NODES)
        driven.run(0.5, quiet=NODES[:1])
    assert not driven.declared
    driven.run(1.0, quiet=NODES[:1])
    assert set(driven.declared) == set(NODES[:1]), "pings that others have answered count"

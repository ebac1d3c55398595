"""Deliberate bugs in detecting lost nodes and in leases, which the simulator must find in runs with pings."""

from __future__ import annotations

from holdfast.runtime import detection
from holdfast.runtime.detection import SelfCheck, SilenceDetector
from holdfast.runtime.worker.lease import DriverLease
from simulation.bugs import Bug, Patch


def slept_time_counts(patch: Patch) -> None:
    """Time in which the driver was stopped counts as silence of its nodes."""

    def passed(self: SilenceDetector, now: float) -> None:
        before, self._now = self._now, now
        for one in self._watched.values():
            one.quiet += 0.0 if before is None else now - before
            if before is not None and now - before > self.seconds:
                one.missed = detection.PINGS

    patch.setattr(SilenceDetector, "passed", passed)


def driver_never_suspects_itself(patch: Patch) -> None:
    """Most nodes that fall silent are declared at once, also by a driver that is cut off."""
    patch.setattr(SelfCheck, "is_cut_off", property(lambda self: False))


def only_the_silent_are_counted(patch: Patch) -> None:
    """Nodes that have missed some pings do not count as falling silent: the first are declared one by one.

    Pings that no node answered count against them, too: without that none would be declared.
    """

    def pinged(self: SilenceDetector) -> None:
        for one in self._watched.values():
            one.alone = one.missed = one.missed + 1

    patch.setattr(detection, "_FALLING", detection.PINGS)
    patch.setattr(SilenceDetector, "pinged", pinged)


def cut_off_driver_declares_stragglers(patch: Patch) -> None:
    """After the driver was cut off, those who do not answer its first ping are declared at once."""
    patch.setattr(SilenceDetector, "_begin_anew", lambda self: self._declare(
        tuple(sorted(node for node, one in self._watched.items() if self._is_silent(node, one)))
    ))  # fmt: skip


def frozen_nodes_are_waited_for(patch: Patch) -> None:
    """A node that never answers is never declared."""
    patch.setattr(SilenceDetector, "_is_silent", lambda self, node, one: one.quiet >= 60.0)


def lease_counts_from_pings(patch: Patch) -> None:
    """A process takes every ping for a lease, whether or not the driver gets its answers."""

    def pinged(self: DriverLease, number: int, received: int, now: float) -> None:
        self._from = now

    patch.setattr(DriverLease, "pinged", pinged)


def no_lease(patch: Patch) -> None:
    """A process that the driver does not reach works on."""
    patch.setattr(DriverLease, "holds", lambda self, now: True)


def lease_outlasts_the_detector(patch: Patch) -> None:
    """A lease lasts longer than it takes to declare its node silent."""
    right = DriverLease.__init__

    def init(self: DriverLease, seconds: float) -> None:
        right(self, 4 * seconds)

    patch.setattr(DriverLease, "__init__", init)


DETECTION_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        slept_time_counts,
        driver_never_suspects_itself,
        only_the_silent_are_counted,
        cut_off_driver_declares_stragglers,
        frozen_nodes_are_waited_for,
        lease_counts_from_pings,
        no_lease,
        lease_outlasts_the_detector,
    )
)

"""Deliberate bugs of drivers that follow each other. The simulator must find each; see bugs.py."""

from __future__ import annotations

from holdfast.runtime.coordinator.liveness import SignWriter
from simulation.bugs import Bug, Patch


def followed_driver_stays(patch: Patch) -> None:
    """A driver that has nothing to write does not look whether another one has followed it."""
    patch.setattr(SignWriter, "follower", lambda self: None)


DRIVER_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one) for one in (followed_driver_stays,)
)

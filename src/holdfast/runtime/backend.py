"""What a coordinator needs of those who run its workers: Spark, one process, the simulator. Runs on the driver.

A backend is asynchronous: the coordinator hands out a desired state and reads reports as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.ids import NodeId
from holdfast.runtime.messages import DesiredState, Report


class Backend(Protocol):
    """Nodes, and a way to their workers."""

    takes_updates: bool
    """Whether workers take a new desired state of the same epoch while they are busy with the one before."""

    def reconcile(self, desired: DesiredState) -> None:
        """Let the workers reconcile with this desired state; returns without waiting for them.

        A backend that is still busy with one of an earlier epoch gives that up. One that is busy with one of the same
        epoch takes the new one in its place where it takes updates, and finishes the other first where it does not: its
        reports lead to the next. Every desired state that was begun, and not replaced, ends with a `CycleEnded`.
        """
        ...

    def reports(self, timeout: float) -> Sequence[Report]:
        """Return what was reported since the last call, in order; wait up to `timeout` seconds for the first."""
        ...

    def release_nodes(self, nodes: Sequence[NodeId]) -> None:
        """Let nodes go that will go anyway: nothing is left on them."""
        ...

    def request_nodes(self, count: int) -> str | None:
        """Request nodes; say why that cannot be done, if it cannot."""
        ...

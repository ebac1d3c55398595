"""What every backend must keep to, checked while a run goes on; the coordinator sees nothing else of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from holdfast.ids import Epoch, NodeId
from holdfast.recovery.events import NodesArrived, NodesLost, NodesSilent
from holdfast.runtime.backend import Backend
from holdfast.runtime.messages import CycleEnded, DesiredState, NodeReport, Report


class CheckedBackend:
    """A backend with the members of the protocol and no others. What it breaks of it is an assertion."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.takes_updates = backend.takes_updates
        self._open: DesiredState | None = None
        """The desired state that has to end, unless another takes its place."""
        self._handed: dict[int, Epoch] = {}
        self._ended: set[int] = set()
        self._nodes: set[NodeId] = set()
        self.counts: dict[str, int] = {}

    def reconcile(self, desired: DesiredState) -> None:
        """See Backend."""
        assert desired.number > max(self._handed, default=-1)
        assert desired.epoch >= max(self._handed.values(), default=desired.epoch)
        if self._open is not None and self._open.epoch == desired.epoch:
            assert self.takes_updates, "one that takes no updates is asked again when it has ended"
        self._handed[desired.number] = desired.epoch
        self._open = desired
        self._backend.reconcile(desired)

    def reports(self, timeout: float) -> Sequence[Report]:
        """See Backend."""
        found = self._backend.reports(timeout)
        for one in found:
            self._check(one)
            name = type(one).__name__
            self.counts[name] = self.counts.get(name, 0) + 1
        return found

    def release_nodes(self, nodes: Sequence[NodeId]) -> None:
        """See Backend."""
        self._backend.release_nodes(nodes)

    def request_nodes(self, count: int) -> str | None:
        """See Backend."""
        return self._backend.request_nodes(count)

    def _check(self, one: Report) -> None:
        if isinstance(one, NodesArrived):
            assert not self._nodes & set(one.nodes), "a node arrives once"
            self._nodes |= set(one.nodes)
        elif isinstance(one, NodesLost | NodesSilent):
            assert set(one.nodes) <= self._nodes, "who is lost was there"
            self._nodes -= set(one.nodes)
        elif isinstance(one, NodeReport):
            assert one.node in self._nodes, "who reports is there"
            assert one.epoch in self._handed.values(), "of an epoch that was handed out"
        elif isinstance(one, CycleEnded):
            assert self._handed.get(one.number) == one.epoch, "what ends was handed out"
            assert one.number not in self._ended, "it ends once"
            self._ended.add(one.number)
            if self._open is not None and self._open.number == one.number:
                self._open = None

    def check_over(self) -> None:
        """What was begun, and not replaced, ends, also where nobody waits for it; all that a run has was seen."""
        deadline = time.monotonic() + 300
        while self._open is not None:
            assert time.monotonic() < deadline, f"desired state {self._open.number} does not end"
            self.reports(0.1)
        assert {"NodesArrived", "NodeReport", "CycleEnded"} <= set(self.counts)


def check_backends(module: ModuleType, patch: pytest.MonkeyPatch) -> list[CheckedBackend]:
    """Let coordinators that a module makes have checked backends; return these as they are made."""
    made: list[CheckedBackend] = []
    right: Any = module.Coordinator  # type: ignore[attr-defined]

    def coordinator(program: Any, backend: Backend, *given: Any, **named: Any) -> Any:
        made.append(CheckedBackend(backend))
        return right(program, made[-1], *given, **named)

    patch.setattr(module, "Coordinator", coordinator)
    return made

"""Backends keep to their protocol: cycles and workers that stay, in one process; Spark's are in spark/test_run.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from holdfast.runtime import in_process
from holdfast.runtime.in_process import LoopBackend
from holdfast.runtime.messages import CycleEnded, Report
from runtime.backend_contract import check_backends
from runtime.resident_loop import ResidentLoop
from runtime.test_resident import outputs

BACKENDS = {
    "cycles": LoopBackend,
    "workers that stay": ResidentLoop,
    "three processes each": partial(ResidentLoop, processes=3),
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_keeps_to_its_protocol(name: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = check_backends(in_process, monkeypatch)
    monkeypatch.setattr(in_process, "LoopBackend", BACKENDS[name])
    assert all(outputs("traffic", fails=fails).values())
    (checked,) = made
    checked.check_over()


class EndsTwice(LoopBackend):
    """What must not be: a desired state ends twice."""

    def reports(self, timeout: float) -> Sequence[Report]:
        found = super().reports(timeout)
        return [*found, *(one for one in found if isinstance(one, CycleEnded))]


def test_what_breaks_the_protocol_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check_backends(in_process, monkeypatch)
    monkeypatch.setattr(in_process, "LoopBackend", EndsTwice)
    with pytest.raises(AssertionError, match="it ends once"):
        outputs("traffic")

"""Live queries at the bound of outboxes: none pauses for what a checkpoint drops, each goes on once bytes fall."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.ids import OperatorId, PartitionId
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import in_process
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.in_process import InProcess, LoopBackend
from holdfast.runtime.io.parquet_sink import ParquetSink
from runtime.resident_loop import ResidentLoop
from runtime.test_parking import NOW, SCHEMA, Trouble, found, numbers, two_queries
from runtime.test_regeneration import TickingClock

GOOD = PartitionId(OperatorId("good"), 0)
BACKENDS = pytest.mark.parametrize("backend", [LoopBackend, partial(ResidentLoop)], ids=["cycles", "stays"])


def first_of_uncertain(trouble: Trouble) -> Application:
    """An operator that is not deterministic passes one row on, to a query that can be parked and to one that cannot."""

    def first(state: pa.Table, inputs: list[pa.Table], watermark: float) -> tuple[pa.Table, pa.Table]:
        return state, inputs[0].slice(0, 1)

    app = Application("uncertain")
    one = app.source("s", schema=SCHEMA).apply(first, state=SCHEMA, schema=SCHEMA, deterministic=False, id="first")
    one.map(lambda rows: rows, schema=SCHEMA, id="good").output()
    one.map(trouble.look, schema=SCHEMA, id="bad").output()
    return app


def running(app: Application, directory: Path, outputs: tuple[str, ...], **bounds: float) -> InProcess:
    return InProcess(
        app,
        directory=directory,
        errors=NOW,
        nodes=2,
        checkpoint_every=2,
        sinks={name: ParquetSink(directory / "out" / name) for name in outputs},
        recovery=RecoverySettings(**bounds),
        clock=TickingClock(),
    )


def goes_on(coordinator: Coordinator, steps: int = 100) -> bool:
    return any(
        coordinator.status.caught_up or (coordinator.advance(), coordinator.status.caught_up)[1] for _ in range(steps)
    )


@BACKENDS
def test_a_live_query_comes_to_the_checkpoint_at_which_what_is_kept_for_a_parked_one_is_dropped(
    tmp_path: Path, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outboxes are beyond both bounds before that checkpoint: what a fast stream sends between two is more."""
    monkeypatch.setattr(in_process, "LoopBackend", backend)
    trouble = Trouble()
    ours = running(two_queries(trouble), tmp_path, ("good", "after"), waiting_bytes=500, buffer_bytes=2000)
    for number in range(20):
        ours.batch_log.append(numbers(13 if number == 5 else 100 + number))
        assert goes_on(ours._coordinator), f"batch {number}"
    assert ours._coordinator.state.dropped
    trouble.on = False
    ours.resume("after")
    assert found(ours, "after") == found(ours, "good") == [100 + n if n != 5 else 13 for n in range(20)]


@BACKENDS
def test_a_live_query_that_pauses_goes_on_once_senders_may_drop_what_they_hold(
    tmp_path: Path, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When `good` pauses, all stand still, and nothing asks senders to trim, or reports that they hold less."""
    monkeypatch.setattr(in_process, "LoopBackend", backend)
    ours = running(first_of_uncertain(Trouble()), tmp_path, ("good", "bad"), buffer_bytes=100_000)
    for _ in range(3):
        ours.feed(numbers(1))
    ours.feed(numbers(*range(20_000)))
    coordinator, paused = ours._coordinator, False
    for number in range(5):
        ours.batch_log.append(numbers(13))
        assert goes_on(coordinator), f"batch {number}"
        paused |= GOOD in coordinator.state.paused
    assert paused, "else nothing was tested"
    assert ours.parked
    assert not coordinator.state.paused


@BACKENDS
def test_a_query_that_pauses_for_good_does_not_end_the_run(
    tmp_path: Path, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs wait for a checkpoint that it does not reach: that is no work to try again and again."""
    monkeypatch.setattr(in_process, "LoopBackend", backend)
    trouble = Trouble()
    ours = running(first_of_uncertain(trouble), tmp_path, ("good", "bad"), buffer_bytes=3000)
    for _ in range(3):
        ours.feed(numbers(1))
    for _ in range(12):
        ours.batch_log.append(numbers(13))
        goes_on(ours._coordinator)
    assert GOOD in ours._coordinator.state.paused
    trouble.on = False
    ours.resume("bad")
    ours.feed(numbers(2))
    ours.checkpoint()
    assert found(ours, "good") == found(ours, "bad") == [1] * 3 + [13] * 12 + [2]

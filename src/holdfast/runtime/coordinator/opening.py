"""How a driver opens a run: it looks whether another one is alive, changes the layout, and takes its claim.

Runs on the driver; the same on a cluster and under the simulator. What a start may be refused for is looked at before
it takes a claim, for the claim ends the driver before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.ids import OperatorId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.runtime.coordinator.giving_up import machine_without
from holdfast.runtime.coordinator.layout import (
    RunOld,
    change_layout,
    changes_of,
    check_layout,
    keep_application,
)
from holdfast.runtime.coordinator.liveness import refuse_if_alive
from holdfast.runtime.coordinator.progress import KEPT, Progress
from holdfast.runtime.identity import describe
from holdfast.runtime.program import Program
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.storage.storage import Storage


def open_run(
    storage: Storage,
    durable: Storage,
    program: Program,
    application: bytes,
    *,
    run_old: RunOld,
    driver: Mapping[str, Any],
    sign_seconds: float,
    take_over: bool = False,
    old_layout: bool = False,
    without: frozenset[OperatorId] = frozenset(),
    run: str | None = None,
    kept: int = KEPT,
    log: Callable[[str], object] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Progress:
    """Take the claim of a run for this program, after a change of its layout where that is needed.

    `application` is the program as bytes: it is kept, because the next change of the layout may have to run it once
    more. `run_old` runs the kept one to a durable checkpoint; it opens the run with `old_layout`, and no change is
    looked for; `without` has operators of it that are given up, and that the program has no more. Where another driver
    is alive this one is refused, unless it is to `take_over`.
    """
    changes = None if old_layout else changes_of(storage, program)
    if not take_over:
        refuse_if_alive(storage, seconds=sign_seconds, log=log, clock=clock, sleep=sleep)
    if changes is not None:
        for line in (*(line for line in changes.lines() if not line.endswith(": same")), *changes.versions):
            log(line)
        for line in changes.cautions:
            log(line)
    if changes is not None and changes.layout_changed:
        change_layout(storage, durable, program, run_old=run_old, driver=driver, application=application, log=log)
    progress = Progress(storage, program.name, driver=driver, run=run, kept=kept)
    try:
        check_layout(progress, program, where=storage.url, without=without)
    except HoldfastError:
        progress.end()
        raise
    progress.machine = machine_without(progress.machine, without)
    kept_as = keep_application(storage, application, progress.generation, progress.claim)
    progress.describe(describe(program), kept_as)
    return progress


def sweep_after_start(storage: Storage, durable: Storage, progress: Progress, state: ClusterState) -> None:
    """Delete what earlier drivers left, once the first record of this one is written.

    An earlier driver is refused from then on, and what it left without a name in progress is of no use.
    """
    names = state.checkpoints.names(progress.run)
    DurableSnapshotStore(durable).sweep(progress.run, names, progress.claim)
    kept = progress.program
    assert kept is not None
    storage.delete([name for name in storage.list("applications/") if name < kept])

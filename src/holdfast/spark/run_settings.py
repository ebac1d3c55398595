"""What settings mean for a run: its pace, how it recovers, what a node carries, what is kept."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.program import Program
from holdfast.spark.planned_segments import PlannedSegments, behind_seconds
from holdfast.spark.settings import PREFIX, Settings
from holdfast.topology import require_made_for

BUFFER_TIMES = 4
"""Outboxes hold so many times what may be kept for waiting queries, before queries pause: beyond it nothing can be
dropped any more, or an ordinary recovery sends much."""


def pace_of(settings: Settings, wait_seconds: float) -> CycleSettings:
    """Return when a run with these settings begins batches, ends cycles and takes checkpoints."""
    pace = CycleSettings(
        checkpoint_batches=settings.checkpoint_batches,
        checkpoint_seconds=settings.checkpoint_seconds,
        durable_every=settings.durable_every,
        most_batches=settings.cycle_batches,
        batches_ahead=settings.max_batches_ahead,
        batches_behind=settings.max_batches_behind,
        time_budget=settings.cycle_time_budget,
        wait_seconds=wait_seconds,
    )
    return bounded_pace(pace, settings)


def bounded_pace(pace: CycleSettings, settings: Settings) -> CycleSettings:
    """Return a pace of the caller's with the costs that nodes are bounded by: their capacity is in the same unit."""
    bound_seconds = settings.node_bound_seconds if settings.node_costs == "auto" else math.inf
    return replace(pace, measure_costs=settings.measures_costs, bound_seconds=bound_seconds)


def planned_settings(
    settings: Settings, recovery: RecoverySettings, segments: PlannedSegments | None, program: Program
) -> dict[str, object]:
    """Return what a profile says about how the run runs: `holdfast plan explain` predicts with it."""
    return {
        "checkpoint_seconds": None if math.isinf(settings.checkpoint_seconds) else settings.checkpoint_seconds,
        "checkpoint_batches": settings.checkpoint_batches,
        "backups": sorted(str(p) for p in recovery.backup_partitions),
        "segments": [] if segments is None else segments.described(),
        "behind_seconds": _behind(segments, recovery, program),
        "replicas": sorted(str(p) for p in recovery.replicas),
        "data_fragments": settings.store_data_fragments,
        "parity_fragments": settings.store_parity_fragments,
        "tolerate_node_loss": settings.store_tolerate_node_loss,
        "reliability": settings.store_reliability,
        "bound": settings.node_bound,
        "keepalive_seconds": settings.keepalive_seconds,
    }


def _behind(segments: PlannedSegments | None, recovery: RecoverySettings, program: Program) -> dict[str, float | None]:
    """Return how far operators after held boundaries are behind; None: by an interval that is in batches."""
    if segments is None:
        return {}
    found = behind_seconds(replace(segments, segments=recovery.segments), program)
    return {str(name): None if math.isinf(seconds) else seconds for name, seconds in found.items()}


def node_capacity(settings: Settings, executor_cores: str | None, task_cpus: int) -> float:
    """Return what a node can carry: as set; the cores it can use, where costs are measured; else there is no limit.

    An operator process uses one core: with fewer processes than cores, the others are no capacity.
    """
    if settings.node_capacity is not None:
        return settings.node_capacity
    if not settings.measures_costs:
        return math.inf
    if settings.exchange != "resident":
        return float(executor_cores or 1)
    processes = settings.node_processes or task_cpus
    return float(processes if executor_cores is None else min(processes, int(executor_cores)))


def buffer_bound(settings: Settings, nodes: int | None) -> float:
    """Return the bytes that outboxes may hold before queries pause, in a run that begins with so many nodes."""
    megabytes = settings.recovery_buffer_mb
    if megabytes is None:
        megabytes = settings.recovery_waiting_mb * max(BUFFER_TIMES, nodes or 0)
    return megabytes << 20 if megabytes else math.inf


def recovery_of(
    settings: Settings,
    program: Program,
    nodes: int | None = None,
    *,
    old_layout: bool = False,
    backups: frozenset[PartitionId] | None = None,
) -> RecoverySettings:
    """Return how a run with these settings recovers; `backups` are those of a plan, in the place of the setting's."""
    if backups is None:
        backups = _backup_partitions(settings.retention, program, old_layout=old_layout)
    return RecoverySettings(
        strategy=RecoveryStrategy(settings.recovery_strategy),
        bound=settings.node_bound,
        backup_partitions=backups,
        incremental_after_losses=settings.recovery_incremental_after_losses or 1,
        waiting_bytes=settings.recovery_waiting_mb << 20,
        buffer_bytes=buffer_bound(settings, nodes),
        move_above=settings.node_move_above if settings.exchange == "resident" and not old_layout else math.inf,
    )


def _backup_partitions(retention: str, program: Program, *, old_layout: bool = False) -> frozenset[PartitionId]:
    """Return who keeps outputs back to checkpoints: nobody but the sources' logs, all, or a plan's backups.

    A plan is made for the application as it is now: of an old layout, it names what is still there.
    """
    if retention == "sources":
        return frozenset()
    if retention == "all":
        return frozenset(program.partitions)
    try:
        document = json.loads(Path(retention).read_bytes())
        found = frozenset(PartitionId.parse(one) for one in document["backups"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{retention!r} is not a plan of backups: {error}",
            field=f"{PREFIX}retention",
            remedy="give sources, all, or the file that `holdfast plan backups --json` printed",
        ) from None
    if not old_layout:
        require_made_for(document, program.topology, where=retention)
    if (strange := found - set(program.partitions)) and not old_layout:
        raise BadInput(
            f"there is no partition {min(strange)}", field=f"{PREFIX}retention", remedy="plan for this topology"
        )
    return found - strange

"""How a recovery goes about it: the strategies to compare, on equal terms (incremental recovery, sec. 7). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from holdfast.ids import PartitionId
from holdfast.planning.recovery.algorithms import Planner
from holdfast.planning.recovery.best_density import best_density
from holdfast.planning.recovery.operator_centric import operator_centric
from holdfast.planning.recovery.placement import BOUND
from holdfast.recovery.segments import ONE_SEGMENT, Segments


class RecoveryStrategy(StrEnum):
    """When to plan, how, and what rolls back."""

    INCREMENTAL = "incremental"
    """Plan at the failure and at every arrival; the most valuable queries first."""
    OPERATOR_CENTRIC = "operator-centric"
    """Plan at the failure and at every arrival, operator by operator in topological order."""
    BLOCKING = "blocking"
    """Wait until everything fits."""
    SOURCE_REPLAY = "source-replay"
    """Keep nothing but the sources' log: every failure, and every plan, takes everything back."""


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """What a recovery may do."""

    strategy: RecoveryStrategy = RecoveryStrategy.INCREMENTAL
    planner: Planner = best_density
    bound: float = BOUND
    """No node is planned above this share of its capacity."""
    backup_partitions: frozenset[PartitionId] = frozenset()
    """Partitions whose outbox reaches back to the checkpoint while all is well: the plan's policy."""
    incremental_after_losses: int = 1
    """Losses since the last global checkpoint from which on recovery is incremental; below, it is blocking."""
    level_lag: int = 2
    """A partition is level with the log when it is at most so many batches behind."""
    buffer_bytes: float = math.inf
    """What all outboxes may hold during a recovery before the least valuable live queries pause."""
    waiting_bytes: float = math.inf
    """What all outboxes may hold while a partition waits, before what is kept for those that wait is dropped."""
    replicas: tuple[PartitionId, ...] = ()
    """Partitions that have a second live copy, the most valuable first, until a later plan says otherwise; every outbox
    is kept to the checkpoint then."""
    replica_lag: int = 16
    """A copy may hold outboxes back by so many batches behind the checkpoint; beyond, it is dropped and built again."""
    move_above: float = math.inf
    """While nothing is lost, partitions move off a node whose load is above this share of its bound; inf: never."""
    segments: Segments = ONE_SEGMENT
    """Which operators checkpoint together, and whose inputs are stored."""
    tentative: frozenset[PartitionId] = frozenset()
    """Queries that give tentative outputs while partitions of theirs are lost; every outbox is kept to the checkpoint
    then, so that live partitions stay where they are."""
    tentative_fidelity: float = 0.0
    """A query whose predicted fidelity is below this gives none."""
    program_seconds: float = 5.0
    """What an exact placement may take, where the simple one does not fit."""

    @property
    def promotes(self) -> bool:
        """Whether copies can take their primaries' places: not where every failure takes everything back."""
        return self.strategy is not RecoveryStrategy.SOURCE_REPLAY

    @property
    def plan_with(self) -> Planner:
        """The planner that the strategy uses."""
        return operator_centric if self.strategy is RecoveryStrategy.OPERATOR_CENTRIC else self.planner

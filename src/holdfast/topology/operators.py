"""Operators as users write them: the values of a topology file, before they become arrays.

Runs anywhere. The fields, their units and their defaults are the public contract (docs/reference/topology-file.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.ids import OperatorId


class Partitioning(StrEnum):
    """How the partitions of an operator send to those of another (PPA, sec. II-A)."""

    ONE_TO_ONE = "one-to-one"
    SPLIT = "split"
    MERGE = "merge"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Input:
    """One input of an operator: where it comes from, and how partitions meet."""

    source: OperatorId
    partitioning: Partitioning


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator. Tuples have one value per partition; a single value stands for all partitions alike."""

    id: OperatorId
    parallelism: int = 1
    inputs: tuple[Input, ...] = ()
    rate: float | None = None
    """Tuples per second a source takes in over all its partitions; it emits rate x selectivity. None: 1."""
    weights: tuple[float, ...] | None = None
    """Relative share of the operator's input per partition. None: equal."""
    selectivity: float = 1.0
    joins: bool = False
    """A correlated-input operator: without one of its input streams the others are useless to it."""
    output: bool | None = None
    """Whether each partition heads a query. None: where nothing consumes the operator."""
    priority: int | tuple[int, ...] = 1
    cost: float | tuple[float, ...] = 1.0
    reprocess_seconds: float | tuple[float, ...] | None = None
    """T(v) of a partition (FTC): the time to bring its state up to date from its inputs. None: 1."""
    tuple_seconds: float = 0.0006
    state_bytes: float = 0.0
    tuple_bytes: float = 1000.0
    failure_rate: float = 0.0
    domain: str | tuple[str, ...] | None = None
    """Failure domain (rack, zone) of each partition."""

    @property
    def is_source(self) -> bool:
        """Whether it has no inputs."""
        return not self.inputs


DEFAULT_RATE = 1.0
DEFAULT_REPROCESS_SECONDS = 1.0

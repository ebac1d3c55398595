"""What a user may declare of an operator beyond what it does: the numbers that plans are made from. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypedDict

from holdfast.errors import BadInput
from holdfast.topology import Operator
from holdfast.topology.checks import suggestion


class Hints(TypedDict, total=False):
    """Keyword arguments that every operator takes, all with defaults (docs/reference/topology-file.md)."""

    weights: Sequence[float]
    """Relative share of the operator's input per partition."""
    selectivity: float
    """Output tuples per input tuple."""
    cost: float | Sequence[float]
    """Resources a partition needs, in the unit of the nodes' capacity."""
    reprocess_seconds: float | Sequence[float]
    """Time to bring a partition's state up to date from its inputs."""
    tuple_seconds: float
    """Processing time per input tuple."""
    state_bytes: float
    """Size of the operator's state."""
    tuple_bytes: float
    """Size of one input tuple."""
    failure_rate: float
    """Failures per second of the operator."""
    domain: str | Sequence[str]
    """Failure domain (rack, zone) of each partition."""


EVERY_OPERATOR = ("id", "parallelism", "on_error")
"""What every operator takes beside its hints."""
_OPERATOR_FIELDS = {field.name for field in fields(Operator)}
assert Hints.__optional_keys__ <= _OPERATOR_FIELDS


def read_hints(given: Hints, *, field: str, others: Sequence[str] = EVERY_OPERATOR) -> dict[str, Any]:
    """Return the hints as values of an operator; refuse words that are not hints, also in the place of `others`."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in Hints.__optional_keys__:
            known = [*others, *sorted(Hints.__optional_keys__)]
            raise BadInput(f"{name!r} is not known", field=field, remedy=suggestion(name, known))
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        found[name] = tuple(value) if is_list else value  # type: ignore[arg-type]
    return found

"""Holdfast: fault tolerance for stream processing on Spark.

Write an application with what is named here; nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.application import (
        Aggregate,
        Application,
        Stream,
        average,
        count,
        distinct,
        greatest,
        least,
        rows,
        session,
        sliding,
        total,
        tumbling,
    )

_FROM_APPLICATION = (
    *("Aggregate", "Application", "Stream", "average", "count", "distinct", "greatest", "least"),
    *("rows", "session", "sliding", "total", "tumbling"),
)

__all__ = [
    "Aggregate",
    "Application",
    "Stream",
    "__version__",
    "average",
    "count",
    "distinct",
    "greatest",
    "least",
    "rows",
    "session",
    "sliding",
    "total",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    if name in _FROM_APPLICATION:
        return getattr(import_module("holdfast.application"), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")

"""Holdfast: fault tolerance for stream processing on Spark. All a user needs is `import holdfast as hf`.

Nothing is imported before it is used: `import holdfast` loads no Spark, no Arrow and no numpy.

>>> import holdfast as hf
>>> app = hf.Application("web")
>>> visits = app.source("visits", hf.files("visits/", format="json"), event_time="ts", lateness="1 second",
...                     schema="ts timestamp, user string, page string, ms double")
>>> by_page = visits.key_by("page").window(hf.tumbling("10 seconds"))
>>> pages = by_page.agg(n=hf.count(), ms=hf.avg("ms")).output("pages", priority=5)
>>> app.topology()
Topology('web', 2 operators, 2 partitions)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.application import (
        Aggregate,
        Application,
        Files,
        KafkaTopic,
        Stream,
        Windowed,
        avg,
        count,
        count_distinct,
        files,
        kafka,
        max,  # noqa: A004
        min,  # noqa: A004
        rows,
        session,
        sliding,
        sum,  # noqa: A004
        tumbling,
    )
    from holdfast.cli.submit import submit
    from holdfast.errors import BadInput, CheckFailed, HoldfastError
    from holdfast.planning.joint.targets import targets
    from holdfast.runtime.io.named_sinks import (
        console,
        delta,
        foreach_batch,
        kafka_topic,
        memory,
        parquet,
        transactional,
    )
    from holdfast.runtime.io.sinks import OutputKey
    from holdfast.runtime.messages import OperatorFailed
    from holdfast.spark.handle import Run
    from holdfast.spark.reading import read
    from holdfast.spark.start import start

_HOMES = {
    "holdfast.application": (
        *("Aggregate", "Application", "Files", "KafkaTopic", "Stream", "Windowed"),
        *("avg", "count", "count_distinct", "files", "kafka"),
        *("max", "min", "rows", "session", "sliding", "sum", "tumbling"),
    ),
    "holdfast.cli.submit": ("submit",),
    "holdfast.errors": ("BadInput", "CheckFailed", "HoldfastError"),
    "holdfast.planning.joint.targets": ("targets",),
    "holdfast.runtime.messages": ("OperatorFailed",),
    "holdfast.runtime.io.named_sinks": (
        *("console", "delta", "foreach_batch", "kafka_topic", "memory", "parquet", "transactional"),
    ),
    "holdfast.runtime.io.sinks": ("OutputKey",),
    "holdfast.spark.handle": ("Run",),
    "holdfast.spark.reading": ("read",),
    "holdfast.spark.start": ("start",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Aggregate",
    "Application",
    "BadInput",
    "CheckFailed",
    "Files",
    "HoldfastError",
    "KafkaTopic",
    "OperatorFailed",
    "OutputKey",
    "Run",
    "Stream",
    "Windowed",
    "__version__",
    "avg",
    "console",
    "count",
    "count_distinct",
    "delta",
    "files",
    "foreach_batch",
    "kafka",
    "kafka_topic",
    "max",
    "memory",
    "min",
    "parquet",
    "read",
    "rows",
    "session",
    "sliding",
    "start",
    "submit",
    "sum",
    "targets",
    "transactional",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name.startswith("_"):
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from holdfast.application.members import MODULE, no_such_member

    raise no_such_member("holdfast", name, MODULE, [one for one in __all__ if one.islower()])


def __dir__() -> list[str]:
    return __all__

"""What a source does once Spark has committed a micro-batch: nothing, or it drops what it has delivered. On the driver.

Spark commits a micro-batch when `foreachBatch` has returned for it. Files with `cleanSource` are deleted or moved then,
and a source of one's own may acknowledge. A driver that starts again reads from where the last *logged* batch says:
what is dropped earlier would be lost. So the micro-batches of such a source wait in `foreachBatch` until a batch names
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILES = ("FileSource[", "FileStreamSource[")
_KEEP_ALL = frozenset({"kafka", "rate", "rate-micro-batch", "ratepermicrobatch", "rateperminute"})
"""Sources of Spark's own whose commit changes nothing."""


def drops_committed(sources: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
    """Say whether one of these sources (name and options) may drop what it has delivered, once it is committed.

    >>> drops_committed([("FileSource[/in]", {"path": "/in"})])
    False
    >>> drops_committed([("FileSource[/in]", {"cleanSource": "delete"})])
    True
    >>> drops_committed([("rate", {}), ("my-queue", {})])
    True
    """
    return any(_drops(name, {key.lower(): text.lower() for key, text in found.items()}) for name, found in sources)


def _drops(name: str, options: Mapping[str, str]) -> bool:
    if name.startswith(_FILES):
        return options.get("cleansource", "off") != "off"
    return name.lower() not in _KEEP_ALL  # a source that is not known may acknowledge


def sources_of(frame: DataFrame) -> list[tuple[str, Mapping[str, str]]]:
    """Return the sources of a streaming DataFrame, as Spark names them, with their options."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    return [_source_of(leaves.apply(place)) for place in range(leaves.size())]


def _source_of(leaf: Any) -> tuple[str, Mapping[str, str]]:
    kind, options = leaf.getClass().getSimpleName(), {}
    if kind == "StreamingRelation":
        pairs = leaf.dataSource().options().iterator()
        while pairs.hasNext():
            pair = pairs.next()
            options[str(pair._1())] = str(pair._2())
    named = kind in ("StreamingRelation", "StreamingRelationV2")
    return str(leaf.sourceName() if named else leaf.nodeName()), options

"""Names that users of PySpark look for, and what Holdfast has instead. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.errors import BadInput
from holdfast.topology.checks import suggestion

_MAP = "write map(f) with a function of Arrow tables"
STREAM = {
    **dict.fromkeys(("groupBy", "groupby", "group_by", "keyBy", "repartition"), 'write key_by("column")'),
    **dict.fromkeys(("agg", "count", "top", "distinct", "dropDuplicates"), "write window(…) before it"),
    **dict.fromkeys(("select", "selectExpr", "withColumn", "withColumns", "withColumnRenamed", "drop"), _MAP),
    "where": "write filter(condition)",
    "withWatermark": "give app.source(…) an event_time and a lateness",
    "writeStream": 'write output("name", sink=…)',
    "mapInArrow": _MAP,
    "applyInPandasWithState": "write apply(f, state=…, schema=…)",
    "transformWithState": "write apply(f, state=…, schema=…)",
}
WINDOWED = {
    **dict.fromkeys(("sum", "avg", "mean", "min", "max"), 'write agg(name=hf.sum("column"))'),
    **dict.fromkeys(("top_k", "limit"), 'write top(k, by="column")'),
    "dropDuplicates": 'write distinct("column")',
    "join": "write join(other, on=…, window=…) on the stream",
    "output": "say what to compute first: count(), agg(…), top(…) or distinct(…)",
}
AGGREGATE = {"alias": 'name it by the argument: agg(total=hf.sum("amount"))'}
MODULE = {
    **dict.fromkeys(("countDistinct", "approx_count_distinct"), "write hf.count_distinct"),
    **dict.fromkeys(("col", "lit", "expr"), "conditions are those of pyarrow.compute"),
    "mean": "write hf.avg",
    "window": "write hf.tumbling, hf.sliding or hf.session",
    "session_window": "write hf.session",
}


class NoSuchMember(BadInput, AttributeError):
    """An attribute that is not there, with what to write instead (status 2); `hasattr` sees an `AttributeError`."""


def no_such_member(of: str, name: str, instead: Mapping[str, str], known: Iterable[str]) -> NoSuchMember:
    """Return the error for an attribute that is not there.

    >>> str(no_such_member("a stream", "where", STREAM, ["filter"]))
    "a stream has no attribute 'where'; write filter(condition)"
    """
    public = [one for one in known if not one.startswith("_")]
    return NoSuchMember(f"{of} has no attribute {name!r}", remedy=instead.get(name) or suggestion(name, public))

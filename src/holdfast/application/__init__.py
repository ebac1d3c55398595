"""What users write: applications of streams and operators. Compiles to a topology; imports no Spark and no Arrow."""

from holdfast.application.aggregates import Aggregate, avg, count, count_distinct, max, min, sum  # noqa: A004
from holdfast.application.build import Application, load_application
from holdfast.application.readers import Files, files
from holdfast.application.streams import Stream, Windowed
from holdfast.application.windows import Window, rows, session, sliding, tumbling

__all__ = [
    "Aggregate",
    "Application",
    "Files",
    "Stream",
    "Window",
    "Windowed",
    "avg",
    "count",
    "count_distinct",
    "files",
    "load_application",
    "max",
    "min",
    "rows",
    "session",
    "sliding",
    "sum",
    "tumbling",
]

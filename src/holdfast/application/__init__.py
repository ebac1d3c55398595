"""What users write: applications of streams and operators. Compiles to a topology; imports no Spark and no Arrow."""

from holdfast.application.aggregates import Aggregate, average, count, distinct, greatest, least, total
from holdfast.application.build import Application, load_application
from holdfast.application.streams import Stream, Windowed
from holdfast.application.windows import Window, rows, session, sliding, tumbling

__all__ = [
    "Aggregate",
    "Application",
    "Stream",
    "Window",
    "Windowed",
    "average",
    "count",
    "distinct",
    "greatest",
    "least",
    "load_application",
    "rows",
    "session",
    "sliding",
    "total",
    "tumbling",
]

"""What users write: applications of streams and operators. Compiles to a topology; imports no Spark and no Arrow."""

from holdfast.application.aggregates import Aggregate, avg, count, count_distinct, max, min, sum  # noqa: A004
from holdfast.application.build import Application, load_application
from holdfast.application.kafka_topics import KafkaTopic, kafka
from holdfast.application.on_error import OnError
from holdfast.application.readers import Files, files
from holdfast.application.streams import Stream, Windowed
from holdfast.application.windows import Window, rows, session, sliding, tumbling

__all__ = [
    "Aggregate",
    "Application",
    "Files",
    "KafkaTopic",
    "OnError",
    "Stream",
    "Window",
    "Windowed",
    "avg",
    "count",
    "count_distinct",
    "files",
    "kafka",
    "load_application",
    "max",
    "min",
    "rows",
    "session",
    "sliding",
    "sum",
    "tumbling",
]

"""Where a source's rows come from, as plain values; the `spark` package makes streaming DataFrames of them.

Runs anywhere, without Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import BadInput
from holdfast.topology.checks import suggestion

FORMATS = ("parquet", "json", "csv", "orc", "text")
NEED_SCHEMA = ("json", "csv")
"""Formats whose files do not say the types of their columns."""


@dataclass(frozen=True, slots=True)
class Files:
    """A folder whose files are read once each, also those that come later. Made by `files`."""

    path: str
    format: str
    options: tuple[tuple[str, str], ...] = ()


Reader = Files | Callable[[Any], Any]
"""What a source reads with: files, or a function that takes a Spark session and returns a streaming DataFrame."""


def files(path: str, format: str = "parquet", **options: object) -> Files:  # noqa: A002
    """Read the files in a folder, each once, and those that come later, with Spark's file stream.

    A relative path is resolved against the current directory when the application starts. `options` are those of
    Spark's reader for the format, such as `maxFilesPerTrigger=1` or `header=True`. JSON and CSV need the source's
    `schema`; Parquet and ORC files bring it.

    >>> import holdfast as hf
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", hf.files("visits/", format="json"), schema="ts timestamp, page string",
    ...                     event_time="ts")
    >>> visits.columns
    {'ts': 'timestamp[us]', 'page': 'string'}
    """
    place = str(path)
    if not place.strip():
        raise BadInput("is empty", field="files.path", remedy='name a folder: files("visits/", format="json")')
    if format not in FORMATS:
        raise BadInput(f"{format!r} is not a format", field="files.format", remedy=suggestion(str(format), FORMATS))
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return Files(place, format, tuple(sorted(texts.items())))

"""Where a source's rows come from, as plain values.

Files are *read in place*: the runtime logs which ranges of which files a batch has, and nodes read them. Where that
cannot be (another format, a file system that only Spark reaches, a pattern in the path) the `spark` package makes a
streaming DataFrame of them. Runs anywhere, without Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.application.durations import seconds
from holdfast.application.kafka_topics import KafkaTopic
from holdfast.errors import BadInput
from holdfast.topology.checks import suggestion

FORMATS = ("parquet", "json", "csv", "orc", "text")
IN_PLACE = ("parquet", "json", "csv")
"""Formats that nodes read themselves."""
NEED_SCHEMA = ("json", "csv")
"""Formats whose files do not say the types of their columns."""
_SCHEMES = ("file", "s3", "s3a", "s3n", "gs", "az", "abfs", "abfss")
_PATTERN = re.compile(r"[*?\[{]")


@dataclass(frozen=True, slots=True)
class Files:
    """A folder whose files are read once each, also those that come later. Made by `files`."""

    path: str
    format: str
    options: tuple[tuple[str, str], ...] = ()
    by_spark: bool = False
    """Whether Spark's file stream reads them, whatever they are."""

    @property
    def in_place(self) -> bool:
        """Whether nodes read the files themselves, as opposed to Spark's file stream."""
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", self.path)
        known = scheme is None or scheme[1].lower() in _SCHEMES
        return not self.by_spark and self.format in IN_PLACE and known and _PATTERN.search(self.path) is None


Reader = Files | KafkaTopic | Callable[[Any], Any]
"""What a source reads with: files, a topic, or a function of a Spark session that returns a streaming DataFrame."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of files that are read in place; names and meanings are those of Spark's file source, as far as it
    has them."""

    start: str = "earliest"
    """`earliest`: files that are there at the first start are read too; `latest`: only those that come later."""
    settle: float = 0.5
    """Seconds that a file must stay as it is before it is taken, on storage where files can be seen half-written."""
    max_files: int | None = None
    max_bytes: int | None = None
    max_age: float = 7 * 86400.0
    """Seconds that a file may be older than the newest one that was taken."""
    retention: float | None = None
    """Seconds that files stay after their last modification; None: until no recovery can need them."""
    glob: str = "*"
    recursive: bool = False
    corrupt_aside: bool = False
    """Whether a file that cannot be read is kept aside, as opposed to stopping its queries."""
    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = ""
    null_value: str = ""
    multi_line: bool = False
    timestamp_format: str | None = None


def files(path: str, format: str = "parquet", **options: object) -> Files:  # noqa: A002
    """Read the files in a folder, each once, and those that come later.

    `path` is a folder that every node reaches, or a URL of object storage (s3://…, gs://…, az://…). A relative path is
    resolved against the current directory when the application starts. Parquet, JSON (a row on each line) and CSV are
    read in place, by the nodes; ORC and text through Spark's file stream, which takes its own options. JSON and CSV
    need the source's `schema`; Parquet and ORC files bring it. Options are named as in PySpark, such as
    `maxFilesPerTrigger=1` or `header=True`; `start="latest"` leaves out the files that are there at the first start,
    `settle` says for how long a file must stay as it is before it is taken, and `retention` after which age files are
    deleted: ranges that a recovery may still read are copied into the run's directory before.

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
    made = Files(place, format, tuple(sorted(texts.items())))
    if made.in_place:
        file_options(made)
    return made


def file_options(reader: Files) -> FileOptions:
    """Return the options of files that are read in place; what is unknown or does not fit is refused."""
    found: dict[str, Any] = {}
    for name, text in reader.options:
        known = _OPTIONS.get(name.lower())
        if known is None or (known[2] is not None and reader.format != known[2]):
            names = [one for one, _, only, _ in _TABLE if only in (None, reader.format)]
            raise BadInput(
                f"{name!r} is not an option of {reader.format} files that are read in place",
                field="files",
                remedy=f"{suggestion(name, names)} (or read them through Spark: lambda spark: spark.readStream…)",
            )
        field, read, _ = known
        try:
            found[field] = read(text)
        except ValueError as error:
            raise BadInput(f"{text!r} {error}", field=f"files.{name}", remedy="give another value") from None
    return FileOptions(**found)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is not true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("is not a whole number of 1 or more")
    return int(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", text, re.IGNORECASE)
    if match is None or not int(match[1]):
        raise ValueError("is not a number of bytes, such as 32m")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


def _sign(text: str) -> str:
    plain = {r"\t": "\t"}.get(text, text)
    if len(plain) != 1 or plain in "\r\n":
        raise ValueError("is not one character")
    return plain


def _maybe_sign(text: str) -> str:
    return _sign(text) if text else ""


def _start(text: str) -> str:
    if text not in ("earliest", "latest"):
        raise ValueError("is neither earliest nor latest")
    return text


def _length(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return seconds(text, field="files", zero=True)


def _plain(text: str) -> str:
    return text


_TABLE: tuple[tuple[str, str, str | None, Callable[[str], Any]], ...] = (
    ("maxFilesPerTrigger", "max_files", None, _count),
    ("maxBytesPerTrigger", "max_bytes", None, _bytes),
    ("maxFileAge", "max_age", None, _length),
    ("retention", "retention", None, _length),
    ("pathGlobFilter", "glob", None, _plain),
    ("recursiveFileLookup", "recursive", None, _truth),
    ("ignoreCorruptFiles", "corrupt_aside", None, _truth),
    ("start", "start", None, _start),
    ("settle", "settle", None, _length),
    ("header", "header", "csv", _truth),
    ("sep", "separator", "csv", _sign),
    ("delimiter", "separator", "csv", _sign),
    ("quote", "quote", "csv", _maybe_sign),
    ("escape", "escape", "csv", _maybe_sign),
    ("nullValue", "null_value", "csv", _plain),
    ("multiLine", "multi_line", "csv", _truth),
    ("timestampFormat", "timestamp_format", "csv", _plain),
)
"""Name, field, the one format that has it, and how its text is read."""
_OPTIONS = {name.lower(): (field, read, only) for name, field, only, read in _TABLE}

"""What feeds each source of a drill: files read in place, a topic, or Spark's file stream. Runs anywhere; pure.

A drill of an application feeds its sources as the application reads them, so that it tests the path that its users
run: `hf.files` from files of the same format, `hf.kafka` from a topic of the drill's own, both in place; a streaming
DataFrame from Spark's file stream. Generated scenarios have no readers: their sources read files in place, in a format
drawn from the seed, or topics (`--feed kafka`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from holdfast.application import Application, Files, KafkaTopic, files, kafka, steps
from holdfast.application.kafka_topics import StartAt
from holdfast.application.readers import IN_PLACE, Reader
from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy
from holdfast.errors import BadInput
from holdfast.topology.draws import Draws

KEPT_OPTIONS = frozenset(
    name.lower()
    for name in (
        *("maxFilesPerTrigger", "maxBytesPerTrigger", "settle", "ignoreCorruptFiles"),
        *("header", "sep", "delimiter", "multiLine"),
    )
)
"""Options of a source's files that hold for the drill's too; others say where its own are, or how they were written."""


class FeedKind(StrEnum):
    """What delivers a source's rows."""

    SPARK = "spark"
    FILES = "files"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class SourceFeed:
    """What feeds one source, and its reader in the drill: without folder and brokers, which come with the drill."""

    kind: FeedKind
    reader: Files | KafkaTopic

    @property
    def format(self) -> str:
        """The format of its files, or of its records' values."""
        return self.reader.format

    def placed(self, folder: str, servers: str) -> Files | KafkaTopic:
        """Return the reader with its folder, or its brokers."""
        if isinstance(self.reader, KafkaTopic):
            return replace(self.reader, servers=servers)
        return replace(self.reader, path=folder)


def reads_sources(asked: DrillSettings) -> bool:
    """Whether the run's own sources read the input."""
    return asked.feed is not DrillFeed.BATCHES and asked.strategy is not DrillStrategy.STRUCTURED_STREAMING


def topic_of(source: str) -> str:
    """Return the drill's topic for a source."""
    return f"drill-{source}"


def feeds_of(app: Application, asked: DrillSettings) -> dict[str, SourceFeed]:
    """Return what feeds each source of an application."""
    return {
        str(name): _feed(str(name), step.reader, app, asked)
        for name, step in app.steps.items()
        if isinstance(step, steps.Source)
    }


def with_feeds(
    app: Application, feeds: Mapping[str, SourceFeed], folder: Path | None = None, servers: str = ""
) -> Application:
    """Return the application with the drill's readers; the files of a source are in `folder/SOURCE`."""
    place = Path("drill") if folder is None else folder
    readers: dict[str, Reader] = {name: one.placed(str(place / name), servers) for name, one in feeds.items()}
    return app.with_readers(readers)


def _feed(name: str, reader: Reader | None, app: Application, asked: DrillSettings) -> SourceFeed:
    if asked.feed is DrillFeed.SPARK:
        return SourceFeed(FeedKind.SPARK, _by_spark())
    if isinstance(reader, KafkaTopic):
        if reader.format == "avro":
            raise BadInput(
                "reads Avro values, which a drill does not write",
                where=f"application {app.name}",
                field=name,
                remedy="give --feed spark: the drill then feeds files",
            )
        return SourceFeed(
            FeedKind.KAFKA, replace(reader, topic=topic_of(name), start=StartAt(), settings=(), fail_on_data_loss=True)
        )
    if isinstance(reader, Files) and reader.in_place:
        options = tuple((key, text) for key, text in reader.options if key.lower() in KEPT_OPTIONS)
        return SourceFeed(FeedKind.FILES, replace(reader, options=options))
    if reader is not None:
        return SourceFeed(FeedKind.SPARK, _by_spark())
    if asked.feed is DrillFeed.KAFKA:
        return SourceFeed(FeedKind.KAFKA, kafka("drill", topic_of(name)))
    draws = Draws(asked.seed).branch(f"format of {name}")
    return SourceFeed(FeedKind.FILES, files("drill", format=IN_PLACE[draws.whole(0, len(IN_PLACE) - 1)]))


def _by_spark() -> Files:
    return replace(files("drill", format="parquet", maxFilesPerTrigger=1), by_spark=True)

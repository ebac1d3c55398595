"""Start an application on a Spark cluster, in the background: `hf.start`. Runs on the driver.

`launch` is the one way into a run: `hf.start`, `hf.submit` and `holdfast run` come through it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.application import Application
from holdfast.errors import BadInput
from holdfast.ids import folder_name
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.event_file import EventFile
from holdfast.spark.feed import Feed, GivenFeed, SourceFeed
from holdfast.spark.handle import Run
from holdfast.spark.ingest import Ingestion
from holdfast.spark.readers import check_readers, open_sources, resolved
from holdfast.spark.requirements import check_requirements
from holdfast.spark.run import SparkRun
from holdfast.spark.run_loop import RunLoop
from holdfast.spark.run_view import RunView
from holdfast.spark.session import is_loopback_master, start_session, stop_session
from holdfast.spark.settings import PREFIX, Settings, conf_of
from holdfast.storage.storage import is_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is watching what happens in a run; called in the run's own thread."""

    log: Callable[[str], object] = _LOG.info
    """Takes lines for people."""
    emit: Callable[[Observation], object] = lambda seen: None
    """Takes every event."""
    advanced: Callable[[dict[str, Any]], object] = lambda report: None
    """Takes every progress report."""


def start(
    app: Application,
    spark: SparkSession | None = None,
    *,
    directory: str | Path | None = None,
    conf: Mapping[str, str] | None = None,
    nodes: int = 3,
    available_now: bool = False,
    close: bool = False,
    sinks: Mapping[str, object] | None = None,
    batches: Iterable[Mapping[str, pa.Table]] | None = None,
    take_over: bool = False,
) -> Run:
    """Start an application in the background; return the handle of the run.

    Without a session, an embedded cluster of so many `nodes` is started on this machine, and stopped with the run. A
    session that is passed goes on after the run; it must be a classic session on a cluster, not Spark Connect.

    `directory` holds logs, checkpoints and outputs, on storage that every node reaches: a folder, or a URL of object
    storage (s3://…); the setting `spark.holdfast.directory` by default, else a new folder where all nodes are on this
    machine. Started again with
    the same directory, a run continues where it stood, and each output row comes out once. `conf` are settings of
    Spark and `spark.holdfast.*`; with a session that is passed, only the latter. With `available_now` the run reads
    what the sources have now, then ends; with `close` it then closes all windows, and cannot be continued. `sinks`
    replaces the sinks of outputs, by their names. `batches` replaces the sources: source -> pyarrow.Table for each
    batch, for tests of an application. Where a driver of this run is alive, a second one is refused, unless it is to
    `take_over`: then the first one ends.

    Example:
        app = hf.Application("web")
        visits = app.source("visits", hf.files("visits/", format="json"), schema="ts timestamp, page string",
                            event_time="ts", lateness="1 second")
        visits.key_by("page").window(hf.tumbling("10 seconds")).count().output("pages")
        run = hf.start(app, directory="/data/web")
        run.awaitTermination()
    """
    return launch(
        app,
        spark,
        directory=directory,
        conf=conf or {},
        nodes=nodes,
        available_now=available_now,
        close=close,
        sinks=sinks or {},
        batches=batches,
        take_over=take_over,
    )


def launch(
    app: Application,
    spark: SparkSession | None,
    *,
    directory: str | Path | None,
    conf: Mapping[str, str],
    nodes: int,
    available_now: bool,
    close: bool,
    sinks: Mapping[str, object],
    batches: Iterable[Mapping[str, pa.Table]] | None,
    checkpoint_every: int | None = None,
    watch: Callable[[SparkRun], Watch] | None = None,
    take_over: bool = False,
) -> Run:
    """Start a run as `start` does; `watch` says who is watching of it, once its folder is known."""
    app.topology()  # what cannot run is refused before a cluster starts
    if spark is None:
        _refuse_active_session()
        Settings.of({key: str(value) for key, value in conf.items()})
        if batches is None:
            check_readers(app)
    with ExitStack() as starting:
        cluster: EmbeddedCluster | None = None
        if spark is None:
            cluster = starting.enter_context(EmbeddedCluster(nodes))
            spark = start_session(f"holdfast {app.name}", cluster.master_url, settings=dict(conf))
            starting.callback(stop_session, spark)
        check_requirements(spark)
        settings = _settings(spark, conf, own=cluster is not None)
        frames = open_sources(app, spark) if batches is None else {}
        app = resolved(app, frames) if batches is None else app
        place = run_place(app.name, spark.sparkContext.master, directory or settings.directory)
        names = app.output_names()
        default = {name: f"{place}/out/{name}" for one, name in names.items() if app.sinks.get(one) is None}
        relay = _Relay()
        running = SparkRun(
            app,
            spark,
            f"{place}/run",
            sinks={**default, **sinks},
            settings=settings,
            checkpoint_every=checkpoint_every,
            log=relay.log,
            emit=relay.emit,
            nodes=nodes if cluster else None,
            request_nodes=_replacements(cluster, nodes) if cluster else None,
            secret_file=cluster.secret_file if cluster else None,
            take_over=take_over,
            old_sink=lambda name: f"{place}/out/{name}",
        )
        starting.callback(running.close)
        events = EventFile(_events_folder(place, relay.log) / "events.jsonl")
        starting.callback(events.close)
        view = RunView(running)
        watching = Watch() if watch is None else watch(running)
        relay.join(watching, [events.write, view.emit, watching.emit])
        feed: Feed
        if batches is None:
            behind = settings.max_pending_batches
            ingestion = Ingestion(app, spark, running, most_behind=behind, frames=frames)
            feed = SourceFeed(ingestion, running, available_now=available_now)
        else:
            feed = GivenFeed(batches, running)
        starting.callback(feed.stop)  # before Spark goes, should the start fail
        feed.start()
        loop = RunLoop(running, feed, view, starting.pop_all(), close=close, log=relay.log, advanced=watching.advanced)
        loop.start()
        return Run(running, feed, view, loop, place)


class _Relay:
    """Passes lines and events on to those who watch; until they are known, it keeps the lines."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._log: Callable[[str], object] = self._kept.append
        self._emit: list[Callable[[Observation], object]] = []

    def log(self, line: str) -> None:
        self._log(line)

    def emit(self, seen: Observation) -> None:
        for take in self._emit:
            take(seen)

    def join(self, watch: Watch, emit: list[Callable[[Observation], object]]) -> None:
        self._log, self._emit = watch.log, emit
        for line in self._kept:
            watch.log(line)


def run_place(name: str, master: str, named: Path | str | None) -> Path | str:
    """Return a run's folder, or its URL: as named, else a new folder where all nodes are on this machine."""
    if named is not None and is_url(str(named)):
        return str(named).rstrip("/")
    if named is None and not is_loopback_master(master):
        raise BadInput(
            "other machines would not reach a new folder on this one",
            field="--directory",
            remedy="name a folder on storage that every node reaches, or set spark.holdfast.directory",
        )
    return Path(named or tempfile.mkdtemp(prefix=f"holdfast-{folder_name(name)}-")).absolute()


def _events_folder(place: Path | str, log: Callable[[str], object]) -> Path:
    """Return where events are written: beside the run, where that is a folder; object storage has no appending."""
    if isinstance(place, Path):
        return place / "run"
    folder = Path(tempfile.mkdtemp(prefix="holdfast-events-"))
    log(f"events are written to {folder}")
    return folder


def _settings(spark: SparkSession, conf: Mapping[str, str], *, own: bool) -> Settings:
    """Read the settings of a session, with those that are given over them."""
    strange = [key for key in conf if not key.startswith(PREFIX)]
    if strange and not own:
        raise BadInput(
            "the session has started already",
            field=strange[0],
            remedy=f"set it where the session is made; conf takes {PREFIX}* here",
        )
    return Settings.of({**conf_of(spark), **{key: str(value) for key, value in conf.items()}})


def _refuse_active_session() -> None:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise BadInput(
            "a Spark session is active in this process, and there can be one only",
            where="hf.start",
            remedy="pass it: hf.start(app, spark); or stop it, for an embedded cluster",
        )


def _replacements(cluster: EmbeddedCluster, wanted: int) -> Callable[[int], str | None]:
    """Return what starts nodes for those whose processes are gone; one that was only silent gets a new executor."""

    def request(count: int) -> str | None:
        for _ in range(min(count, wanted - cluster.living)):
            cluster.add_node()
        return None

    return request

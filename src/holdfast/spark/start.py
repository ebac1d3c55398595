"""Start an application on a Spark cluster, in the background: `hf.start`. Runs on the driver.

`launch` is the one way into a run: `hf.start`, `hf.submit` and `holdfast run` come through it.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.application import Application
from holdfast.dashboard.page import TOKEN_FILE
from holdfast.errors import BadInput, CheckFailed, one_line
from holdfast.ids import folder_name
from holdfast.planning.joint.targets import Targets
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.coordinator.event_log import Observation, plan_fields
from holdfast.runtime.coordinator.promises import PromiseWatch, promise_line
from holdfast.runtime.io.file_columns import check_folders, with_absolute_paths, with_file_columns
from holdfast.spark.before_start import check_before_start
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.event_file import EventFile
from holdfast.spark.feed import Feed, GivenFeed, SourceFeed
from holdfast.spark.handle import Run
from holdfast.spark.ingest import Ingestion
from holdfast.spark.listeners import Listeners
from holdfast.spark.page import open_page, wants_page
from holdfast.spark.planned import BUDGET, RunPlan, plan_for_run
from holdfast.spark.planned_segments import never_anchors
from holdfast.spark.readers import open_sources, resolved
from holdfast.spark.requirements import check_classic, check_requirements
from holdfast.spark.run import SparkRun
from holdfast.spark.run_loop import RunLoop
from holdfast.spark.run_view import RunView
from holdfast.spark.session import is_loopback_master, start_session, stop_session
from holdfast.spark.settings import PREFIX, Settings, conf_of
from holdfast.spark.start_progress import StartProgress
from holdfast.spark.tracing import RecoveryTracer
from holdfast.storage.storage import is_url, open_storage
from holdfast.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("holdfast")
_EVERY = {f"{PREFIX}checkpoint.batches": "", f"{PREFIX}checkpoint.seconds": ""}
"""What `checkpoint_every` sets."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is watching what happens in a run; called in the run's own thread."""

    log: Callable[[str], object] = _LOG.info
    """Takes lines for people."""
    emit: Callable[[Observation], object] = lambda seen: None
    """Takes every event."""
    advanced: Callable[[dict[str, Any]], object] = lambda report: None
    """Takes every progress report."""
    closing: Callable[[], object] = lambda: None
    """Called when the run is over, well or not, before its executors are released."""


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """What a drill sets of a run beside what users can set."""

    recovery: RecoverySettings | None = None
    nodes: int | None = None
    """How many executors to begin with."""
    request_nodes: Callable[[int], str | None] | None = None
    admits: Callable[[str], bool] = lambda host: True
    """Whether executors on a host may be used."""
    has_all: Callable[[SparkRun, Ingestion], bool] | None = None
    """Whether batches hold all that the sources will ever deliver: then the run ends, as with `available_now`."""


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
    plan: str | Path | Targets | None = None,
    page: bool | None = None,
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

    `plan` says what is kept and how often: a plan's file (`holdfast plan auto --json`; one of `plan segments` or
    `plan backups` executes that part), `hf.targets(…)`, or "auto" for the least downtime within an overhead of 5 %. The
    latter two plan with what an earlier start of this directory measured, else with what the application declares.
    `run.plan` has the plan and its promises.

    `page` says whether the driver serves the live page: on loopback, read-only without the token in the run's
    directory; `run.page` is its address. Not given, as `spark.holdfast.page.enabled` says: with an embedded cluster.

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
        plan=plan,
        page=page,
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
    plan: str | Path | Targets | None = None,
    starting: StartProgress | None = None,
    drill: DrillOptions | None = None,
    page: bool | None = None,
) -> Run:
    """Start a run as `start` does; `watch` says who is watching of it, once its folder is known.

    `starting` is told how far the start has come. The embedded cluster's nodes and the driver's JVM start side by side.
    """
    progress = StartProgress(_LOG.info) if starting is None else starting
    special = drill or DrillOptions()
    app.topology()  # what cannot run is refused before a cluster starts
    if spark is not None:
        check_classic(spark)
    budget = {**({} if spark is None else conf_of(spark)), **conf}.get(BUDGET)
    place_of_run = directory or conf.get(f"{PREFIX}directory")
    planned = _planned(plan, app, place_of_run, special.nodes if spark else nodes, budget)
    if spark is None:
        _refuse_active_session()
        check_before_start(app, conf, master=None, directory=directory, reads=batches is None, take_over=take_over)
    with ExitStack() as held:
        cluster: EmbeddedCluster | None = None
        if spark is None:
            progress.line(f"starting an embedded cluster of {counted(nodes, 'node')} and the driver")
            cluster = held.enter_context(EmbeddedCluster(nodes, wait=False, progress=progress.line))
            spark = start_session(
                f"holdfast {app.name}",
                cluster.await_master,
                settings=dict(conf),
                progress=progress.driver_is_up,
            )
            held.callback(stop_session, spark)
        progress.reached("session", "the Spark session is up")
        check_requirements(spark)
        settings = _settings(spark, conf, own=cluster is not None)
        by_hand = {**conf_of(spark), **({} if checkpoint_every is None else _EVERY)} | dict(conf)
        remarks: list[str] = []
        if planned is not None:
            settings, remarks = planned.applied(settings, by_hand)
        frames = {}
        if batches is None:
            app = with_absolute_paths(app)
            check_folders(app)
            frames = open_sources(app, spark)
            app = resolved(with_file_columns(app), frames)
        place = run_place(app.name, spark.sparkContext.master, directory or settings.directory)
        names = app.output_names()
        default = {name: f"{place}/out/{name}" for one, name in names.items() if app.sinks.get(one) is None}
        relay = _Relay()
        searches = ThreadPoolExecutor(1, thread_name_prefix="holdfast-plan")
        held.callback(searches.shutdown, wait=False, cancel_futures=True)
        if cluster is not None:
            cluster.await_ready()  # agents must be of one ring before a task looks for them
        running = SparkRun(
            app,
            spark,
            f"{place}/run",
            sinks={**default, **sinks},
            settings=settings,
            checkpoint_every=checkpoint_every,
            log=relay.log,
            emit=relay.emit,
            recovery=special.recovery,
            nodes=nodes if cluster else special.nodes,
            request_nodes=_replacements(cluster, nodes) if cluster else special.request_nodes,
            admits=special.admits,
            secret_file=cluster.secret_file if cluster else None,
            take_over=take_over,
            old_sink=lambda name: f"{place}/out/{name}",
            ready=progress.nodes_ready,
            backups=None if planned is None or f"{PREFIX}retention" in by_hand else planned.backups,
            segments=None if planned is None else planned.executed_segments(by_hand),
            replicas=None if planned is None else planned.replicas,
            origin="" if planned is None else planned.origin,
            replanning=None if planned is None else planned.replanning(settings, by_hand, searches.submit),
        )
        held.callback(running.close)
        events = EventFile(_events_folder(place, relay.log) / "events.jsonl")
        held.callback(events.close)
        shown = None
        if wants_page(page, settings, own=cluster is not None):
            shown = open_page(running, settings, str(place), events.path, relay.log)
        if shown is not None:
            held.callback(shown.close)
        listeners = Listeners(running.id, running.start_id, app.name, relay.log)
        ending = _Ending(running.start_id, relay.emit, listeners)
        held.callback(ending.emit)
        view = RunView(running)
        watching = Watch() if watch is None else watch(running)
        held.callback(watching.closing)
        takers: list[Callable[[Observation], object]] = [events.write, view.emit, progress.observe, watching.emit]
        if settings.tracing_enabled == "true":
            takers.append(RecoveryTracer(app.name, running.id, relay.log).emit)
        relay.join(watching, takers)
        progress.emit = relay.emit
        running.coordinator.describe(start=running.start_id, domains=dict(settings.node_domains))
        if shown is not None:
            relay.log(f"page: {shown.url} (to resume queries there: the token in {events.path.with_name(TOKEN_FILE)})")
        if planned is not None:
            for line in (*planned.lines, *remarks):
                relay.log(line)
            relay.emit(Observation(time.time(), "plan", planned.event() | {"by_hand": remarks}))
            relay.watch(_promise_watch(running, planned))
            if (going_on := running.coordinator.state.plan.now).number:
                relay.log(f"plan {going_on.number}, made by the driver before, stays in force")
                fields = {"batch": running.coordinator.state.checkpoints.global_batch, **plan_fields(going_on)}
                relay.emit(Observation(time.time(), "plan-changed", fields))
        feed: Feed
        if batches is None:
            behind = settings.max_pending_batches
            ingestion = Ingestion(
                app,
                spark,
                running,
                most_behind=behind,
                frames=frames,
                progress=progress,
                settings=settings,
                log=relay.log,
            )
            ended = None if special.has_all is None else partial(special.has_all, running, ingestion)
            feed = SourceFeed(ingestion, running, available_now=available_now, ended=ended)
        else:
            feed = GivenFeed(batches, running)
        held.callback(feed.stop)  # before Spark goes, should the start fail
        feed.start()
        progress.reached("sources")
        loop = RunLoop(
            running,
            feed,
            view,
            held.pop_all(),
            close=close,
            log=relay.log,
            advanced=partial(_report_to, watching.advanced, listeners.progress),
            progress=progress,
        )
        ending.loop = loop
        loop.start()
        return Run(running, feed, view, loop, place, planned, None if shown is None else shown.url, listeners)


def _planned(
    plan: str | Path | Targets | None,
    app: Application,
    directory: str | Path | None,
    nodes: int | None,
    replicas: str | None,
) -> RunPlan | None:
    """Return the plan of a start; it needs no cluster, and what is wrong with it is refused before one starts."""
    storage = None if plan is None or directory is None else open_storage(f"{str(directory).rstrip('/')}/run")
    return plan_for_run(plan, app.topology(), storage, nodes=nodes, never_anchors=never_anchors(app), replicas=replicas)


def _promise_watch(running: SparkRun, planned: RunPlan) -> PromiseWatch:
    graph = running.coordinator.state.graph
    members = {query: graph.members(query) for query in running.program.outputs}
    return PromiseWatch(members, planned.predicted, int(planned.document["targets"]["survive"]))


def _report_to(
    first: Callable[[dict[str, Any]], object], second: Callable[[dict[str, Any]], object], report: dict[str, Any]
) -> None:
    first(report)
    second(report)


class _Ending:
    """Emits how a run ended, as its last event."""

    def __init__(self, start: str, emit: Callable[[Observation], object], listeners: Listeners) -> None:
        self._start, self._emit, self._listeners = start, emit, listeners
        self.loop: RunLoop | None = None

    def emit(self) -> None:
        problem = CheckFailed("it did not start") if self.loop is None else self.loop.problem
        fields = {"start": self._start, "problem": None if problem is None else one_line(str(problem), 500)}
        self._emit(Observation(time.time(), "ended", fields))
        self._listeners.terminated(problem)


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

    def watch(self, promises: PromiseWatch) -> None:
        """Let promises be measured: what comes of it are events like all others."""

        def emit(seen: Observation) -> None:
            for found in promises.emit(seen):
                self._log(promise_line(found))
                self.emit(found)

        self._emit.append(emit)

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

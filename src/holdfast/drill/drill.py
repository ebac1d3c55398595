"""A whole drill: cluster, driver, faults at their times, history, checks, result files. Runs beside the cluster.

The drill keeps the cluster and its nodes; the driver is a process of its own, so that it can be ended like a machine.
Everything that happened is in the history, and what is judged is judged from it and from the outputs' files.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.drill import checkers
from holdfast.drill.accuracy import TentativeAccuracy, compare_tentative
from holdfast.drill.arriving import ArrivingInput
from holdfast.drill.broker import check_broker
from holdfast.drill.checkers import Check, ExactlyOnce, Verdict, compare_rows
from holdfast.drill.cluster_pool import ClusterPool
from holdfast.drill.fault_checkers import check_input, fault_checks, parked_periods
from holdfast.drill.feeds import FeedKind, SourceFeed, feeds_of, reads_sources, with_feeds
from holdfast.drill.history import Event
from holdfast.drill.logged import LoggedInput, logged_input
from holdfast.drill.measures import measure
from holdfast.drill.on_cluster import ClusterDrill, Watch
from holdfast.drill.plan_targets import check_promises
from holdfast.drill.prediction import predict
from holdfast.drill.prepare import aim_at_partitions, prepare_input
from holdfast.drill.reference import Reference, make_reference, reference_of_batches
from holdfast.drill.report import drill_report
from holdfast.drill.result import make_result
from holdfast.drill.scenarios import is_application, scenario_of
from holdfast.drill.schedule import HARMFUL, Fault, FaultKind, left_out, make_schedule
from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy, check_settings
from holdfast.drill.source_files import as_delivered, delivered_columns
from holdfast.errors import BadInput, one_line
from holdfast.planning.recovery.placement import BOUND
from holdfast.reports.document import recovery_document
from holdfast.reports.junit import make_junit
from holdfast.reports.page import make_page
from holdfast.runtime.schemas import conform
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.node_network import check_network
from holdfast.spark.small_disk import check_small_disks
from holdfast.storage.storage import open_storage
from holdfast.topology import Topology

SMALL_DISK_MB = 96
"""The disk of a node that is filled: enough for a small application's state."""
RESULT_FILES = ("result.json", "report.html", "junit.xml", "history.jsonl")
"""What a drill leaves; of an earlier drill in the same directory nothing stays."""
FILL = 0.6
"""Share of a node that the start fills, where no capacity is given."""


@dataclass(frozen=True, slots=True)
class DrillOutcome:
    """What a drill leaves."""

    result: dict[str, Any]
    verdict: Verdict
    directory: Path


def run_drill(
    asked: DrillSettings,
    directory: Path,
    *,
    log: Callable[[str], object] = lambda line: None,
    watch: Watch = lambda event: None,
    keep: bool = False,
    clusters: ClusterPool | None = None,
) -> DrillOutcome:
    """Do one drill and write its files into a directory; the run's own files stay there where it is not ok, or `keep`.

    `log` gets a line for each step of the set-up, `watch` every event as it happens. With `clusters`, the cluster of
    an earlier drill is used again where it is whole. What the sources of a user's application deliver is recorded into
    `input` in the directory and stays there.
    """
    topology = scenario_of(asked).application().topology()
    asked = aim_at_partitions(with_capacity(asked, topology), topology)
    check_settings(asked)
    directory.mkdir(parents=True, exist_ok=True)
    for name in RESULT_FILES:  # a drill that does not come to its end must not leave the verdict of another
        (directory / name).unlink(missing_ok=True)
    work = directory / "run"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    asked = prepare_input(asked, directory, log)
    scenario = scenario_of(asked)
    reads = reads_sources(asked)
    given = list(scenario.batches(asked.seed, asked.batches, asked.rows)) if reads else []
    app = scenario.application()
    feeds = feeds_of(app, asked) if reads else {}
    reference: Reference | None = None
    if not reads or is_application(asked.scenario):
        # Where sources are read, batches are known afterwards: this one finds outputs that differ from run to run.
        log("computing the outputs without failures")
        reference = make_reference(scenario, asked, twice=is_application(asked.scenario))
    began = time.monotonic()
    with ExitStack() as held:
        pool = clusters or held.enter_context(ClusterPool())
        log(f"starting {asked.nodes} nodes")
        parallelism = {name: app.operator(name).parallelism for name in feeds}
        drill = ClusterDrill(asked, topology, work, directory / "history.jsonl", log, watch, given, feeds, parallelism)
        held.callback(drill.close)
        special = cluster_options(asked)
        cluster = (
            held.enter_context(EmbeddedCluster(asked.nodes + standby_nodes(asked), **special))
            if special
            else pool.take(asked.nodes + standby_nodes(asked))
        )
        history, ended = drill.run(cluster)
        if ended and not special:
            pool.give_back(asked.nodes)
        log("comparing outputs")
        logged: LoggedInput | None = None
        if drill.input is not None:
            # Topics are read here too: the broker is there still.
            by_spark = [name for name, one in feeds.items() if one.kind is FeedKind.SPARK]
            logged = logged_input(history, {name: [one[name].num_rows for one in given] for name in by_spark})
            fed = with_feeds(app, feeds, drill.input.folder, drill.brokers)
            reference = reference_of_batches(fed, given, logged.batches, reference)
            rows = {name: table.num_rows for name, table in reference.read.items()}
            problems = (*logged.problems, *reference.problems, *check_rows_read(reference.read, feeds, drill.input))
            logged = replace(logged, problems=problems, in_place=rows)
    assert reference is not None
    compared, unread = compare_outputs(drill.outputs, reference.rows)
    result, checks = judge_drill(
        asked,
        topology,
        history,
        compared,
        ended,
        time.monotonic() - began,
        reference.not_compared,
        logged,
        unread,
        compare_tentative(drill.outputs, scenario.application()) if asked.tentative else {},
    )
    result = write_files(directory, result, checks, history)
    verdict = checkers.judge(checks)
    if verdict is Verdict.OK and not keep:
        shutil.rmtree(work, ignore_errors=True)
    return DrillOutcome(result, verdict, directory)


def write_files(
    directory: Path, result: dict[str, Any], checks: Sequence[Check], history: Sequence[Event]
) -> dict[str, Any]:
    """Write what a drill leaves beside its history: the result, the report, the checks for CI. Return the result."""
    made = drill_report(result, measure(history), checks, history)
    whole = result | recovery_document(made)
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    (directory / "result.json").write_text(text, encoding="utf-8")
    (directory / "report.html").write_text(make_page(made), encoding="utf-8")
    (directory / "junit.xml").write_text(make_junit([(made.title, made)]), encoding="utf-8")
    return whole


def cluster_options(asked: DrillSettings) -> dict[str, Any]:
    """Return what a drill's faults need of its cluster beside nodes; such a cluster is its own."""
    found: dict[str, Any] = {}
    if needs_broker(asked):
        check_broker("--feed kafka" if asked.feed is DrillFeed.KAFKA else asked.scenario)
    if asked.partition:
        check_network()
        found["network"] = True
    if asked.fill_disk:
        check_small_disks()
        found["small_disks"] = {
            str(one.node): SMALL_DISK_MB for one in make_schedule(asked) if one.kind is FaultKind.FILL_DISK
        }
    if asked.take_over:
        found |= {"cores": 4, "memory_mb": 1200}
    return found


def needs_broker(asked: DrillSettings) -> bool:
    """Whether a source of the drill reads a topic; a broker that is to be killed must be there."""
    feeds = feeds_of(scenario_of(asked).application(), asked) if reads_sources(asked) else {}
    found = any(one.kind is FeedKind.KAFKA for one in feeds.values())
    if asked.kill_broker and not found:
        raise BadInput("no source reads Kafka", field="--kill-broker", remedy="give --feed kafka, or leave it out")
    return found


def check_rows_read(read: Mapping[str, pa.Table], feeds: Mapping[str, SourceFeed], arrived: ArrivingInput) -> list[str]:
    """Say what is wrong with the rows that ranges hold: they must be those that arrived."""
    problems = []
    for name, feed in feeds.items():
        if feed.kind is FeedKind.SPARK:
            continue
        given, found = arrived.rows(name), read.get(name)
        columns = delivered_columns(given.column_names, feed.reader)
        if found is not None:
            given = conform(given.select(columns), found.select(columns).schema, f"source {name}")
            found = found.select(columns)
        compared = compare_rows(as_delivered(given.select(columns), feed.reader), found)
        if not compared.holds:
            what = f"{compared.missing} rows are missing, {compared.duplicated} come twice, {compared.wrong} are wrong"
            problems.append(f"{name}: of {compared.expected} rows that arrived, {what}")
    return problems


def with_capacity(asked: DrillSettings, topology: Topology) -> DrillSettings:
    """Give the nodes a capacity where none was asked for: the start fills 60 % of it, or what whole partitions need."""
    if asked.capacity is not None:
        return asked
    each = float(topology.cost.sum()) / asked.nodes
    # Partitions do not split: below the bound there must be room for the fullest node of an even start.
    whole = math.ceil(each / float(topology.cost.max())) * float(topology.cost.max())
    return replace(asked, capacity=round(max(each / FILL, whole / BOUND), 3))


def standby_nodes(asked: DrillSettings) -> int:
    """Return how many nodes stand by at the start."""
    return sum(one.kind is FaultKind.ADD_NODE for one in make_schedule(asked)) if asked.standby else 0


def compare_outputs(
    outputs: str, expected: Mapping[str, pa.Table]
) -> tuple[dict[str, ExactlyOnce], list[tuple[str, str]]]:
    """Compare every output with what is expected; return that, and which outputs cannot be read, with the reason.

    Of an output that no reader can read, all rows are missing.
    """
    compared: dict[str, ExactlyOnce] = {}
    unread: list[tuple[str, str]] = []
    for name, rows in expected.items():
        try:
            found = read_output(f"{outputs}/{name}")
        except pa.ArrowException as error:
            unread.append((name, one_line(str(error))))
            found = None
        compared[name] = checkers.compare_rows(rows, found)
    return compared, unread


def read_output(place: str) -> pa.Table | None:
    """Read an output as any reader of Parquet would: every file that shows."""
    storage = open_storage(place)
    names = [name for name in storage.list() if name.endswith(".parquet") and not name.startswith("_")]
    tables = [pq.read_table(pa.BufferReader(data)) for name in names if (data := storage.read(name)) is not None]
    return pa.concat_tables(tables) if tables else None


def judge_drill(
    asked: DrillSettings,
    topology: Topology,
    history: list[Event],
    compared: dict[str, ExactlyOnce],
    ended: bool,
    seconds: float,
    not_compared: Mapping[str, str],
    logged: LoggedInput | None = None,
    unread: Sequence[tuple[str, str]] = (),
    tentative: Mapping[str, TentativeAccuracy] = MappingProxyType({}),
) -> tuple[dict[str, Any], list[Check]]:
    """Make the checks and the result; `not_compared` says of which outputs rows are not compared, and why.

    `logged`: the batches that the run made of its sources, where it did. `unread`: outputs that cannot be read.
    `tentative`: how right tentative outputs were.
    """
    measures = measure(history)
    schedule = make_schedule(asked)
    ours = asked.strategy is not DrillStrategy.STRUCTURED_STREAMING
    checks = [
        checkers.check_exactly_once(compared, not_compared),
        checkers.check_recovered(measures, history, ended=ended),
        checkers.check_faults(
            history,
            len(schedule),
            measures,
            harmful=sum(one.kind in HARMFUL for one in schedule),
            left_out=left_out(asked, schedule),
        ),
    ]
    if unread:
        words = "; ".join(f"{name} cannot be read: {why}" for name, why in unread)
        checks.append(Check("outputs", Verdict.FAILED, words))
    if logged is not None:
        checks.append(check_input(logged))
    checks += fault_checks(asked, topology, history)
    if (promises := check_promises(asked, history)) is not None:
        checks.append(promises)
    if ours:
        costs = {str(topology.partition(index)): float(cost) for index, cost in enumerate(topology.cost)}
        assert asked.capacity is not None
        checks += [
            checkers.check_bound(history, costs, asked.capacity, BOUND),
            checkers.check_live_queries(measures, asked.strategy, history),
            checkers.check_outboxes(history),
        ]
    troubles = [str(event.fields.get("why")) for event in history if event.kind == "driver-failed"]
    if troubles:
        checks.append(Check("driver", Verdict.FAILED, troubles[-1]))
    killed = sum(one.kind is FaultKind.KILL for one in schedule)
    predicted = predict(asked, topology, history, measures)
    more = {
        "predicted_unavailability": None if predicted is None else round(predicted.unavailability, 3),
        "predicted_back_after": None if predicted is None else predicted.back_after,
        "not_compared": dict(not_compared),
        "exactly_once_by_output": {
            name: asdict(one) for name, one in sorted(compared.items()) if name not in not_compared
        },
        "seconds": round(seconds, 1),
        "parked": parked_periods(history),
        "faults": {str(kind): n for kind in FaultKind if (n := _count(schedule, kind))},
    }
    return make_result(asked, measures, checks, compared, killed, more, tentative), checks


def _count(schedule: tuple[Fault, ...], kind: FaultKind) -> int:
    return sum(one.kind is kind for one in schedule)

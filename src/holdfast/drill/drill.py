"""A whole drill: cluster, driver, faults at their times, history, checks, result files. Runs beside the cluster.

The drill keeps the cluster and its nodes; the driver is a process of its own, so that it can be ended like a machine.
Everything that happened is in the history, and what is judged is judged from it and from the outputs' files.
"""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.drill import checkers
from holdfast.drill.checkers import Check, ExactlyOnce, Verdict
from holdfast.drill.cluster_pool import ClusterPool
from holdfast.drill.driver import DriverJob
from holdfast.drill.driver_process import DriverProcess
from holdfast.drill.driving import Admission
from holdfast.drill.faults import FaultInjector
from holdfast.drill.history import Event, HistoryFile
from holdfast.drill.losses import is_on, placement_of
from holdfast.drill.measures import measure
from holdfast.drill.prediction import predict
from holdfast.drill.prepare import aim_at_partitions, prepare_input
from holdfast.drill.reference import make_reference
from holdfast.drill.report import make_report
from holdfast.drill.result import make_result
from holdfast.drill.scenarios import is_application, scenario_of
from holdfast.drill.schedule import HARMFUL, Fault, FaultKind, make_schedule
from holdfast.drill.settings import DrillSettings, DrillStrategy, check_settings
from holdfast.errors import CheckFailed, HoldfastError
from holdfast.planning.recovery.placement import BOUND
from holdfast.spark.cluster import EmbeddedCluster, Node
from holdfast.storage.storage import open_storage
from holdfast.topology import Queries, Topology

START_SECONDS = 600.0
"""How long a driver may take until it is ready."""
GRACE_SECONDS = 180.0
"""How long after the stream's end, and after the last fault, the drill waits for what is still to come out."""
FILL = 0.6
"""Share of a node that the start fills, where no capacity is given."""
Watch = Callable[[Event], object]


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
    work = directory / "run"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    asked = prepare_input(asked, directory, log)
    log("computing the outputs without failures")
    reference = make_reference(scenario_of(asked), asked, twice=is_application(asked.scenario))
    began = time.monotonic()
    with ExitStack() as held:
        pool = clusters or held.enter_context(ClusterPool())
        log(f"starting {asked.nodes} nodes")
        drill = _Drill(asked, topology, work, directory / "history.jsonl", log, watch)
        history, ended = drill.run(pool.take(asked.nodes + standby_nodes(asked)))
        if ended:
            pool.give_back(asked.nodes)
    log("comparing outputs")
    compared = {
        name: checkers.compare_rows(rows, read_output(f"{drill.outputs}/{name}"))
        for name, rows in reference.rows.items()
    }
    result, checks = judge_drill(
        asked, topology, history, compared, ended, time.monotonic() - began, reference.not_compared
    )
    measures = measure(history)
    (directory / "result.json").write_text(json.dumps(result, ensure_ascii=False, allow_nan=False, indent=2) + "\n")
    (directory / "report.html").write_text(make_report(result, measures, checks, history), encoding="utf-8")
    verdict = checkers.judge(checks)
    if verdict is Verdict.OK and not keep:
        shutil.rmtree(work, ignore_errors=True)
    return DrillOutcome(result, verdict, directory)


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
) -> tuple[dict[str, Any], list[Check]]:
    """Make the checks and the result; `not_compared` says of which outputs rows are not compared, and why."""
    measures = measure(history)
    schedule = make_schedule(asked)
    ours = asked.strategy is not DrillStrategy.STRUCTURED_STREAMING
    checks = [
        checkers.check_exactly_once(compared, not_compared),
        checkers.check_recovered(measures, history, ended=ended),
        checkers.check_faults(history, len(schedule), measures, harmful=sum(one.kind in HARMFUL for one in schedule)),
    ]
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
        "seconds": round(seconds, 1),
        "faults": {str(kind): n for kind in FaultKind if (n := _count(schedule, kind))},
    }
    return make_result(asked, measures, checks, compared, killed, more), checks


def _count(schedule: tuple[Fault, ...], kind: FaultKind) -> int:
    return sum(one.kind is kind for one in schedule)


class _Drill:
    """The cluster, the driver and the clock of one drill."""

    def __init__(
        self,
        asked: DrillSettings,
        topology: Topology,
        work: Path,
        path: Path,
        log: Callable[[str], object],
        watch: Watch,
    ) -> None:
        self._asked, self._topology, self._work, self._path = asked, topology, work, path
        self._log, self._watch = log, watch
        self._admission = work / "admitted"
        self._place = str(work) if asked.storage is None else f"{asked.storage.rstrip('/')}/drill-{uuid4().hex[:8]}"
        self.outputs = f"{self._place}/out"
        self._admitted: list[str] = []
        self._lock = threading.Lock()
        self._drivers = 0
        self._driver: DriverProcess | None = None
        self._history: HistoryFile | None = None

    def run(self, cluster: EmbeddedCluster) -> tuple[list[Event], bool]:
        """Do it all; returns the history, and whether the stream ran to its end."""
        try:
            return self._on(cluster)
        finally:
            if self._driver is not None:
                self._driver.end()

    def _on(self, cluster: EmbeddedCluster) -> tuple[list[Event], bool]:
        self._cluster = cluster
        self._job = DriverJob(
            self._asked,
            cluster.master_url,
            f"{self._place}/state",
            self.outputs,
            -1,
            len(cluster.nodes),
            str(self._admission) if self._asked.standby else None,
            str(cluster.secret_file),
        )
        nodes = sorted(cluster.nodes.values(), key=lambda node: int(node.id.rpartition("-")[2]))
        standby = nodes[self._asked.nodes :]
        self._admitted = [node.host for node in nodes[: self._asked.nodes]]
        Admission.write(self._admission, self._admitted)
        self._log("starting the driver")
        driver = self._start_driver()
        self._await(driver)
        self._history = history = HistoryFile(self._path, time.time(), self._watch)
        history.add(history.began, "begin", self._beginning())
        for node in nodes[: self._asked.nodes]:
            history.add(history.began, "node-started", {"node": str(node.id), "host": node.host})
        driver.begin(history, history.began)
        self._log("the stream has begun")
        injector = FaultInjector(cluster, self._end_driver, self._restart_driver, standby, self._admit)
        ended = self._play(injector, history)
        history.add(time.time(), "end", {"finished": ended})
        if self._driver is not None:
            self._driver.end()
            self._driver = None
        return history.close(), ended

    def _admit(self, node: Node) -> None:
        with self._lock:  # several may come at one moment
            self._admitted.append(node.host)
            Admission.write(self._admission, self._admitted)

    def _beginning(self) -> dict[str, Any]:
        queries = Queries(self._topology)
        names = self._topology.partitions()
        return {
            "queries": {
                str(names[head]): {
                    "priority": int(priority),
                    "members": [str(names[member]) for member in queries.members(number)],
                }
                for number, (head, priority) in enumerate(zip(queries.heads, queries.priority, strict=True))
            },
            **self._asked.document(),
        }

    def _play(self, injector: FaultInjector, history: HistoryFile) -> bool:
        """Do the faults at their times; then wait for the stream's end. False where it did not come in time."""
        asked = self._asked
        waiting = list(make_schedule(asked))
        last = max([asked.batches * asked.batch_seconds, *(fault.at for fault in waiting)])
        while True:
            now = time.time() - history.began
            driver = self._driver
            if driver is not None and driver.finished.is_set() and not waiting:
                return True
            if driver is not None and not driver.running and not driver.finished.is_set():
                if driver.failure is None:
                    history.add(time.time(), "driver-failed", {"why": driver.last_line()})
                return False
            if now > last + GRACE_SECONDS:
                return False
            if waiting and waiting[0].at <= now:
                at = waiting[0].at
                self._do_together(injector, [fault for fault in waiting if fault.at == at], history)
                waiting = [fault for fault in waiting if fault.at != at]
            else:
                time.sleep(max(0.0, min(0.05, waiting[0].at - now)) if waiting else 0.05)

    def _do_together(self, injector: FaultInjector, faults: list[Fault], history: HistoryFile) -> None:
        """Do faults of one moment at once; those whose nodes are chosen by what they have, one after the other."""
        if any(fault.hosting for fault in faults):
            for fault in faults:
                self._do(injector, fault, history)
            return
        with ThreadPoolExecutor(len(faults)) as pool:
            for done in [pool.submit(self._do, injector, fault, history) for fault in faults]:
                done.result()

    def _do(self, injector: FaultInjector, fault: Fault, history: HistoryFile) -> None:
        fault = injector.named(fault)
        fields: dict[str, Any] = {"what": str(fault.kind), "node": fault.node, "value": fault.value}
        moment = time.time()
        try:
            if fault.hosting:
                fault = self._chosen(fault, injector.cluster, history)
                fields["node"] = fault.node
            more = dict(injector.do(fault))
        except HoldfastError as error:
            history.add(moment, "fault-failed", {**fields, "why": str(error)})
            return
        history.add(moment, "fault", {**{name: value for name, value in fields.items() if value is not None}, **more})
        if fault.kind is FaultKind.ADD_NODE:
            history.add(moment, "node-started", {"node": more["node"], "host": more["host"]})

    @staticmethod
    def _chosen(fault: Fault, cluster: EmbeddedCluster, history: HistoryFile) -> Fault:
        """Name the node of a fault that asks for one by what it has."""
        where = placement_of(list(history.events))
        for partition in fault.hosting:
            for node in cluster.nodes.values():
                if is_on(node.host, where.get(partition, "")):
                    return replace(fault, node=node.id)
        raise CheckFailed(f"no node alive has one of {', '.join(fault.hosting)}", where="drill")

    # -- the driver ---------------------------------------------------------------------------------------------------

    def _start_driver(self) -> DriverProcess:
        self._drivers += 1
        self._driver = DriverProcess(self._job, self._work, self._drivers)
        return self._driver

    def _end_driver(self) -> None:
        if self._driver is not None:
            self._driver.end()
            self._driver = None

    def _restart_driver(self) -> None:
        """Start a driver that continues with the nodes there are, in a stream that has begun already."""
        assert self._history is not None
        self._job = replace(self._job, nodes=max(1, len(self._cluster.nodes)), warm=False)
        self._start_driver().begin(self._history, self._history.began)

    def _await(self, driver: DriverProcess) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not driver.ready.wait(0.1):
            if not driver.running or time.monotonic() > deadline:
                raise CheckFailed(
                    f"the driver did not start: {driver.failure or driver.last_line()}",
                    where="drill",
                    remedy=f"see {driver.log}",
                )

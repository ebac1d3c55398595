"""One drill on its cluster: driver, input, faults at their times, history. Runs beside the cluster.

The drill keeps the cluster and its nodes; the driver is a process of its own, so that it can be ended or frozen like a
machine. Everything that happened is in the history.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pyarrow as pa

from holdfast.application import KafkaTopic
from holdfast.drill.arriving import ArrivingInput
from holdfast.drill.broker import DrillBroker
from holdfast.drill.driver import DriverJob
from holdfast.drill.driver_process import DriverProcess
from holdfast.drill.driving import Admission
from holdfast.drill.faults import DriverControl, FaultInjector, FaultPlaces
from holdfast.drill.faulty_operators import POISON, is_hang_untaken
from holdfast.drill.feeds import SourceFeed
from holdfast.drill.history import Event, HistoryFile
from holdfast.drill.resuming import parked_queries, resume_queries
from holdfast.drill.schedule import Fault, FaultKind, Role, make_schedule
from holdfast.drill.settings import DrillSettings
from holdfast.drill.victims import Victims
from holdfast.errors import CheckFailed, HoldfastError
from holdfast.spark.cluster import EmbeddedCluster, Node
from holdfast.storage.storage import open_storage
from holdfast.topology import Queries, Topology

START_SECONDS = 600.0
"""How long a driver may take until it is ready."""
GRACE_SECONDS = 180.0
"""How long after the stream's end, the last fault and the last progress the drill waits for what is still to come."""
PROGRESS = frozenset({"logged", "published", "restored", "driver-ready", "node-arrived"})
"""Events that show that a run goes on, however slowly."""
PARK_SECONDS = 600.0
"""How long the cause of a poisoned query stays at most where nothing is parked."""
OVER_SECONDS = 120.0
"""How long a driver that was superseded may take to end by itself."""
Watch = Callable[[Event], object]


class ClusterDrill:
    """The cluster, the driver and the clock of one drill."""

    def __init__(
        self,
        asked: DrillSettings,
        topology: Topology,
        work: Path,
        path: Path,
        log: Callable[[str], object],
        watch: Watch,
        given: Sequence[dict[str, pa.Table]],
        feeds: Mapping[str, SourceFeed] = MappingProxyType({}),
        parallelism: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`given`: the input of every interval, where sources read it, and by what each is fed (`feeds`).

        `parallelism`: of sources: a topic has two partitions at least.
        """
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
        self._superseded: DriverProcess | None = None
        self._faults = (work / "faults").absolute()  # nodes have working directories of their own
        self._faults.mkdir()
        self.input = (
            ArrivingInput((work / "in").absolute(), given, feeds, seed=asked.seed, disorder=asked.disorder)
            if feeds
            else None
        )
        self._topics = {
            one.reader.topic: max(2, parallelism.get(name, 1))
            for name, one in feeds.items()
            if isinstance(one.reader, KafkaTopic)
        }
        self._broker: DrillBroker | None = None
        self._played = threading.Event()  # set when the stream has ended or was given up
        self._victims = Victims()
        self._over = threading.Event()  # set when the drill is over
        self._threads: list[threading.Thread] = []

    def run(self, cluster: EmbeddedCluster) -> tuple[list[Event], bool]:
        """Do it all; returns the history, and whether the stream ran to its end."""
        try:
            return self._on(cluster)
        finally:
            self._played.set()
            self._over.set()
            if self.input is not None:
                self.input.stop()
            for driver in (self._driver, self._superseded):
                if driver is not None:
                    driver.end()
            for thread in self._threads:
                thread.join()

    @property
    def brokers(self) -> str:
        """Where the drill's broker listens, until `close`; empty: it has none."""
        return "" if self._broker is None else self._broker.servers

    def close(self) -> None:
        """End the drill's broker: its topics are not read any more."""
        if self._broker is not None:
            self._broker.close()

    def _on(self, cluster: EmbeddedCluster) -> tuple[list[Event], bool]:
        self._cluster = cluster
        if self._topics:
            self._log("starting the Kafka broker")
            folder = (self._work / "kafka").absolute()
            self._broker = DrillBroker(folder, self._topics, cluster.host if cluster.cuttable else None)
        self._job = DriverJob(
            self._asked,
            cluster.master_url,
            self._place,
            self.outputs,
            -1,
            len(cluster.nodes),
            str(self._admission) if self._asked.standby else None,
            str(cluster.secret_file),
            input_folder=None if self.input is None else str(self.input.folder),
            faults_folder=str(self._faults),
            brokers=self.brokers or None,
            session=session_settings(self._asked),
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
        if self.input is not None:
            self.input.start(history.began, self._asked.batch_seconds, self._arrived, self._broker)
        self._log("the stream has begun")
        ended = self._play(self._injector(cluster, standby), history)
        if is_hang_untaken(self._faults):
            history.add(time.time(), "hang-not-taken", {"why": "the operator that was to hang had no rows"})
        history.add(time.time(), "end", {"finished": ended})
        self._played.set()
        if self._driver is not None:
            self._driver.end()
            self._driver = None
        for thread in self._threads:
            thread.join(OVER_SECONDS if ended else 0.0)
        return history.close(), ended

    def _injector(self, cluster: EmbeddedCluster, standby: Sequence[Node]) -> FaultInjector:
        control = DriverControl(
            self._end_driver,
            self._restart_driver,
            self._pause_driver,
            self._thaw_driver,
            self._take_over,
            self._end_broker,
            lambda: self._in_background(self._start_broker),
        )
        durable = Path(self._place) / "run" / "checkpoints" if self._asked.storage is None else None
        places = FaultPlaces(self._faults, durable, self._cure)
        return FaultInjector(cluster, control, places, standby, self._admit, self._asked.seed)

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
            if self.input is not None and self.input.problem is not None:
                history.add(time.time(), "driver-failed", {"why": self.input.problem})
                return False
            if driver is not None and not driver.running and not driver.finished.is_set():
                if driver.failure is None:
                    history.add(time.time(), "driver-failed", {"why": driver.last_line()})
                return False
            if now > max(last, last_progress(history.events)) + GRACE_SECONDS:
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

    def _chosen(self, fault: Fault, cluster: EmbeddedCluster, history: HistoryFile) -> Fault:
        """Name the node of a fault that asks for one by what it has."""
        alive = {node.id: node.host for node in cluster.nodes.values()}
        node = self._victims.choose(fault.hosting, fault.role, list(history.events), alive)
        if node is None:
            what = "" if fault.role is Role.ANY else f" as {fault.role}, with a replica that is level"
            raise CheckFailed(f"no node alive has one of {', '.join(fault.hosting)}{what}", where="drill")
        return replace(fault, node=node)

    # -- the driver ---------------------------------------------------------------------------------------------------

    def _start_driver(self) -> DriverProcess:
        self._drivers += 1
        host = self._cluster.host if self._cluster.cuttable else None
        self._driver = DriverProcess(self._job, self._work, self._drivers, host)
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

    def _pause_driver(self) -> None:
        if self._driver is None:
            raise CheckFailed("there is no driver to freeze", where="drill")
        self._driver.pause()

    def _take_over(self) -> None:
        """Start a second driver against the frozen one."""
        assert self._history is not None
        assert self._driver is not None
        self._superseded = self._driver
        self._superseded.supersede()
        self._job = replace(self._job, nodes=max(1, len(self._cluster.nodes)), warm=False, take_over=True)
        self._start_driver().begin(self._history, self._history.began)

    def _thaw_driver(self) -> None:
        """Let the frozen driver go on; one that was superseded as soon as its successor has the run."""
        if self._superseded is None:
            if self._driver is not None:
                self._driver.thaw()
            return
        assert self._driver is not None
        self._in_background(self._see_off, self._superseded, self._driver)

    def _see_off(self, old: DriverProcess, new: DriverProcess) -> None:
        """Thaw a superseded driver, and see whether it ends by itself."""
        assert self._history is not None
        until = time.monotonic() + START_SECONDS
        while not new.ready.wait(0.1) and new.running and time.monotonic() < until:
            if self._over.is_set():
                return
        thawed = time.time()
        old.thaw()
        status = old.await_end(OVER_SECONDS)
        after = round(time.time() - thawed, 3)
        self._history.add(time.time(), "driver-over", {"status": status, "after": after, "why": old.last_line()})

    # -- the input ---------------------------------------------------------------------------------------------------

    def _arrived(self, source: str, fields: Mapping[str, Any]) -> None:
        assert self._history is not None
        self._history.add(time.time(), "arrived", {"source": source, **fields})

    def _end_broker(self) -> None:
        if self._broker is None:
            raise CheckFailed("there is no Kafka broker to kill", where="drill", remedy="give --feed kafka")
        self._broker.kill()

    def _start_broker(self) -> None:
        assert self._broker is not None
        assert self._history is not None
        try:
            self._broker.start()
        except OSError as error:
            self._history.add(time.time(), "fault-failed", {"what": str(FaultKind.START_BROKER), "why": str(error)})

    # -- poisoned queries ---------------------------------------------------------------------------------------------

    def _cure(self) -> None:
        """Remove the cause as soon as a query is parked, and resume what is; a run may park one a moment later too."""
        self._in_background(self._resume_parked)

    def _resume_parked(self) -> None:
        storage = open_storage(f"{self._place}/run")
        assert self._history is not None
        until, resumed = time.monotonic() + PARK_SECONDS, False
        while not self._played.wait(0.5):
            if not resumed and not parked_queries(storage) and time.monotonic() < until:
                continue
            (self._faults / POISON).unlink(missing_ok=True)
            if names := resume_queries(storage):
                self._history.add(time.time(), "resume-requested", {"queries": list(names)})
                self._played.wait(3.0)  # a driver reads requests once a second
            resumed = True

    def _in_background(self, work: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()


def last_progress(events: Sequence[Event]) -> float:
    """Return when the run last showed progress."""
    return next((event.at for event in reversed(events) if event.kind in PROGRESS), 0.0)


def session_settings(asked: DrillSettings) -> dict[str, str]:
    """Return what a drill needs of its Spark sessions."""
    found = two_drivers(asked) if asked.take_over else {}
    return found | ({"spark.decommission.enabled": "true"} if asked.decommission else {})


def two_drivers(asked: DrillSettings) -> dict[str, str]:
    """Return the settings of sessions of which two share the nodes: one executor of each on every node."""
    return {"spark.executor.cores": "2", "spark.cores.max": str(2 * asked.nodes)}

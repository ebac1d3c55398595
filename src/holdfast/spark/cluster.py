"""An embedded cluster: a real standalone master and workers on loopback, each node with an address of its own.

Runs on the driver's machine. Nodes are 127.0.0.2, 127.0.0.3, …: real processes in sessions of their own, so that a node
can be killed or frozen as a machine is, and nothing is left behind however the driver ends (see process_reaper.py). A
node is a Spark worker, its executors with their Python workers, and an agent: the store peer that does background work
for the tasks (see docs/operate/security.md). The agents form one ring. JVMs are kept small: SerialGC, one compiler,
class-data sharing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import holdfast
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import NodeId
from holdfast.spark.class_archive import find_archive, spark_home
from holdfast.spark.cluster_jvm import MODULES, SMALL_JVM, scala_version
from holdfast.spark.java import find_java_home
from holdfast.spark.node_network import NodeNetwork
from holdfast.spark.process_reaper import ProcessReaper, kill_session, session_of, signal_session
from holdfast.spark.slowed_node import SlowedNode
from holdfast.spark.small_disk import fill_up, mount_small_disk
from holdfast.store.agent.agent_files import AgentSettings, agent_ready, enter_ring, write_settings
from holdfast.store.agent.spool import SPOOL_VARIABLE, agent_address
from holdfast.store.wire.address import Address
from holdfast.wording import counted

MASTER_HOST = "127.0.0.1"
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Node:
    """One worker and its agent: the address, and the process group (and session) that is the machine."""

    id: NodeId
    host: str
    group: int
    spool: Path
    """Where tasks on this node leave work for its agent; in their environment as HOLDFAST_SPOOL."""


class EmbeddedCluster:
    """A standalone Spark cluster in processes of this machine; use it as a context."""

    def __init__(
        self,
        nodes: int,
        *,
        cores: int = 2,
        memory_mb: int = 600,
        agents: AgentSettings | None = None,
        wait: bool = True,
        progress: Callable[[str], object] = lambda line: None,
        jvm_options: Callable[[str], Sequence[str]] | None = None,
        network: bool = False,
        small_disks: Mapping[str, int] | None = None,
    ) -> None:
        """Start a master and so many nodes, each with so many cores and so much memory for its executor.

        Of two cores one is for the task that stays, the other for jobs that read sources.

        `agents` says how agents run: fragments, durable folder; where they listen and their secret is seen to here.
        Without `wait`, return at once: `master_url` waits for the master, `await_ready` for all nodes, and what failed
        meanwhile is raised there. `progress` gets a line for each step, in a thread of the cluster's own. `jvm_options`
        gives more options of a JVM, by its process's name; default: Spark's classes from their archive, if it is there.
        As root: with `network`, nodes have a network of their own that can be cut; the local files of the nodes in
        `small_disks` are on a file system of so many MB, which can be filled.
        """
        if nodes < 1 or nodes > 200:
            raise BadInput(f"{nodes} nodes", field="nodes", remedy="give 1 to 200")
        self.cores, self.memory_mb = cores, memory_mb
        self.nodes: dict[NodeId, Node] = {}
        self._java = find_java_home()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
        self._started = 0
        self.secret_file = self.folder / "secret"
        self._agents = replace(
            agents or AgentSettings(fewest_peers=min(2, nodes)),
            peer=True,
            peers=(),
            wait_for_ring=True,
            secret_file=str(self.secret_file),
        )
        self._slowed: dict[NodeId, SlowedNode] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._reaper = ProcessReaper()
        self._reaper.watch_folder(str(self.folder))
        self._progress, self._jvm_options = progress, jvm_options
        self._network: NodeNetwork | None = None
        self._disks = dict(small_disks or {})
        if network:
            self._network = NodeNetwork()
            for words in self._network.undo_commands():
                self._reaper.undo(*words)
        self._stopping = threading.Event()
        self._start: Future[None] = Future()
        self._master: Future[str] = Future()
        self._starter = threading.Thread(target=self._bring_up, args=(nodes,), name="holdfast-cluster", daemon=True)
        try:
            _write_secret(self.secret_file)
            self._starter.start()
            if wait:
                self.await_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def master_url(self) -> str:
        """The address of the master; waits until it has one."""
        return self.await_master()

    def await_master(self) -> str:
        """Wait until the master has an address, and return it."""
        return self._master.result()

    def await_ready(self) -> None:
        """Wait until every node has registered with the master and its agent is part of the ring."""
        self._start.result()

    def _bring_up(self, nodes: int) -> None:
        """Start the processes, as soon as each can be started; runs in a thread of its own."""
        try:
            self._master.set_result(self._start_master())
            for host in [self._next_host() for _ in range(nodes)]:
                self._start_worker(host)
            self._form_ring()
            self._await_workers(nodes)
            self.await_agents()
        except BaseException as error:
            for waited in (self._master, self._start):
                if not waited.done():
                    waited.set_exception(error)
        else:
            self._start.set_result(None)

    def __enter__(self) -> Self:
        """Return the running cluster."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    # -- nodes ----------------------------------------------------------------------------------------------------

    def add_node(self) -> Node:
        """Start one more worker with its agent; it registers with the master, and joins the ring, in a few seconds."""
        there = [str(address) for address in self.agents.values()]
        node = self._start_worker(self._next_host())
        enter_ring(node.spool, there)
        return node

    def kill_node(self, node: NodeId) -> None:
        """End a node as a machine dies: `kill -9` of everything on it at once."""
        gone = self._gone(node)
        kill_session(gone.group)
        self._processes.pop(gone.group).wait()
        self._reaper.forget_group(gone.group)

    def remove_node(self, node: NodeId, seconds: float = 10.0) -> None:
        """Take a node out in good order: everything on it is told to end, the agent leaves the ring, then it goes."""
        gone = self._gone(node)
        self._signal(gone, signal.SIGCONT)
        self._signal(gone, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        process = self._processes.pop(gone.group)
        while session_of(gone.group) and time.monotonic() < deadline:
            process.poll()  # the leader is ours to reap
            time.sleep(0.05)
        kill_session(gone.group)
        process.wait()
        self._reaper.forget_group(gone.group)

    def decommission_node(self, node: NodeId) -> None:
        """Tell the executors of a node that it will go, as cluster managers do before they take a machine away.

        Spark listens where `spark.decommission.enabled` is set; where it is not, the signal ends the executor.
        """
        for pid in session_of(self.nodes[node].group):
            with contextlib.suppress(OSError):
                if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGPWR)

    def freeze_node(self, node: NodeId) -> None:
        """Stop a node without ending it, as a machine that hangs: nothing on it runs, its connections stay open."""
        self._unslow(node)
        self._signal(self.nodes[node], signal.SIGSTOP)

    def thaw_node(self, node: NodeId) -> None:
        """Let a frozen node go on."""
        self._signal(self.nodes[node], signal.SIGCONT)

    def slow_node(self, node: NodeId, share: float) -> None:
        """Let a node run for this share of the time, in turns of a tenth of a second; 1 lets it run freely again."""
        if not 0 < share <= 1:
            raise BadInput(f"{share:g} of the time", field="share", remedy="give a share above 0, up to 1")
        self._unslow(node)
        if share < 1:
            self._slowed[node] = SlowedNode(self.nodes[node].group, share)

    def cut_off(self, node: NodeId) -> None:
        """Cut a node off from all but those that are cut off too; its connections stay open, and carry nothing."""
        self._need_network().cut(self.nodes[node].host)

    def connect(self, node: NodeId) -> None:
        """Connect a node again that was cut off."""
        self._need_network().heal(self.nodes[node].host)

    @property
    def cuttable(self) -> bool:
        """Whether its nodes have a network of their own."""
        return self._network is not None

    def _need_network(self) -> NodeNetwork:
        if self._network is None:
            raise CheckFailed("its nodes are on loopback, which cannot be cut", where="embedded cluster")
        return self._network

    def local_files(self, node: NodeId) -> Path:
        """Return where a node's executors have their local files."""
        return self.folder / node / "local"

    def fill_disk(self, node: NodeId) -> int:
        """Fill the small disk of a node; return how many bytes that took."""
        if node not in self._disks:
            raise CheckFailed(f"{node} has no disk of its own", where="embedded cluster")
        return fill_up(self.local_files(node) / "filler")

    @property
    def host(self) -> str:
        """Where the master listens, and a driver should."""
        return MASTER_HOST if self._network is None else self._network.host

    @property
    def living(self) -> int:
        """How many nodes have their worker's process."""
        return sum(self._processes[node.group].poll() is None for node in self.nodes.values())

    @property
    def agents(self) -> dict[NodeId, Address]:
        """Where the agent of each node listens, of those that do."""
        found = {node.id: agent_address(node.spool) for node in self.nodes.values()}
        return {node: address for node, address in found.items() if address is not None}

    def await_agents(self) -> None:
        """Wait until every node's agent is part of the ring."""
        for node in list(self.nodes.values()):
            self._await_agent(node, "is not ready", partial(agent_ready, node.spool))

    def _form_ring(self) -> None:
        for node in self.nodes.values():
            self._await_agent(node, "did not start", partial(agent_address, node.spool))
        addresses = [str(address) for address in self.agents.values()]
        for node in self.nodes.values():
            enter_ring(node.spool, addresses)

    def _await_agent(self, node: Node, problem: str, look: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not look():
            self._check_going_on()
            if time.monotonic() > deadline or self._processes[node.group].poll() is not None:
                log = (node.spool / "log").read_text(errors="replace").strip().splitlines()[-1:]
                raise CheckFailed(
                    f"the agent of {node.id} {problem}: {(log or ['nothing was logged'])[0]}",
                    where="embedded cluster",
                    remedy="see that the machine has memory and processes left",
                )
            time.sleep(0.01)

    def _gone(self, node: NodeId) -> Node:
        self._unslow(node)
        return self.nodes.pop(node)

    def _unslow(self, node: NodeId) -> None:
        if (slowed := self._slowed.pop(node, None)) is not None:
            slowed.end()

    @staticmethod
    def _signal(node: Node, number: signal.Signals) -> None:
        # The group first, all at once; then what has left it, as Spark's Python workers do.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.group, number)
        signal_session(node.group, number)

    def stop(self) -> None:
        """End every process and remove the cluster's folder."""
        self._stopping.set()
        if self._starter.is_alive():
            self._starter.join()  # it starts no process after this
        for node in list(self._slowed):
            self._unslow(node)
        self._reaper.close()
        # The reaper has ended everything, unless it was itself ended (short of memory, say): then it is done here.
        for group, process in self._processes.items():
            kill_session(group)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._processes.clear()
        self.nodes.clear()

    # -- processes ------------------------------------------------------------------------------------------------

    def _next_host(self) -> str:
        self._started += 1
        return f"127.0.0.{self._started + 1}" if self._network is None else self._network.host_of(self._started)

    def _start_master(self) -> str:
        arguments = ["--host", self.host, "--port", "0", "--webui-port", "0"]
        log = self._spawn("master", "org.apache.spark.deploy.master.Master", arguments, self.host, {})[1]
        return self._await_line(log, r"Starting Spark master at (spark://\S+)", "the master did not start")[0]

    def _start_worker(self, host: str) -> Node:
        name = f"node-{int(host.rpartition('.')[2]) - 1}"
        arguments = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", str(self.cores)]
        arguments += ["--memory", f"{self.memory_mb}m", "--work-dir", str(self.folder / name / "work"), self.master_url]
        spool = self.folder / name / "spool"
        write_settings(spool, replace(self._agents, host=host))
        extra = {"SPARK_LOCAL_DIRS": str(self.folder / name / "local"), SPOOL_VARIABLE: str(spool)}
        main = "org.apache.spark.deploy.worker.Worker"
        within: list[str] = []
        if self._network is not None:
            within, leave = self._network.join(host)
            self._reaper.undo(*leave)
        if name in self._disks:
            local = self.local_files(NodeId(name))
            self._reaper.undo("umount", "-l", str(local))
            mount_small_disk(local, self._disks[name])
        process, _ = self._spawn(name, main, arguments, host, extra, [*within, *_with_agent(spool)])
        node = Node(NodeId(name), host, process.pid, spool)
        self.nodes[node.id] = node
        return node

    def _spawn(
        self,
        name: str,
        main: str,
        arguments: list[str],
        host: str,
        extra: dict[str, str],
        before: Sequence[str] = (),
    ) -> tuple[subprocess.Popen[bytes], Path]:
        home = spark_home()
        archive = find_archive(self._java, home) if self._jvm_options is None else None
        options = [archive.option] if archive else [] if self._jvm_options is None else self._jvm_options(name)
        place = self.folder / name
        place.mkdir(exist_ok=True)
        log = place / "log"
        environment = {
            **os.environ,
            "JAVA_HOME": str(self._java),
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": scala_version(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_NO_DAEMONIZE": "1",
            **extra,
        }
        command = [*before, str(self._java / "bin" / "java"), "-Xmx192m", *SMALL_JVM, *options, *MODULES]
        command += ["-cp", archive.class_path if archive else str(home / "jars" / "*"), main, *arguments]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=place,
                start_new_session=True,
            )
        self._reaper.watch_group(process.pid)
        self._processes[process.pid] = process
        return process, log

    def _check_going_on(self) -> None:
        if self._stopping.is_set():
            raise CheckFailed("was stopped while it started", where="embedded cluster")

    def _await_workers(self, count: int) -> None:
        """Wait until the master has registered so many workers."""
        log, seen = self.folder / "master" / "log", 0

        def count_them(found: list[str]) -> None:
            nonlocal seen
            if len(found) > seen:
                seen = len(found)
                self._progress(f"{seen} of {counted(count, 'node')} registered with the master")

        self._await_line(log, r"Registering worker", "the workers did not register", times=count, look=count_them)

    def _await_line(
        self,
        log: Path,
        pattern: str,
        problem: str,
        times: int = 1,
        look: Callable[[list[str]], object] = lambda found: None,
    ) -> list[str]:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self._check_going_on()
            found = re.findall(pattern, log.read_text(errors="replace"))
            look(found)
            if len(found) >= times:
                return found
            if any(process.poll() is not None for process in self._processes.values()):
                break
            time.sleep(0.05)
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing was logged"]
        raise CheckFailed(
            f"{problem}: {last[0]}", where="embedded cluster", remedy="see that Java 17+ and memory are there"
        )


def _with_agent(spool: Path) -> list[str]:
    """Return what starts a node's agent, then becomes the worker: so both are of one process group and session."""
    # Where this Holdfast is imported from is where the agent's must be.
    path = os.pathsep.join(filter(None, [str(Path(holdfast.__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    script = (
        'python=$1 spool=$2 path=$3; shift 3; PYTHONPATH=$path "$python" -m holdfast.store.agent.agent "$spool" '
        '>"$spool/log" 2>&1 </dev/null & exec "$@"'
    )
    return ["/bin/sh", "-c", script, "sh", sys.executable, str(spool), path]


def _write_secret(path: Path) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))

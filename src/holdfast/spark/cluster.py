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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import holdfast
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import NodeId
from holdfast.spark.java import find_java_home
from holdfast.spark.process_reaper import ProcessReaper, kill_session, session_of, signal_session
from holdfast.store.agent.agent_files import AgentSettings, agent_ready, enter_ring, write_settings
from holdfast.store.agent.spool import SPOOL_VARIABLE, agent_address
from holdfast.store.wire.address import Address

MASTER_HOST = "127.0.0.1"
START_SECONDS = 120.0
TURN_SECONDS = 0.1
"""A slowed node is frozen and thawed once in this time."""

_SMALL_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData", "-Xss512k"]
# What Spark's launcher opens for its own JVMs, as far as a master or a worker needs it.
_OPENED = [
    "lang",
    "lang.invoke",
    "lang.reflect",
    "io",
    "net",
    "nio",
    "util",
    "util.concurrent",
    "util.concurrent.atomic",
]
_MODULES = [
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
]


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
        self, nodes: int, *, cores: int = 2, memory_mb: int = 600, agents: AgentSettings | None = None
    ) -> None:
        """Start a master and so many nodes, each with so many cores and so much memory for its executor.

        Of two cores one is for the task that stays, the other for jobs that read sources.

        `agents` says how agents run: fragments, durable folder; where they listen and their secret is seen to here.
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
        self._slowed: dict[NodeId, _Slowed] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._reaper = ProcessReaper()
        self._reaper.watch_folder(str(self.folder))
        try:
            _write_secret(self.secret_file)
            self.master_url = self._start_master()
            for host in [self._next_host() for _ in range(nodes)]:
                self._start_worker(host)
            self._form_ring()
            self._await_workers(nodes)
            self.await_agents()
        except BaseException:
            self.stop()
            raise

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
            self._slowed[node] = _Slowed(self.nodes[node].group, share)

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
        return f"127.0.0.{self._started + 1}"

    def _start_master(self) -> str:
        arguments = ["--host", MASTER_HOST, "--port", "0", "--webui-port", "0"]
        log = self._spawn("master", "org.apache.spark.deploy.master.Master", arguments, MASTER_HOST, {})[1]
        return self._await_line(log, r"Starting Spark master at (spark://\S+)", "the master did not start")[0]

    def _start_worker(self, host: str) -> Node:
        name = f"node-{int(host.rpartition('.')[2]) - 1}"
        arguments = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", str(self.cores)]
        arguments += ["--memory", f"{self.memory_mb}m", "--work-dir", str(self.folder / name / "work"), self.master_url]
        spool = self.folder / name / "spool"
        write_settings(spool, replace(self._agents, host=host))
        extra = {"SPARK_LOCAL_DIRS": str(self.folder / name / "local"), SPOOL_VARIABLE: str(spool)}
        main = "org.apache.spark.deploy.worker.Worker"
        process, _ = self._spawn(name, main, arguments, host, extra, _with_agent(spool))
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
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        home = Path(spark.origin).parent
        place = self.folder / name
        place.mkdir(exist_ok=True)
        log = place / "log"
        environment = {
            **os.environ,
            "JAVA_HOME": str(self._java),
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": _scala_version(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_NO_DAEMONIZE": "1",
            **extra,
        }
        command = [*before, str(self._java / "bin" / "java"), "-Xmx192m", *_SMALL_JVM, *_MODULES]
        command += ["-cp", str(home / "jars" / "*"), main, *arguments]
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

    def _await_workers(self, count: int) -> None:
        """Wait until the master has registered so many workers."""
        log = self.folder / "master" / "log"
        self._await_line(log, r"Registering worker", "the workers did not register", times=count)

    def _await_line(self, log: Path, pattern: str, problem: str, times: int = 1) -> list[str]:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            found = re.findall(pattern, log.read_text(errors="replace"))
            if len(found) >= times:
                return found
            if any(process.poll() is not None for process in self._processes.values()):
                break
            time.sleep(0.05)
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing was logged"]
        raise CheckFailed(
            f"{problem}: {last[0]}", where="embedded cluster", remedy="see that Java 17+ and memory are there"
        )


class _Slowed:
    """Freezes and thaws a session in turns."""

    def __init__(self, session: int, share: float) -> None:
        self._session, self._share = session, share
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"holdfast-slow-{session}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                signal_session(self._session, signal.SIGSTOP)
                self._end.wait(TURN_SECONDS * (1 - self._share))
                signal_session(self._session, signal.SIGCONT)
                self._end.wait(TURN_SECONDS * self._share)
        finally:
            signal_session(self._session, signal.SIGCONT)

    def end(self) -> None:
        """Let it run freely."""
        self._end.set()
        self._thread.join()


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


def _scala_version(home: Path) -> str:
    """Return what Spark's shell scripts would put into the environment; workers start executors only with it."""
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").split("-")[0]
    raise BadInput("has no spark-core jar", where=str(home), remedy="install pyspark anew: `make clean setup`")

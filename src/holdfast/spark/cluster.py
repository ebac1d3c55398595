"""An embedded cluster: a real standalone master and workers on loopback, each node with an address of its own.

Runs on the driver's machine. Nodes are 127.0.0.2, 127.0.0.3, …: real processes in process groups of their own, so that
a node can be killed as a machine dies, and nothing is left behind however the driver ends (see warden.py). JVMs are
kept small: SerialGC, one compiler, class-data sharing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import NodeId
from holdfast.spark.java import find_java_home
from holdfast.spark.warden import Warden

MASTER_HOST = "127.0.0.1"
START_SECONDS = 120.0

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
    """One worker: its address, and the process group that is the machine."""

    id: NodeId
    host: str
    group: int


class EmbeddedCluster:
    """A standalone Spark cluster in processes of this machine; use it as a context."""

    def __init__(self, nodes: int, *, cores: int = 1, memory_mb: int = 600) -> None:
        """Start a master and so many nodes, each with so many cores and so much memory for its executor."""
        if nodes < 1 or nodes > 200:
            raise BadInput(f"{nodes} nodes", field="nodes", remedy="give 1 to 200")
        self.cores, self.memory_mb = cores, memory_mb
        self.nodes: dict[NodeId, Node] = {}
        self._java = find_java_home()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
        self._started = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._warden = Warden()
        self._warden.watch_folder(str(self.folder))
        try:
            self.master_url = self._start_master()
            for host in [self._next_host() for _ in range(nodes)]:
                self._start_worker(host)
            self._await_workers(nodes)
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

    def add_node(self) -> Node:
        """Start one more worker; it registers with the master in a few seconds."""
        return self._start_worker(self._next_host())

    def kill_node(self, node: NodeId) -> None:
        """End a node as a machine dies: `kill -9` of everything on it at once."""
        gone = self.nodes.pop(node)
        os.killpg(gone.group, signal.SIGKILL)
        self._processes.pop(gone.group).wait()
        self._warden.forget_group(gone.group)

    def stop(self) -> None:
        """End every process and remove the cluster's folder."""
        self._warden.close()
        # The warden has ended everything, unless it was itself ended (short of memory, say): then it is done here.
        for group, process in self._processes.items():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
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
        local = self.folder / name / "local"
        process, _ = self._spawn(
            name, "org.apache.spark.deploy.worker.Worker", arguments, host, {"SPARK_LOCAL_DIRS": str(local)}
        )
        node = Node(NodeId(name), host, process.pid)
        self.nodes[node.id] = node
        return node

    def _spawn(
        self, name: str, main: str, arguments: list[str], host: str, extra: dict[str, str]
    ) -> tuple[subprocess.Popen[bytes], Path]:
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        home = Path(spark.origin).parent
        place = self.folder / name
        place.mkdir()
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
        command = [str(self._java / "bin" / "java"), "-Xmx192m", *_SMALL_JVM, *_MODULES]
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
        self._warden.watch_group(process.pid)
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


def _scala_version(home: Path) -> str:
    """Return what Spark's shell scripts would put into the environment; workers start executors only with it."""
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").split("-")[0]
    raise BadInput("has no spark-core jar", where=str(home), remedy="install pyspark anew: `make clean setup`")

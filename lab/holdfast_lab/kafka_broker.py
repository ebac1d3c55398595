"""A Kafka broker on loopback, for tests, examples and measurements: Apache Kafka, one combined node in KRaft mode.

Its jars come from Maven (46 files, 43 MB) and stay in the user's cache folder: `python -m holdfast_lab.kafka_broker`
fetches them beforehand. A broker is ready in seconds. It can be killed and started again on the same port with the
same data, and has a second listener that wants a name and a password (SASL/PLAIN).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Self

from holdfast.errors import BadInput, one_line
from holdfast.spark.process_reaper import ProcessReaper
from holdfast_lab.s3_server import free_port

VERSION = "4.2.0"
SCALA = "2.13"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
FETCH_SECONDS = 400
START_SECONDS = 120
USER = "holdfast"
"""The name that the second listener wants."""

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>holdfast</groupId><artifactId>broker</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_{SCALA}</artifactId><version>{VERSION}</version>
</dependency><dependency>
<groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.3</version>
</dependency></dependencies></project>
"""


class KafkaBroker:
    """A running broker; it ends with the block, or with this process however that ends."""

    def __init__(
        self,
        *,
        fetch: bool = True,
        settings: dict[str, str] | None = None,
        folder: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """Start it; `fetch`: where its jars are not there, fetch them. `settings` are added to its properties.

        It listens on `host`. With a `folder` it keeps its data there when it ends, and one that is started there again
        has them.
        """
        _need_client()
        self._jars, self._java = find_jars(fetch=fetch), _find_java()
        self._reaper = ProcessReaper()
        if folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="holdfast-kafka-"))
            self._reaper.watch_folder(str(self.folder))
        else:
            self.folder = folder
            folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.password = secrets.token_hex(12)
        kept = self.folder / "ports"
        before = [int(port) for port in kept.read_text().split()] if kept.exists() else None
        ports = (before[0], before[1], before[2]) if before else (free_port(), free_port(), free_port())
        self.servers, self.sasl_servers = f"{host}:{ports[0]}", f"{host}:{ports[1]}"
        try:
            (self.folder / "server.properties").write_text(
                _properties(self.folder, ports, self.password, settings or {}, host)
            )
            if before is None:
                self._format()
                kept.write_text(" ".join(map(str, ports)))
            self.start()
        except BaseException:
            self._reaper.close()
            raise

    def start(self) -> None:
        """Start it, or start it again after `kill`: on the same ports, with the data that it had."""
        with (self.folder / "log").open("ab") as output:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", "server.properties"),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._reaper.watch_group(self._process.pid)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"the Kafka broker did not start: {one_line(self._last_line())}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it, without a chance to end well."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the broker and remove its folder."""
        self._reaper.close()
        if self._process is not None:
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _command(self, main: str, *arguments: str) -> list[str]:
        small = [
            "-Xmx384m",
            "-Xms64m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.net.preferIPv4Stack=true",
        ]
        log = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [str(self._java), *small, log, "-cp", f"{self._jars}/*", main, *arguments]

    def _format(self) -> None:
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._command(
            "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", "server.properties"
        )
        done = subprocess.run(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).splitlines() or ["it printed nothing"]
            raise OSError(f"the Kafka broker's folder cannot be prepared: {one_line(lines[-1])}")

    def _is_ready(self) -> bool:
        """Whether it answers as a broker that takes part: a port that is open does not say that."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "socket.timeout.ms": 2000})
            return bool(client.list_topics(timeout=2.0).brokers)
        except KafkaException:
            return False

    def _last_line(self) -> str:
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it printed nothing"


_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m%n
"""


def _properties(folder: Path, ports: tuple[int, int, int], password: str, more: dict[str, str], host: str) -> str:
    plain, sasl, controller = ports
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://{host}:{plain},SASL://{host}:{sasl},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://{host}:{plain},SASL://{host}:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'{login} required user_{USER}="{password}";',
        "log.dirs": str(folder / "data"),
        "num.network.threads": "2",
        "num.io.threads": "2",
        "num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.cleaner.dedupe.buffer.size": "2097152",
    } | more
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def find_jars(*, fetch: bool = True) -> Path:
    """Return the folder of the broker's jars; fetches them where it is not there. `BadInput` where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    kept = cache / f"kafka-{VERSION}"
    if kept.exists():
        return kept
    if not fetch:
        raise BadInput(
            "no Kafka broker: its jars are not there", remedy="run `python -m holdfast_lab.kafka_broker` once"
        )
    maven = shutil.which("mvn")
    if maven is None:
        raise BadInput("no Kafka broker: Maven (mvn) is not on the PATH", remedy="install it")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _fetch(maven, Path(folder))
            Path(folder, "jars").rename(kept)
    return kept


def check_available(*, fetch: bool = True) -> None:
    """Refuse with one line where no broker can be started here: client, jars or Java are not there."""
    _need_client()
    find_jars(fetch=fetch)
    _find_java()


def _need_client() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ModuleNotFoundError:
        raise BadInput(
            "no Kafka broker: confluent-kafka is not installed", remedy="install the extra `kafka`"
        ) from None


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise BadInput("no Kafka broker: there is no Java on the PATH", remedy="install Java 17 or later")
    return Path(java)


def _fetch(maven: str, folder: Path) -> None:
    (folder / "pom.xml").write_text(_POM)
    goal = [f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"]
    try:
        done = subprocess.run(
            [maven, "-q", "-B", *goal],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"no Kafka broker: fetching its jars took more than {FETCH_SECONDS} s",
            remedy="run `python -m holdfast_lab.kafka_broker` again: Maven keeps what it has",
        ) from None
    if done.returncode or not list((folder / "jars").glob(f"kafka_{SCALA}-{VERSION}.jar")):
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["no output"]
        raise BadInput(
            f"no Kafka broker: Maven failed: {one_line(lines[0], 200)}",
            remedy="let Maven reach Maven Central or a mirror of it",
        )


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_jars()}\n")
    except BadInput as missing:
        sys.exit(str(missing))

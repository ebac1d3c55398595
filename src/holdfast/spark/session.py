"""A Spark session for Holdfast: on loopback, with the settings that small clusters need. Runs on the driver."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadInput
from holdfast.spark.class_archive import spark_home, with_archive
from holdfast.spark.java import find_java_home
from holdfast.spark.requirements import session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"


def _not_from_py4j(record: logging.LogRecord) -> bool:
    """Drop what py4j tells the root logger: it raises the same, and its traceback would stand above our one line."""
    return Path(record.pathname).parent.name != "py4j"


def _quiet_py4j() -> None:
    logging.getLogger().addFilter(_not_from_py4j)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C until the block is done, then raise it.

    Interrupted while it waits for the driver's JVM, PySpark removes the folder through which the JVM would tell its
    port; the JVM then neither works nor ends, and outlives us. Once it is up, it ends with the pipe between us.
    """
    if threading.current_thread() is not threading.main_thread():  # Ctrl-C goes to the main thread only
        yield
        return
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored, or at the system's default: there is nothing to raise
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def is_loopback_master(master: str) -> bool:
    """Whether a master is on this machine's loopback, or in the driver's own process."""
    host = master.partition("://")[2].rpartition(":")[0]
    return master.startswith("local") or host == "localhost" or host.startswith("127.")


def start_session(
    name: str,
    master: str | Callable[[], str],
    *,
    executor_mb: int = 512,
    settings: dict[str, str] | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> SparkSession:
    """Return a session on this master; of one on this machine that is only starting, a function that waits for it.

    The driver's JVM starts meanwhile, with one compiler, as the nodes' have: the second one would use 6 CPU seconds.
    `progress` gets a line for each step.

    With a master on this machine's loopback the driver listens there too, unless SPARK_LOCAL_IP says otherwise, and has
    no page. With another one it listens where that reaches it, by Spark's own rules.
    """
    os.environ["JAVA_HOME"] = str(find_java_home())
    local = callable(master) or is_loopback_master(master)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _quiet_py4j()
    address = os.environ.get("SPARK_LOCAL_IP")
    small_jvm = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
    wanted = {
        **({"spark.ui.enabled": "false"} if local else {}),
        **({} if address is None else {"spark.driver.host": address, "spark.driver.bindAddress": address}),
        "spark.driver.extraJavaOptions": f"{small_jvm if callable(master) else '-XX:+UseSerialGC'} {quiet_logs()}",
        "spark.executor.extraJavaOptions": small_jvm,
        "spark.executor.memory": f"{executor_mb}m",
        **session_settings(),
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    if local:
        wanted = with_archive(wanted, find_java_home(), spark_home())
    conf = SparkConf().setAll(list(wanted.items())).setAppName(name)
    with interrupts_held():
        SparkContext._ensure_initialized(conf=conf if callable(master) else conf.setMaster(master))
    progress("the driver's JVM is up")
    builder = SparkSession.builder.appName(name).master(master() if callable(master) else master)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def quiet_logs() -> str:
    """Return the option of a driver's JVM that keeps its log to what people need."""
    return f"-Dlog4j2.configurationFile={Path(str(files('holdfast.spark').joinpath('log4j2.properties'))).as_uri()}"


def is_submitted() -> bool:
    """Whether spark-submit started this process, and waits for its session."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def submitted_session(name: str, master: str | None, *, settings: dict[str, str] | None = None) -> SparkSession:
    """Return the session that spark-submit prepared, with what Holdfast needs where it is not set."""
    if master is not None:
        raise BadInput(
            "spark-submit names the master", field="--master", remedy="give it before the file: spark-submit --master …"
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _quiet_py4j()
    SparkContext._ensure_initialized()
    conf = SparkConf()  # with what spark-submit was told, and spark-defaults.conf
    builder = SparkSession.builder.appName(conf.get("spark.app.name", name))
    for key, value in {**session_settings(), **(settings or {})}.items():
        if key in (settings or {}) or not conf.contains(key):
            builder = builder.config(key, value)
    return builder.getOrCreate()


def stop_session(spark: SparkSession) -> None:
    """Stop a session, also where Ctrl-C has ended its JVM already, as under spark-submit."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        spark.stop()

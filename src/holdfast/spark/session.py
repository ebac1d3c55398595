"""A Spark session for Holdfast: on loopback, with the settings that small clusters need. Runs on the driver."""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from typing import TYPE_CHECKING

from holdfast.spark.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"


def start_session(
    name: str, master: str, *, executor_mb: int = 512, settings: dict[str, str] | None = None
) -> SparkSession:
    """Return a session on this master; the driver listens on loopback unless the environment says otherwise."""
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    logging = files("holdfast.spark").joinpath("log4j2.properties")
    small_jvm = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
    wanted = {
        "spark.driver.host": os.environ["SPARK_LOCAL_IP"],
        "spark.driver.bindAddress": os.environ["SPARK_LOCAL_IP"],
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -Dlog4j2.configurationFile=file:{logging}",
        "spark.executor.extraJavaOptions": small_jvm,
        "spark.executor.memory": f"{executor_mb}m",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()

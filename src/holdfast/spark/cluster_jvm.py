"""Options of the JVMs of an embedded cluster's master and workers: small, and open as Spark needs. Pure."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import BadInput

SMALL_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData", "-Xss512k"]
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
MODULES = [
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
]


def scala_version(home: Path) -> str:
    """Return what Spark's shell scripts would put into the environment; workers start executors only with it."""
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").split("-")[0]
    raise BadInput("has no spark-core jar", where=str(home), remedy="install pyspark anew: `make clean setup`")

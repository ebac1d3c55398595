"""The cluster that benches of running applications use: embedded, with JVMs as a user would have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.session import start_session

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session

EXECUTOR_MB = 1000
SILENCE = "60s"
"""A node of a bench has failed only after so much silence: a busy machine is not a failure."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a figure was measured on."""

    cores: int
    memory_gb: float
    spark: str
    load: float
    """Processes that wanted to run, mean of the last minute, when the bench began."""


def this_machine() -> Machine:
    """Describe this machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(os.cpu_count() or 1, pages / 1e9, version("pyspark"), os.getloadavg()[0])


@contextmanager
def bench_cluster(
    nodes: int, *, cores: int = 2, settings: dict[str, str] | None = None
) -> Iterator[tuple[EmbeddedCluster, Session]]:
    """Start an embedded cluster and a session on it; both end with the block. Each run holds one of a node's cores.

    The executors' JVMs have all compilers: Structured Streaming lives in them, and would be slow with the small ones
    that the embedded cluster uses otherwise. Shuffle partitions are as many as cores. A query that has nothing to do
    looks again after 100 ms: with Spark's 10 ms fifteen idle queries would keep a core busy while the other side works.
    """
    wanted = {
        "spark.holdfast.keepalive.seconds": SILENCE,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(nodes),
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -Xshare:auto",
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.sql.streaming.noDataProgressEventInterval": "1h",
        **(settings or {}),
    }
    with EmbeddedCluster(nodes, cores=cores, memory_mb=EXECUTOR_MB + 100) as cluster:
        wanted = {"spark.holdfast.store.secretFile": str(cluster.secret_file), **wanted}
        spark = start_session("holdfast bench", cluster.master_url, executor_mb=EXECUTOR_MB, settings=wanted)
        try:
            yield cluster, spark
        finally:
            spark.stop()

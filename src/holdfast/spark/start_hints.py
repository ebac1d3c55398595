"""What a start has to say about settings that work, and leave something off. Runs on the driver; pure.

One line each, with the remedy: nodes that leave without notice, what `exchange=shuffle` is without, agents whose frames
others in the network can read, and operator processes that have hardly more memory than they begin with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdfast.spark.process_memory import SHARE_OF_OVERHEAD, megabytes_of
from holdfast.spark.settings import PREFIX, Settings
from holdfast.store.wire.address import is_loopback

DECOMMISSION = "spark.decommission.enabled"
LITTLE_MEGABYTES = 256
"""An operator process has 50 to 75 MB for itself before the first row (its modules, and those of the application)."""


def start_hints(settings: Settings, conf: Mapping[str, str]) -> list[str]:
    """Return the lines for a run with these settings, in an application with this configuration of Spark."""
    found = (
        decommission_hint(settings, conf),
        shuffle_hint(settings),
        agents_hint(settings, conf),
        memory_hint(settings, conf),
    )
    return [line for line in found if line is not None]


def decommission_hint(settings: Settings, conf: Mapping[str, str]) -> str | None:
    """Return what to set where the cluster manager takes executors away, and Spark does not say so before."""
    master = conf.get("spark.master", "")
    if master != "yarn" and not master.startswith("k8s://"):
        return None
    if settings.exchange != "resident" or conf.get(DECOMMISSION, "false") == "true":
        return None
    return (
        f"{'YARN' if master == 'yarn' else 'Kubernetes'} may take executors away with notice, and {DECOMMISSION} is "
        f"not set: they count as lost, and their queries roll back; set {DECOMMISSION}=true, and partitions move before"
    )


def shuffle_hint(settings: Settings) -> str | None:
    """Return what is off without tasks that stay."""
    if settings.exchange == "resident":
        return None
    return (
        f"{PREFIX}exchange={settings.exchange}: without tasks that stay there are no leases of nodes, no evacuation of "
        f"nodes that leave, and no second copies of partitions; set {PREFIX}exchange=resident to have them"
    )


def agents_hint(settings: Settings, conf: Mapping[str, str]) -> str | None:
    """Return how to encrypt what agents send, where it goes beyond this machine."""
    host = conf.get("spark.driver.host", "localhost")
    if settings.tls_mode == "files" or is_loopback(host):
        return None
    return (
        "fragments of state travel between the agents of nodes authenticated and not encrypted: "
        f"set {PREFIX}tls.mode=files with {PREFIX}tls.cert, {PREFIX}tls.key and {PREFIX}tls.ca to encrypt them"
    )


def memory_hint(settings: Settings, conf: Mapping[str, str]) -> str | None:
    """Return how to give operator processes more memory, where Spark's settings leave little."""
    if settings.exchange != "resident" or settings.node_memory_mb is not None:
        return None
    processes = settings.node_processes or int(conf.get("spark.task.cpus") or 1)
    megabytes = megabytes_of(conf, processes)
    if megabytes is None or megabytes >= LITTLE_MEGABYTES:
        return None
    enough = math.ceil(LITTLE_MEGABYTES * processes / SHARE_OF_OVERHEAD)
    return (
        f"each operator process is killed above {megabytes} MB, its share of what executors have beside the JVM: "
        f"set spark.executor.memoryOverhead={enough}m or more, or {PREFIX}node.memoryMb"
    )

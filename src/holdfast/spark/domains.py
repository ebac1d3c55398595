"""Which failure domain (rack, zone) each host is in: by a setting, by Spark, or by a script. Runs on the driver.

Fragments of one snapshot are kept apart by domain. The first that knows a host decides:

1. `spark.holdfast.node.domains`: HOST=DOMAIN,…
2. Spark's own topology information: what its block managers were told by `spark.storage.replication.topologyMapper`
   (for example `FileBasedTopologyMapper` with `spark.storage.replication.topologyFile`)
3. `spark.holdfast.node.topologyScript`: a script as Hadoop's `net.topology.script.file.name` names it, called with the
   host; it prints the domain

A host that nobody knows is a domain of its own; one line says so.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import one_line
from holdfast.spark.settings import PREFIX, Settings
from holdfast.store.wire.address import is_loopback

if TYPE_CHECKING:
    from pyspark import SparkContext

SCRIPT_SECONDS = 10.0
UNKNOWN = "/default-rack"
"""What Hadoop's scripts print for a host that they do not know."""


class Domains:
    """The failure domains of a run's hosts."""

    def __init__(
        self,
        settings: Settings,
        from_spark: Callable[[], Mapping[str, str]],
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """`from_spark` gives what Spark knows now; `log` gets one line about hosts whose domain is not known."""
        self._given, self._script = dict(settings.node_domains), settings.node_topology_script
        self._from_spark, self._log = from_spark, log
        self._known: dict[str, str | None] = {}

    def of(self, host: str) -> str | None:
        """Return the domain of a host; None: it is not known."""
        if host not in self._known:
            self._known[host] = found = self._find(host)
            if found is None and not is_loopback(host):
                self._log(
                    f"the failure domain of {host} is not known, so it counts as one of its own: fragments may lie in "
                    f"one rack; name it in {PREFIX}node.domains"
                )
        return self._known[host]

    def _find(self, host: str) -> str | None:
        if host in self._given:
            return self._given[host]
        with contextlib.suppress(Exception):  # a Spark that says nothing is asked again for the next host
            if (found := self._from_spark().get(host)) is not None:
                return found
        return None if self._script is None else self._ask_script(self._script, host)

    def _ask_script(self, script: str, host: str) -> str | None:
        try:
            done = subprocess.run(
                [script, host],
                capture_output=True,
                text=True,
                timeout=SCRIPT_SECONDS,
                check=True,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._log(f"{PREFIX}node.topologyScript: {script} does not answer for {host}: {one_line(str(error), 200)}")
            return None
        found = done.stdout.split()
        return found[0] if found and found[0] != UNKNOWN else None


class SparkTopology:
    """Asks Spark's block managers for their topology information, until that cannot be had.

    Py4J looks at all methods of a class that it calls, and Spark 4.3's `SparkEnv` names types of a jar that PySpark
    does not bring: a call ends in a stack trace on the driver's standard error. So no method of it is called; its field
    is read. Asking again and again in vain has ended a JVM (17.0.15: "refcount has gone to zero"), so a process that
    cannot ask does not ask twice.
    """

    def __init__(self) -> None:
        self._cannot = False

    def ask(self, context: SparkContext) -> dict[str, str]:
        """Return what is known, by host; nothing where it cannot be asked."""
        if self._cannot:
            return {}
        try:
            field = context._jvm.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField("blockManager")
            field.setAccessible(True)
            status = field.get(context._jsc.sc().env()).master().getMemoryStatus()
            return topology_of(_keys(status))
        except Exception:  # of Java, or of the connection to it: domains come from settings or a script then
            self._cannot = True
            return {}


_SPARK = SparkTopology()
"""Of this process: it has one JVM."""


def domains_from_spark(context: SparkContext) -> dict[str, str]:
    """Return the topology information that Spark's block managers have, by host."""
    return _SPARK.ask(context)


def topology_of(managers: Iterable[Any]) -> dict[str, str]:
    """Return what block managers were told, by host; of those that were told nothing, nothing."""
    return {str(one.host()): str(info.get()) for one in managers if (info := one.topologyInfo()).isDefined()}


def _keys(status: Any) -> list[Any]:
    found, keys = [], status.keysIterator()
    while keys.hasNext():
        found.append(keys.next())
    return found

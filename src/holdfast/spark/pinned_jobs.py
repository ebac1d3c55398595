"""Jobs pinned to nodes, with exchanges between them: how partitions work where their state is.

Runs on the driver; the work runs in Python workers on the nodes. Spark places tasks where their data is cached. So one
small cached RDD, the anchor, has a partition for every slot, put on the slot's executor; every level of a job unites
the anchor with the blocks that were sent to the slots, and runs where the anchor is. The anchor is united twice: with
it once, large blocks outvoted it and moved tasks (seen: 2 of 4 in every job with skewed blocks).

Placement is a wish that Spark nearly always grants. A task that finds itself elsewhere says so (`misplaced`) instead of
working without its state, drains its input, and the job is run again by the caller on a fresh anchor. Elsewhere is
also another executor of the same host: Spark places a task there when the one it was meant for is busy for too long.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.errors import BadInput
from holdfast.spark.own_executor import own_executor_id

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

DRIVER = -1
"""The slot number under which work sends something to the driver."""

Block = tuple[int, bytes]
"""The slot a block goes to (or the driver), and its bytes."""

Work = Callable[[int, list[bytes]], Iterable[Block]]
"""What a slot does with the blocks it got, in no particular order; gives blocks for slots of the next level."""


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor of the application: its number in Spark, and the host it is on."""

    id: str
    host: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pinned job gave: what was sent to the driver, by slot, and the slots that ran on a wrong executor."""

    reports: tuple[Block, ...]
    misplaced: tuple[int, ...]


def executors_of(context: SparkContext) -> list[Executor]:
    """List the executors that are alive, without the driver, by host."""
    active = context._jsc.sc().statusStore().executorList(True)
    found = []
    for number in range(active.size()):
        one = active.apply(number)
        host = str(one.hostPort()).rpartition(":")[0]
        if one.id() != "driver" and host:  # one that is just coming has no address yet
            found.append(Executor(str(one.id()), host))
    return sorted(found, key=lambda executor: (executor.host, executor.id))


class PinnedSlots:
    """Slots on executors, and jobs over them. Close it when nodes change, and make a new one."""

    def __init__(self, context: SparkContext, executors: Sequence[Executor]) -> None:
        """Pin slot i to executor i; an executor may have several slots."""
        if not executors:
            raise BadInput("no executor to pin to", where="pinned slots", remedy="wait for a node to register")
        self._context = context
        self.executors = tuple(executors)
        self._anchor = self._make_anchor()

    def __len__(self) -> int:
        """How many slots there are."""
        return len(self.executors)

    def __enter__(self) -> Self:
        """Return the slots."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the anchor."""
        self.close()

    def close(self) -> None:
        """Let go of the anchor's cached pieces."""
        self._anchor.unpersist()

    def run(self, levels: Sequence[Work], name: str = "pinned job") -> Outcome:
        """Run levels of work one after the other in one job; blocks of a level reach the next.

        What work sends to the driver at any level comes back as a report; blocks of the last level go nowhere.
        """
        slots = len(self)
        sent: RDD[Any] = self._context.emptyRDD()
        for number, work in enumerate(levels):
            moved = sent.partitionBy(slots, _identity)
            here = self._context.union([self._anchor, self._anchor, moved])
            here.setName(f"{name}, level {number}")  # what Spark's pages show of a stage
            sent = here.mapPartitionsWithIndex(_task(work, self.executors))
        self._context.setJobDescription(name)
        try:
            given = sent.filter(_for_driver).collect()
        finally:
            self._context.setJobDescription(None)
        reports = tuple((slot, block) for slot, (kind, block) in given if kind == "report")
        misplaced = sorted({slot for slot, (kind, _) in given if kind == "misplaced"})
        return Outcome(reports, tuple(misplaced))

    def _make_anchor(self) -> RDD[Any]:
        """Cache one marker per slot on its executor.

        Spark's preferred locations for a placed collection are reachable only through the gateway; the markers are
        then moved to their own partition number by a shuffle whose reduce side is cached where the marker came from.
        """
        from pyspark import RDD, StorageLevel
        from pyspark.serializers import CPickleSerializer, NoOpSerializer

        jvm = self._context._jvm
        assert jvm is not None
        serializer = CPickleSerializer()
        items = jvm.java.util.ArrayList()
        for slot, executor in enumerate(self.executors):
            wish = jvm.java.util.ArrayList()
            wish.add(f"executor_{executor.host}_{executor.id}")
            marker = bytearray(serializer.dumps((slot, ("anchor", b""))))
            items.add(jvm.scala.Tuple2(marker, jvm.PythonUtils.toSeq(wish)))
        tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        placed = self._context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(items), tag)
        raw: RDD[Any] = RDD(placed.toJavaRDD(), self._context, NoOpSerializer())
        anchor = raw.map(serializer.loads).partitionBy(len(self.executors), _identity)
        anchor.persist(StorageLevel.MEMORY_AND_DISK)
        anchor.count()
        return anchor


def pinned_item(context: SparkContext, executor: Executor) -> Any:
    """Return an RDD of one item that Spark places on an executor."""
    from pyspark import RDD
    from pyspark.serializers import CPickleSerializer, NoOpSerializer

    jvm = context._jvm
    assert jvm is not None
    serializer = CPickleSerializer()
    wish = jvm.java.util.ArrayList()
    wish.add(f"executor_{executor.host}_{executor.id}")
    items = jvm.java.util.ArrayList()
    items.add(jvm.scala.Tuple2(bytearray(serializer.dumps(0)), jvm.PythonUtils.toSeq(wish)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    placed = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(items), tag)
    raw: RDD[Any] = RDD(placed.toJavaRDD(), context, NoOpSerializer())
    return raw.map(serializer.loads)


def task_cpus(context: SparkContext) -> int:
    """Return how many cores of an executor each task claims."""
    return int(context.getConf().get("spark.task.cpus", "1") or 1)


def own_host() -> str:
    """Return an address of the node this process runs on, at which others reach it."""
    if named := _named():
        return named
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        found = "127.0.0.1"
    if not found.startswith("127."):
        return found
    # Many systems give their own name a loopback address: take that of the way out. Nothing is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out, suppress(OSError):
        way_out.connect(("192.0.2.1", 9))
        found = str(way_out.getsockname()[0])
    return found


def is_here(executor: Executor) -> bool:
    """Say whether this process belongs to an executor: by its id, where that can be had, and by its host."""
    return own_executor_id() in (None, executor.id) and is_on(executor.host)


def is_on(host: str) -> bool:
    """Say whether this process runs on a host, by the name or the address under which Spark knows it."""
    named = _named()
    if named == host:
        return True
    if named is not None and named.startswith("127."):
        return False  # several nodes on one machine: each has an address of its own
    return host in (socket.gethostname(), socket.getfqdn()) or _is_own_address(host)


def _named() -> str | None:
    return os.environ.get("SPARK_LOCAL_IP") or os.environ.get("SPARK_LOCAL_HOSTNAME") or None


@lru_cache(maxsize=64)
def _is_own_address(host: str) -> bool:
    """Say whether a host is this machine: only on its own addresses can one listen."""
    try:
        addresses = {(one[0], one[4][0]) for one in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    for family, address in addresses:
        with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.bind((address, 0))
            return True
    return False


def _identity(slot: int) -> int:
    return slot


def _for_driver(item: tuple[int, tuple[str, bytes]]) -> bool:
    return item[1][0] in ("report", "misplaced")


def _task(
    work: Work, executors: tuple[Executor, ...]
) -> Callable[[int, Iterator[Any]], Iterator[tuple[int, tuple[str, bytes]]]]:
    """Return what one task of a level does: drain its input, then work if it is where it should be."""

    def run(slot: int, given: Iterator[tuple[int, tuple[str, bytes]]]) -> Iterator[tuple[int, tuple[str, bytes]]]:
        # Drained first, always: a worker that returns before its input is read dies, and its cache with it.
        blocks, reports = [], []
        for target, (kind, block) in given:
            if kind == "block":
                blocks.append(block)
            elif kind != "anchor":
                reports.append((target, (kind, block)))
        # What earlier levels report travels on, under the slot that said it.
        yield from reports
        if not is_here(executors[slot]):
            yield (slot, ("misplaced", b""))
            return
        for target, block in work(slot, blocks):
            yield (slot, ("report", block)) if target == DRIVER else (target, ("block", block))

    return run

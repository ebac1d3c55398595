"""The Delta sinks over a simulated log: crashes before a commit is reported, late drivers, lost answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.io.sinks import Output, OutputKey
from holdfast.storage.memory import MemoryStorage
from holdfast_lab.simulation.recovery.delta_table import LOG, OverSimulatedTable, look_at

QUERY = PartitionId(OperatorId("pages"), 0)
_numbers = count()


class Died(BaseException):
    """The driver is killed."""


class Disturbed:
    """A driver's view of the storage, in which something may happen around the next commit."""

    def __init__(self, world: MemoryStorage) -> None:
        self._world, self.url = world, "simulated"
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None

    def create(self, name: str, data: Any) -> bool:
        if not name.startswith(LOG):
            return self._world.create(name, data)
        before, self.before = self.before, None
        if before is not None:
            before()
        new = self._world.create(name, data)
        after, self.after = self.after, None
        if after is not None:
            after()
        return new

    def read(self, name: str) -> pa.Buffer | None:
        return self._world.read(name)

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        return self._world.list(prefix, after=after)

    def delete(self, names: Iterable[str]) -> None:
        self._world.delete(names)


class Driver(OverSimulatedTable):
    """The sink of a driver."""

    def __init__(self, world: MemoryStorage, *, tentative: bool = False) -> None:
        super().__init__("table", tentative=tentative)
        self.storage = Disturbed(world)
        self._storage_of, self._numbers, self._start = self.storage, _numbers, f"start-{next(_numbers)}"

    def write(self, *batches: int) -> None:
        self.publish_all([Output(key(batch), rows(batch)) for batch in batches], Epoch.of(1, 1))

    def write_tentative(self, batch: int) -> bool:
        return self.publish_tentative(key(batch), rows(batch, 7), 0.5, Epoch.of(1, 1))


def key(batch: int) -> OutputKey:
    return OutputKey(QUERY, BatchId(batch), run="run")


def rows(batch: int, n: int = 1) -> pa.Table:
    return pa.table({"batch": [batch, batch], "n": [n, n + 1]})


def die() -> None:
    raise Died


def lose_the_answer() -> None:
    raise OSError("the answer was lost")


def readers_see(world: MemoryStorage) -> list[tuple[int, int]]:
    table = look_at(world)
    found = []
    for name in table.files if table is not None else ():
        data = world.read(name)
        assert data is not None
        found += [(row["batch"], row["n"]) for row in pq.read_table(pa.BufferReader(data)).to_pylist()]
    return sorted(found)


def wanted(*batches: int) -> list[tuple[int, int]]:
    return [(batch, n) for batch in batches for n in (1, 2)]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("happens", [die, lose_the_answer])
def test_a_batch_whose_commit_is_in_doubt_is_in_the_table_once(moment: str, happens: Callable[[], object]) -> None:
    world = MemoryStorage()
    first, second = Driver(world), Driver(world)
    first.write(0)
    setattr(first.storage, moment, happens)
    with pytest.raises((Died, OSError)):
        first.write(1, 2)
    second.write(1, 2, 3)
    assert readers_see(world) == wanted(0, 1, 2, 3)


def test_a_driver_that_is_frozen_at_its_commit_finds_it_refused_and_adds_nothing() -> None:
    world = MemoryStorage()
    zombie, present = Driver(world), Driver(world)
    zombie.write(0)
    zombie.storage.before = lambda: present.write(1, 2)
    zombie.write(1)
    assert readers_see(world) == wanted(0, 1, 2)


def test_two_queries_do_not_refuse_each_other() -> None:
    world = MemoryStorage()
    one, other = Driver(world), Driver(world)
    one.write(0)
    mine = replace(key(0), query=PartitionId(OperatorId("pages"), 1))
    one.storage.before = lambda: other.publish(mine, rows(5), Epoch.of(1, 1))
    one.write(1)
    assert readers_see(world) == wanted(0, 1, 5)


def test_tentative_rows_of_a_late_driver_do_not_come_after_the_final_ones() -> None:
    world = MemoryStorage()
    zombie, present = Driver(world, tentative=True), Driver(world, tentative=True)
    present.write(0)
    zombie.storage.before = lambda: present.write(1)
    assert not zombie.write_tentative(1)
    assert readers_see(world) == wanted(0, 1)


def test_a_correction_is_made_to_the_table_as_it_is_when_another_commit_has_come_between() -> None:
    world = MemoryStorage()
    one, other = Driver(world, tentative=True), Driver(world, tentative=True)
    one.write(0)
    one.write_tentative(1)
    mine = replace(key(0), query=PartitionId(OperatorId("pages"), 1))
    one.storage.before = lambda: other.publish(mine, rows(5), Epoch.of(1, 1))
    one.write(1)
    assert readers_see(world) == wanted(0, 1, 5)

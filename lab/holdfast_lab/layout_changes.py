"""What changes of a run's layout over its drivers, and what its outputs must be in the end. Used by tools and tests.

A plan draws the layouts; a history notes which of them took effect, as the run's own storage says, and compares the
outputs: a query that was always there gives what it gives in a run that never changed; one that was added or removed,
what it gives of the files between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa

from holdfast.runtime.coordinator.progress import last_driver
from holdfast.storage.records import Records
from holdfast.storage.storage import Storage
from holdfast_lab.changing_queries import QUERIES, SOURCES, Input, Layout, as_lines, expected

PATHS = ((4, 2, 8), (2, 8, 4), (8, 2, 4), (4, 2, 3), (2, 8, 1), (1, 4, 2))
"""How the parallelism of queries goes from one driver to the next."""


class LayoutPlan:
    """Draws which queries a run has, always and now and then, and with which parallelism."""

    def __init__(self, draw: Random, path: tuple[int, ...]) -> None:
        self._draw, self._path = draw, path
        names = [*QUERIES]
        draw.shuffle(names)
        self.always, self.sometimes = names[:3], names[3:6]

    def first(self) -> Layout:
        """Return what the first driver runs."""
        return self._layout(0, frozenset(name for name in self.sometimes if self._draw.random() < 0.5))

    def changed(self, number: int, before: Layout) -> Layout:
        """Draw what changes: the parallelism, which queries there are, or both; now and then nothing."""
        kind = self._draw.choice(("parallelism", "queries", "both", "both", "both", "both", "both", "nothing"))
        there = frozenset(before.queries) & frozenset(self.sometimes)
        wanted = frozenset(name for name in self.sometimes if (name in there) != (self._draw.random() < 0.6))
        fresh = self._layout(number, wanted)
        if kind == "both":
            return fresh
        if kind == "queries":
            stay = {name: many for name, many in before.queries.items() if name in self.always or name in wanted}
            return replace(before, queries={**{name: fresh.queries[name] for name in sorted(wanted)}, **stay})
        if kind == "nothing":
            return before
        return replace(fresh, queries={name: fresh.queries.get(name, 5) for name in before.queries})

    def _layout(self, number: int, sometimes: frozenset[str]) -> Layout:
        main = self._path[number % len(self._path)]
        queries = dict.fromkeys(self.always, main)
        queries |= {name: self._draw.choice((main, 1, 3, 4)) for name in sorted(sometimes)}
        return Layout(queries, {name: self._draw.choice((1, 2, 2, 4)) for name in SOURCES})


@dataclass(frozen=True, slots=True)
class Life:
    """A query between a change of layout that added it and one that removed it; numbers are of files."""

    since: Mapping[str, int]
    until: Mapping[str, int]
    closed: bool


class LayoutHistory:
    """Which layouts a run had, and what must have come out."""

    def __init__(self, storage: Storage, given: Input) -> None:
        self._storage, self._input = storage, given
        self._layouts: dict[int, dict[str, int]] = {}
        """The queries of every generation that took effect, with their parallelism."""

    @property
    def changes(self) -> int:
        """How often the layout changed."""
        return max(self._layouts, default=0)

    def see(self) -> None:
        """Note what the run is now. To be called after every driver: one changes the layout once at most."""
        last = last_driver(self._storage)
        if last is not None and last["identity"] is not None:
            operators = last["identity"]["operators"]
            self._layouts[last["generation"]] = {n: operators[n]["parallelism"] for n in QUERIES if n in operators}

    def changed(self) -> Counter[str]:
        """Count what changed of queries: `4->2`, added, removed."""
        found: Counter[str] = Counter()
        for generation in range(1, self.changes + 1):
            before, now = self._layouts[generation - 1], self._layouts[generation]
            found["added"] += len(now.keys() - before.keys())
            found["removed"] += len(before.keys() - now.keys())
            both = before.keys() & now.keys()
            found.update(f"{before[name]}->{now[name]}" for name in both if before[name] != now[name])
        return found

    def problems(
        self, queries: list[str], files: int, read: Callable[[str], pa.Table | None], counts: Counter[str]
    ) -> Iterator[str]:
        """Compare all outputs of a run over so many files that has ended; `read` returns one. Gives what is wrong."""
        wanted: dict[str, list[str]] = {}
        for source in SOURCES:
            tables = [self._input.table(source, number) for number in range(files)]
            wanted[source] = as_lines(pa.concat_tables(tables))
        begins = self._begins()
        for name in sorted(queries):
            wanted[name] = []
            for life in self._lives(name, begins, files):
                one = Layout({name: 2}, dict.fromkeys(SOURCES, 1))
                wanted[name] += expected(self._input, one, life.since, life.until, closed=life.closed)[name]
        for name, lines in wanted.items():
            found = as_lines(read(name))
            counts["outputs"] += 1
            counts["rows"] += len(found)
            missing, strange = Counter(lines) - Counter(found), Counter(found) - Counter(lines)
            if missing or strange:
                yield (
                    f"{name}: {len(found)} rows, {len(lines)} expected; {missing.total()} missing, {strange.total()} "
                    f"too many; {[*missing][:3]}, {[*strange][:3]}"
                )

    def _begins(self) -> list[tuple[int, dict[str, int]]]:
        """Return the generation of every batch, with how many files of each source come before it."""
        records = Records(self._storage, "batches", version=1)
        files, found = dict.fromkeys(SOURCES, 0), []
        for place, number in enumerate(records.numbers()):
            record: Mapping[str, Any] | None = records.read(number)
            assert record is not None, number
            assert place == number, "records are missing: give fewer files"
            found.append((int(record["generation"]), dict(files)))
            for name, one in record["sources"].items():
                files[name] += sum(one["rows"]) // self._input.rows
        return found

    def _lives(self, query: str, begins: list[tuple[int, dict[str, int]]], files: int) -> list[Life]:
        """Return when a query was there."""
        whole, found = dict.fromkeys(SOURCES, files), []
        since: dict[str, int] | None = None
        for generation in range(self.changes + 1):
            there = query in self._layouts[generation]
            first = next((before for number, before in begins if number >= generation), whole)
            if there and since is None:
                since = first
            elif not there and since is not None:
                found.append(Life(since, first, closed=False))
                since = None
        return found if since is None else [*found, Life(since, whole, closed=True)]

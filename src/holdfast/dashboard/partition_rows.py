"""The rows of a run's partitions, with what is counted over them kept current row by row. Pure.

A view is made several times a second, and a run may have thousands of partitions: counts by state, by query and by node
follow every change, so that nothing is counted anew for a view. Rows are replaced, never changed, so that what was sent
can be compared with what there is by identity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

Row = Mapping[str, Any]
DOWN = ("lost", "restoring")
SHOWN = {"running": "healthy", "catching-up": "replaying"}
"""What people call states of partitions where that differs."""
_LIVE = ("running", "catching-up")


def row_of(name: str, state: str, node: object, since: float, batch: object = None) -> dict[str, Any]:
    """Return the row of a partition."""
    place = {"id": name, "state": state, "node": node, "since": since, "batch": batch}
    return {**place, "fragments": None, "fetched": None, "replica": None, "tentative": False}


def shown_state(row: Row) -> str:
    """Return what people call the state of a row: one that runs on incomplete inputs is tentative."""
    state = str(row["state"])
    return "tentative" if row["tentative"] and state in _LIVE else SHOWN.get(state, state)


class PartitionRows(Mapping[str, Row]):
    """Rows by the names of partitions. `put` is the only way in."""

    def __init__(
        self, queries_of: Mapping[str, Iterable[str]] = MappingProxyType({}), rows: Iterable[Row] = ()
    ) -> None:
        """`queries_of`: the queries that need each partition."""
        self._group_of = {name: tuple(queries) for name, queries in queries_of.items()}
        self._groups_in: dict[str, list[tuple[str, ...]]] = {}
        for group in set(self._group_of.values()):
            for query in group:
                self._groups_in.setdefault(query, []).append(group)
        self._in_group: dict[tuple[str, ...], dict[str, int]] = {one: {} for one in self._group_of.values()}
        """How many are in each state, of the partitions that the same queries need."""
        self._rows: dict[str, Row] = {}
        self._copy: dict[str, Row] | None = None
        self.shown: Counter[str] = Counter()
        """How many are in each state, by the names that people see."""
        self.down: set[str] = set()
        """Those that process nothing: lost, or being restored."""
        self.on: dict[str, set[str]] = {}
        """Those on each node."""
        self.replicas: Counter[bool] = Counter()
        """How many have a replica that is level (True), or being built (False)."""
        self.replicas_on: dict[str, set[str]] = {}
        """Those that have a replica on each node."""
        for row in rows:
            self.put(row)

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def copy(self) -> dict[str, Row]:
        """Return the rows as they are now: the same object until one changes."""
        if self._copy is None:
            self._copy = self._rows.copy()
        return self._copy

    def put(self, row: Row) -> None:
        """Take a row in the place of the one before."""
        name = str(row["id"])
        before = self._rows.get(name)
        if before is not None:
            self._count(name, before, -1)
        self._count(name, row, 1)
        self._rows[name], self._copy = row, None

    def _count(self, name: str, row: Row, by: int) -> None:
        state, node, replica = row["state"], row["node"], row["replica"]
        _add(self.shown, shown_state(row), by)
        if name in self._group_of:
            _add(self._in_group[self._group_of[name]], state, by)
        if replica is not None:
            _add(self.replicas, bool(replica["level"]), by)
            on = self.replicas_on.setdefault(replica["node"], set())
            (on.add if by > 0 else on.discard)(name)
        if by > 0:
            if state in DOWN:
                self.down.add(name)
            if node is not None:
                self.on.setdefault(node, set()).add(name)
        else:
            self.down.discard(name)
            if node is not None:
                self.on[node].discard(name)

    def states_in(self, query: str) -> set[str]:
        """Return the states in which partitions of a query are."""
        return {state for group in self._groups_in.get(query, ()) for state in self._in_group[group]}

    def down_in(self, query: str) -> int:
        """Return how many of a query's partitions are down."""
        return sum(_down(self._in_group[group]) for group in self._groups_in.get(query, ()))

    def first_down(self, name: str) -> list[str]:
        """Return the queries of which this partition is the only one that is down."""
        group = self._group_of.get(name, ())
        if not group or name not in self.down or _down(self._in_group[group]) > 1:
            return []
        return [query for query in group if self.down_in(query) == 1]

    def lost(self) -> list[Row]:
        """Return the rows of those that have no node."""
        return [row for name in self.down if (row := self._rows[name])["state"] == "lost"]


def _down(states: Mapping[str, int]) -> int:
    return sum(states.get(state, 0) for state in DOWN)


def _add(counts: dict[Any, int], key: Any, by: int) -> None:
    left = counts.get(key, 0) + by
    if left:
        counts[key] = left
    else:
        del counts[key]

"""The recovery of every partition, and why this order, from the events of a run or of a drill. Runs anywhere; pure.

A partition's recovery has up to four phases: from the fault to its detection (only a drill knows when the fault was),
waiting for a plan that places it, restoring its snapshot, and replaying batches until it is level with the log. The
order follows from the plans: each names what it brings back, and what it leaves out until there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.reports.model import GanttRow, Phase, PlanRow, QuerySpec, Seen
from holdfast.wording import counted

ENDS_DRIVER = frozenset({"kill-driver", "take-over"})
"""Faults of a drill after which a driver begins anew with every partition."""
_LIVE = frozenset({"running", "catching-up", "paused", "parked"})
_SIGNS = frozenset({"cycle", "published"})
"""Events that only a driver at work has."""
_PHASES = {"undetected": "undetected", "lost": "waiting", "restoring": "restoring", "catching-up": "replaying"}
_MOST_NAMES = 4


@dataclass(slots=True)
class _Partition:
    state: str | None = None
    """As of the last event; None: it has not been live yet."""
    node: str = ""
    since: float = 0.0
    phases: list[Phase] = field(default_factory=list)
    plans: list[int] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    lost: bool = False
    rolled_back_to: int | None = None
    promoted_from: str | None = None
    """The node whose place its replica has taken, without a restore."""
    recovering: bool = False
    """Since it was lost or rolled back, until it is level with the log."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """All recoveries of a history."""

    rows: tuple[GanttRow, ...]
    plans: tuple[PlanRow, ...]
    driver_ends: tuple[tuple[float, float], ...]
    """When a driver was last seen, and when the next one placed partitions."""


def recovery_of(
    events: Iterable[Seen],
    queries: Mapping[str, QuerySpec],
    end: float,
    struck: Callable[[str, float], float] = lambda partition, seen: seen,
) -> Recovery:
    """Read the recoveries; `struck` gives when the fault was that took a partition, which was detected at `seen`."""
    found = _Reader(queries, struck)
    for event in events:
        found.take(event)
    return found.finish(end)


class _Reader:
    def __init__(self, queries: Mapping[str, QuerySpec], struck: Callable[[str, float], float]) -> None:
        self._queries, self._struck = queries, struck
        self._partitions: dict[str, _Partition] = {}
        self._plans: list[PlanRow] = []
        self._claim: int | None = None
        self._sign = 0.0
        """When a driver last showed that it works."""
        self._trigger = (0.0, "")
        self._ends: list[tuple[float, float]] = []

    def take(self, event: Seen) -> None:
        given = event.fields
        match event.kind:
            case "run":
                self._claimed(int(given.get("claim", 0)), event.at)
            case "epoch":
                self._claimed(int(given.get("claim", 0)), event.at)
                self._trigger = (event.at, str(given.get("why") or ""))
            case "fault" if given.get("what") in ENDS_DRIVER:
                self._driver_over(event.at)
            case "planned":
                self._planned(event)
            case "rolled-back":
                for name in given.get("partitions", ()):
                    one = self._partition(str(name))
                    one.rolled_back_to, one.recovering = int(given["to"]), True
            case "state":
                self._changed(event.at, str(given["partition"]), str(given["before"]), str(given["after"]))
                if given.get("node"):
                    self._partition(str(given["partition"])).node = str(given["node"])
            case "promoted":
                one = self._partition(str(given["partition"]))
                one.node, one.recovering = str(given.get("node") or one.node), True
                one.promoted_from = str(given.get("before") or "")
            case "restored":
                one = self._partition(str(given["partition"]))
                one.node = str(given.get("node") or one.node)
                if one.state in {"lost", "restoring"}:
                    self._move(one, event.at, "catching-up")
            case kind if kind in _SIGNS:
                self._sign = event.at

    def _partition(self, name: str) -> _Partition:
        return self._partitions.setdefault(name, _Partition())

    def _claimed(self, claim: int, at: float) -> None:
        if self._claim is not None and claim > self._claim:
            self._driver_over(self._sign)
            self._ends.append((self._sign, at))
        self._claim = max(claim, self._claim or 0)

    def _driver_over(self, at: float) -> None:
        """A driver is gone: every partition begins anew with the next one."""
        for one in self._partitions.values():
            if one.state in _LIVE or one.state == "restoring":
                self._move(one, at, "lost")

    def _changed(self, at: float, name: str, before: str, after: str) -> None:
        one = self._partition(name)
        if one.state is None and before not in _LIVE and after not in _LIVE:
            return  # the start of the run
        if after == one.state:
            return
        if after == "lost" and one.state != "lost":
            fault = min(self._struck(name, at), at)
            self._move(one, fault, "undetected")
        self._move(one, at, after)

    @staticmethod
    def _move(one: _Partition, at: float, state: str) -> None:
        kind = _PHASES.get(one.state or "")
        if kind is not None and one.recovering and at > one.since:
            one.phases.append(Phase(one.since, at, kind))
        if state in {"lost", "undetected"}:
            one.lost = one.recovering = True
        elif state == "running":
            one.recovering = False
        one.state, one.since = state, at if state == "undetected" else max(at, one.since)

    def _planned(self, event: Seen) -> None:
        placed = tuple(str(name) for name in event.fields.get("recover", ()))
        placement = event.fields.get("placement", {})
        for name in placed:
            one = self._partition(name)
            one.node = str(placement.get(name) or one.node)
        if not any(self._partition(name).state is not None for name in placed):
            for name in placed:
                self._partition(name)
            return  # the start of the run
        number = len(self._plans) + 1
        left = tuple(str(name) for name in event.fields.get("left_out", ()))
        for name in placed:
            self._partition(name).plans.append(number)
        for name in left:
            self._partition(name).left_out.append(number)
        queries = tuple(str(name) for name in event.fields.get("queries", ()))
        trigger = self._trigger[1] if event.at - self._trigger[0] < 2.0 else ""
        self._plans.append(
            PlanRow(number, event.at, trigger, placed, queries, left, self._plan_reason(placed, queries, left))
        )

    def _plan_reason(self, placed: Sequence[str], queries: Sequence[str], left: Sequence[str]) -> str:
        words = f"{counted(len(placed), 'partition')} placed"
        if queries:
            total = sum(self._priority(name) for name in queries)
            words += f": whole again with {'it' if len(placed) == 1 else 'them'} {self._named(queries)}"
            words += f", priority {total} in all" if len(queries) > 1 else ""
        if not left:
            return f"{words}. Nothing is left out."
        waiting = [name for name, one in self._queries.items() if name not in queries and one.members & set(left)]
        words += f". {counted(len(left), 'partition')} left out: the nodes there were have no room for more"
        if waiting:
            words += f", so {self._named(waiting)} {'waits' if len(waiting) == 1 else 'wait'}"
        return f"{words}."

    def _priority(self, query: str) -> int:
        return self._queries[query].priority if query in self._queries else 0

    def _named(self, queries: Iterable[str]) -> str:
        ordered = sorted(queries, key=lambda name: (-self._priority(name), name))
        shown = ", ".join(
            f"{name} (priority {self._priority(name)})" if name in self._queries else name
            for name in ordered[:_MOST_NAMES]
        )
        return shown + (f" and {len(ordered) - _MOST_NAMES} more" if len(ordered) > _MOST_NAMES else "")

    def finish(self, end: float) -> Recovery:
        rows = []
        for name, one in self._partitions.items():
            phases = list(one.phases)
            if one.recovering and one.state in _PHASES and end > one.since:
                phases.append(Phase(one.since, end, _PHASES[one.state], open=True))
            if phases:
                rows.append(
                    GanttRow(
                        name,
                        one.node,
                        tuple(phases),
                        self._reason(name, one),
                        rolled_back=one.rolled_back_to is not None and not one.lost,
                    )
                )
        rows.sort(key=_order)
        return Recovery(tuple(rows), tuple(self._plans), tuple(self._ends))

    def _reason(self, name: str, one: _Partition) -> str:
        if not one.lost and one.promoted_from is not None:
            return f"its replica took the place of the one on {one.promoted_from or 'a node'}: nothing was restored"
        if not one.lost:
            return (
                f"it was live: rolled back to batch {one.rolled_back_to}, to regenerate batches that a restored "
                "partition needs"
            )
        needing = [query for query, spec in self._queries.items() if name in spec.members]
        words = f"needed by {self._named(needing)}" if needing else ""
        if one.plans:
            plans = ", ".join(map(str, one.plans))
            words = f"plan{'s' if len(one.plans) > 1 else ''} {plans}" + (f": {words}" if words else "")
        if one.left_out:
            waited = ", ".join(map(str, one.left_out))
            words += f"; no room in plan{'s' if len(one.left_out) > 1 else ''} {waited}"
        if not one.plans:
            words += "; no plan has placed it" if not one.left_out else ""
        return words.strip("; ")


def _order(row: GanttRow) -> tuple[bool, float, float, str]:
    restore = next((one.begin for one in row.phases if one.kind == "restoring"), row.phases[-1].end)
    return (row.rolled_back, restore, row.phases[-1].end, row.partition)

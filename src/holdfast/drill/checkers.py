"""Whether a drill went well: the verdict of each check is ok, failed or unknown, with a reason. Runs anywhere; pure.

| check | what must hold |
|---|---|
| exactly once | the rows of every output are those of a run of the same input without failures |
| recovered | every query that went down came back |
| bound | no plan puts a node above its bound |
| live queries | no query that lost nothing waited for one that waited for a node |
| outboxes | at the end nothing is kept that the last checkpoint covers |
| faults | every fault that was asked for was done, and at least one hit a partition: it was lost, or taken over |

The drill is `failed` where one check failed, else `unknown` where one could not be made, else `ok`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import pyarrow as pa

from holdfast.drill.history import Event
from holdfast.drill.losses import LOST, TAKES_EVERYTHING, find_takeovers
from holdfast.drill.measures import DrillMeasures
from holdfast.drill.schedule import FaultKind
from holdfast.drill.settings import DrillStrategy
from holdfast.wording import counted

NEVER_WAITS = frozenset({DrillStrategy.INCREMENTAL, DrillStrategy.OPERATOR_CENTRIC, DrillStrategy.BEST_CASE})
"""Strategies under which a live query does not wait for a dead one."""
DRIVER_STOPS = TAKES_EVERYTHING | {FaultKind.PAUSE_DRIVER}
_ROUNDING = 1e-9


class Verdict(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """The verdict of one check, with the reason where it is not ok (or what it looked at, where it is)."""

    name: str
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """Rows expected, and what was found to differ from them."""

    expected: int = 0
    missing: int = 0
    """Expected, and not there."""
    duplicated: int = 0
    """There more often than expected."""
    wrong: int = 0
    """There, and not expected at all."""

    def __add__(self, other: ExactlyOnce) -> ExactlyOnce:
        return ExactlyOnce(
            self.expected + other.expected,
            self.missing + other.missing,
            self.duplicated + other.duplicated,
            self.wrong + other.wrong,
        )

    @property
    def holds(self) -> bool:
        """Whether every row came out once."""
        return not (self.missing or self.duplicated or self.wrong)


def compare_rows(expected: pa.Table, found: pa.Table | None) -> ExactlyOnce:
    """Compare rows as bags: their order and files do not matter, their columns, values and number do."""
    columns = expected.column_names
    if found is None:
        return ExactlyOnce(expected.num_rows, missing=expected.num_rows)
    if set(found.column_names) != set(columns):
        return ExactlyOnce(expected.num_rows, missing=expected.num_rows, wrong=found.num_rows)
    # As a rule they are equal, and this is a hundred times faster than counting; lists and structs have no order.
    with suppress(pa.ArrowException, TypeError):
        if _in_order(expected, columns).equals(_in_order(found, columns)):
            return ExactlyOnce(expected.num_rows)
    want, have = counted_rows(expected, columns), counted_rows(found, columns)
    missing = duplicated = wrong = 0
    for row, count in want.items():
        there = have.get(row, 0)
        missing += max(0, count - there)
        duplicated += max(0, there - count)
    wrong = sum(count for row, count in have.items() if row not in want)
    return ExactlyOnce(expected.num_rows, missing, duplicated, wrong)


def _in_order(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    ordered = table.select(columns).replace_schema_metadata(None)
    return ordered.sort_by([(name, "ascending") for name in columns]).combine_chunks()


def counted_rows(table: pa.Table, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Return how often a table has each row."""
    return Counter(zip(*(map(_comparable, table[name].to_pylist()) for name in columns), strict=True))


def _comparable(value: Any) -> Any:
    """Return a value that equals itself: not-a-number does not, and lists cannot be counted."""
    if isinstance(value, float) and math.isnan(value):
        return "not a number"
    return repr(value) if isinstance(value, list | dict) else value


def check_exactly_once(compared: Mapping[str, ExactlyOnce], not_compared: Mapping[str, str] | None = None) -> Check:
    """Judge the comparison of every output; those whose rows differ from run to run anyway are named, not compared."""
    name = "exactly once"
    total = sum(compared.values(), ExactlyOnce())
    left = "; ".join(f"{output} is not compared: {why}" for output, why in (not_compared or {}).items())
    if not total.expected and total.holds:
        if left:
            return Check(name, Verdict.UNKNOWN, f"no output can be compared row by row: {left}")
        return Check(name, Verdict.UNKNOWN, "no output has rows even without failures: give more batches or rows")
    if total.holds:
        return Check(name, Verdict.OK, f"{counted(total.expected, 'row')}, each once{f'; {left}' if left else ''}")
    worst = [
        f"{output}: {one.missing} missing, {one.duplicated} duplicated, {one.wrong} wrong"
        for output, one in compared.items()
        if not one.holds
    ]
    return Check(name, Verdict.FAILED, "; ".join(worst))


def check_recovered(measures: DrillMeasures, history: Sequence[Event], *, ended: bool) -> Check:
    """Every query that went down is back, and recovery has ended, where the stream ran to its end."""
    name = "recovered"
    away = [one.query.id for one in measures.failed if one.back_at is None]
    if away:
        return Check(name, Verdict.FAILED, f"{', '.join(away[:5])} did not come back")
    if not ended:
        return Check(name, Verdict.UNKNOWN, "the drill ran out of time before the stream had ended")
    if (since := _recovering_since(history)) is not None:
        return Check(name, Verdict.FAILED, f"what was lost at {since:.1f} s is back, and recovery has not ended")
    return Check(
        name, Verdict.OK, f"{len(measures.failed)} of {len(measures.queries)} queries were down, all came back"
    )


def _recovering_since(history: Sequence[Event]) -> float | None:
    """Return when the last driver last lost something, unless its recovery ended after that."""
    since = None
    for event in history:
        if event.kind in {"driver-ready", "recovery-ended"}:
            since = None
        elif event.kind == "state" and event.fields["after"] == LOST:
            since = event.at
    # A history without a plan is not one of ours: Structured Streaming has no recovery that could end.
    return since if any(event.kind == "planned" for event in history) else None


def check_faults(
    history: Sequence[Event],
    scheduled: int,
    measures: DrillMeasures,
    *,
    harmful: int,
    left_out: str | None = None,
) -> Check:
    """The faults of the schedule were done; where some should take partitions, they did.

    `left_out` says which faults were asked for and have no place in the schedule.
    """
    name = "faults"
    if left_out is not None:
        return Check(name, Verdict.UNKNOWN, left_out)
    done = sum(event.kind == "fault" for event in history)
    if done < scheduled:
        return Check(name, Verdict.UNKNOWN, f"only {done} of {scheduled} faults were done before the stream ended")
    problems = [event for event in history if event.kind == "fault-failed"]
    if problems:
        return Check(name, Verdict.UNKNOWN, f"a fault could not be done: {problems[0].fields.get('why')}")
    taken_over = find_takeovers(history)
    if harmful and not measures.failed and not taken_over:
        return Check(name, Verdict.UNKNOWN, "no fault hit a partition: the nodes had none")
    covered = f", {counted(len(taken_over), 'partition')} taken over by replicas" if taken_over else ""
    return Check(name, Verdict.OK, f"{counted(done, 'fault')} done{covered}")


def check_bound(history: Sequence[Event], costs: Mapping[str, float], capacity: float, bound: float) -> Check:
    """No plan puts more on a node than its bound allows: what is there already and what the plan adds."""
    name = "bound"
    where: dict[str, str] = {}
    plans = 0
    worst = 0.0
    for event in history:
        given = event.fields
        if event.kind in {"node-lost", "node-silent"}:
            where = {partition: node for partition, node in where.items() if node not in given["nodes"]}
        elif event.kind == "fault" and given["what"] in TAKES_EVERYTHING:
            where = {}  # a driver that starts again begins with nothing placed
        elif event.kind == "state" and given["after"] == LOST:
            where.pop(str(given["partition"]), None)
        elif event.kind in {"placed", "planned"}:
            plans += event.kind == "planned"
            added = {str(partition): str(node) for partition, node in given.get("placement", {}).items()}
            where.update(added)
            for node in sorted(set(added.values())):
                load = sum(costs.get(partition, 1.0) for partition, on in where.items() if on == node)
                worst = max(worst, load / capacity)
                if event.kind == "planned" and load > bound * capacity * (1 + _ROUNDING):
                    what = f"{node} was planned to carry {load:g}, above {bound:g} of {capacity:g}"
                    return Check(name, Verdict.FAILED, f"{what}, at {event.at:.1f} s")
    if not plans:
        return Check(name, Verdict.OK if not costs else Verdict.UNKNOWN, "the history has no plan")
    return Check(name, Verdict.OK, f"{counted(plans, 'plan')}, the fullest node at {worst:.0%} of its capacity")


def check_live_queries(measures: DrillMeasures, strategy: DrillStrategy, history: Sequence[Event]) -> Check:
    """Live queries went on: each has an output of a batch that was due after the fault, so was not on its way then.

    It came before the first output of a query that had to wait for a new node.
    """
    name = "live queries"
    if measures.fault_at is None:
        return Check(name, Verdict.OK, "no fault took a partition")
    if any(event.kind == "fault" and event.fields["what"] in DRIVER_STOPS for event in history):
        return Check(name, Verdict.OK, "the driver was ended or frozen: every query stood still")
    live = [one for one in measures.queries if not one.failed]
    arrivals = [event.at for event in history if event.kind == "node-arrived" and event.at > measures.fault_at]
    first_arrival = min(arrivals, default=None)
    waited = [
        one.back_at
        for one in measures.failed
        if one.back_at is not None and first_arrival is not None and one.back_at > first_arrival
    ]
    if not live or not waited:
        return Check(name, Verdict.OK, "no live query, or none that waited for a node: nothing to compare")
    logged = _logged_at(history)
    if logged and not any(measures.fault_at < at < min(waited) for at in logged.values()):
        return Check(name, Verdict.OK, "no batch was logged before a query that waited for a node was back")
    late = []
    pause = 0.0
    for one in live:
        new = [
            output.at
            for output in one.outputs
            if logged.get(output.batch, output.at - output.latency) > measures.fault_at
        ]
        if not new or new[0] > min(waited):
            late.append(one.query.id)
        else:
            moments = [measures.fault_at, *(at for at in new if at < min(waited)), min(waited)]
            pause = max(pause, *(after - before for before, after in pairwise(moments)))
    if not late:
        return Check(name, Verdict.OK, f"{len(live)} live queries went on, none silent for more than {pause:.1f} s")
    what = f"{', '.join(late[:5])} had no new output before a query that waited for a node"
    return Check(name, Verdict.FAILED if strategy in NEVER_WAITS else Verdict.OK, what)


def _logged_at(history: Sequence[Event]) -> dict[int, float]:
    """Return when the run logged each batch, where its own sources are read; they may be behind what is due."""
    found: dict[int, float] = {}
    for event in history:
        if event.kind == "logged":
            found.setdefault(int(event.fields["batch"]), event.at)
    return found


def check_outboxes(history: Sequence[Event]) -> Check:
    """After the last checkpoint of the drill no node's outboxes hold what it covers, and they are not kept so far."""
    name = "outboxes"
    kept = [event for event in history if event.kind == "kept"]
    if not kept:
        return Check(name, Verdict.UNKNOWN, "the run did not report what its outboxes hold")
    last = kept[-1].fields
    if last.get("buffering"):
        return Check(name, Verdict.FAILED, "every outbox is still kept to the checkpoint, as in a recovery")
    if not last.get("oldest"):
        return Check(name, Verdict.UNKNOWN, "no node reported what its outboxes hold")
    if int(last["checkpoint"]) < 0:
        return Check(name, Verdict.UNKNOWN, "no checkpoint was complete, so that nothing could be trimmed")
    old = {
        str(partition): int(first)
        for partition, first in dict(last.get("oldest", {})).items()
        if first is not None and int(first) <= int(last["checkpoint"])
    }
    if old:
        partition, first = min(old.items())
        what = f"{partition} still keeps batch {first}, which the checkpoint at {last['checkpoint']} covers"
        return Check(name, Verdict.FAILED, what)
    return Check(name, Verdict.OK, f"trimmed to the checkpoint at batch {last['checkpoint']}")


def judge(checks: Iterable[Check]) -> Verdict:
    """Put the checks together."""
    verdicts = {check.verdict for check in checks}
    if Verdict.FAILED in verdicts:
        return Verdict.FAILED
    return Verdict.UNKNOWN if Verdict.UNKNOWN in verdicts or not verdicts else Verdict.OK

"""What a change of layout gives up: queries that are parked and are no more in the new application. Pure.

A change of layout begins at a batch that every query has processed. A parked query would hold it back for ever, though
nobody wants it any more. Where all parked queries end in operators that are removed, the layout before is run to its
end without them, and without the operators that serve only them. Who fails must be among those: what stays would fail
in the new layout too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.ids import OperatorId, PartitionId
from holdfast.runtime.identity import Description, Verdict, compare

_BY_PARTITION = ("placement", "published", "parked", "quarantined", "tentative")
"""What a machine writes by the names of partitions."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Operators of a layout that it is run to its end without."""

    operators: frozenset[OperatorId]
    lines: tuple[str, ...]
    """What is lost by it, for people: a line for each output."""


def given_up(before: Description, now: Description, machine: Mapping[str, Any] | None) -> GivenUp | None:
    """Return what a change of layout may give up; None: nothing is parked, or something parked is not removed."""
    parked: Mapping[str, Any] = (machine or {}).get("parked", {})
    changes = compare(before, now)
    names = {str(PartitionId.parse(query).operator) for query in parked}
    causes = {str(PartitionId.parse(why["partition"]).operator) for why in parked.values()}
    old: Mapping[str, Any] = before["operators"]
    stay = {name for name in old if changes.verdict(name) is not Verdict.REMOVED}
    kept_outputs = before["outputs"].keys() - names
    dropped = old.keys() - _upstream(old, stay | kept_outputs)
    if not parked or not kept_outputs or not names | causes <= dropped:
        return None
    lines = [
        _line(name, str(before["outputs"][name]), machine or {}, _serving(old, name, dropped, kept_outputs | names))
        for name in sorted(names)
    ]
    return GivenUp(frozenset(map(OperatorId, dropped)), tuple(lines))


def machine_without(machine: Mapping[str, Any] | None, operators: Iterable[str]) -> dict[str, Any] | None:
    """Return what a recovery machine has written, without what it says of these operators."""
    if machine is None:
        return None
    gone = frozenset(operators)

    def stays(name: str) -> bool:
        return str(PartitionId.parse(name).operator) not in gone

    def left(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if stays(name)}

    found = {**machine, **{field: left(machine[field]) for field in _BY_PARTITION if field in machine}}
    if "dropped" in machine:
        found["dropped"] = [name for name in machine["dropped"] if stays(name)]
    if choices := machine.get("tentative_choices"):
        found["tentative_choices"] = {**choices, "queries": left(choices.get("queries", {}))}
    return found


def _upstream(operators: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Return operators with everything that they read from, directly or through others."""
    found, waiting = set(names), list(names)
    while waiting:
        fresh = {str(feed["from"]) for feed in operators[waiting.pop()]["inputs"]} - found
        found |= fresh
        waiting += fresh
    return found


def _serving(operators: Mapping[str, Any], name: str, dropped: set[str], outputs: set[str]) -> list[str]:
    return sorted((_upstream(operators, [name]) & dropped) - (outputs - {name}))


def _line(name: str, output: str, machine: Mapping[str, Any], serving: Iterable[str]) -> str:
    """Say what is lost of an output."""
    its = {query: why for query, why in machine["parked"].items() if PartitionId.parse(query).operator == name}
    why = next(iter(its.values()))
    out = min((int(machine["published"].get(query, -1)) for query in its), default=-1)
    since = f"rows after batch {out}" if out >= 0 else "all rows"
    return (
        f"output {output} is given up: it is parked by {why['partition']} at batch {why['batch']} ({why['error']}) and "
        f"is removed; {since} of {', '.join(sorted(its))} are not published, and the state of {', '.join(serving)} is "
        "dropped"
    )

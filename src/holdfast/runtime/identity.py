"""What a run is, as plain values, and what a restart may change of it. Runs anywhere.

`describe` records a program: operators, keys, windows, schemas, parallelism, versions. The same application gives the
same values in every process, in whatever order its operators were written. `compare` says of each operator whether it
is the same, compatible, added, removed, or refused and why. An operator is known by its id: under another id it is
another operator, which begins anew at the restart, with empty state, and no other query rolls back for it.

The rule behind all rules: state that was made goes on only where every row of it still means the same and is found
again. Where that is not certain, the restart is refused, never the state dropped.

- A **source** has a log. Its columns and event time stay, for logged rows have the ones and the log's watermark
  follows the other. Its parallelism, key and lateness may change: they are about rows to come, and rows that are logged
  can be spread anew.
- An operator **with state** keeps its kind, keys, window, event time, inputs and the columns of its state. What it
  makes of the state in the end may change: the names of results, another aggregate that needs no other columns, a
  lower k, what count windows compute.
- Its **parallelism** may change where every row of the state has the key: the key's hash says which partition it
  belongs to (`state.repartition`). Without a key, a state is of its partition and nobody knows how to cut it.
- An operator **without state** may change in everything, as long as the rows that reach a state further on come from
  where they came from before. Their columns are looked at where they are kept.
- A **function** is known by its name. Changed code under the same name is the user's decision, and the state it finds
  is the one that the code before it left: compatible.
- **Priorities and lateness** need no new layout. Everything else that changed does: partitions and blocks of before and
  after do not fit together. Under another name an output goes elsewhere: what is not out yet goes where it went before.

What a restart finds:

    >>> from holdfast import Application, count, tumbling
    >>> from holdfast.runtime.program import Program
    >>> def speeds(parallelism, key="road"):
    ...     app = Application("cars")
    ...     cars = app.source("cars", schema="road string, lane string, at timestamp", event_time="at")
    ...     cars.key_by(key).window(tumbling("1 minute")).count(id="busy", parallelism=parallelism).output()
    ...     return describe(Program(app))
    >>> print(*compare(speeds(4), speeds(2)).lines(), sep=chr(10))
    busy: compatible: parallelism 4 -> 2
    cars: same
    >>> compare(speeds(4), speeds(4, key="lane")).refused[0].because
    ('keys road -> lane',)
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from holdfast import __version__
from holdfast.errors import BadInput
from holdfast.runtime.program import OperatorProgram, Program
from holdfast.runtime.row_spread import key_type_changes, spread_changes
from holdfast.runtime.worker.operators.kernel import InputColumns

FORMAT = 1
Description: TypeAlias = Mapping[str, Any]
"""What `describe` gives, or JSON has kept of it."""
Columns: TypeAlias = Sequence[Sequence[str]] | None
"""Name and Arrow type of each column; None: not declared."""

_NO_LAYOUT = {"priority", "lateness"}
"""What may change without a new layout: no block and no state depends on it."""
_ANEW = "it then begins anew, as a new query"
_STARTED = re.compile(r"^(__main__|holdfast_application)\.")
"""The module of an application's file, as `python`, spark-submit or `holdfast run` start it: it is the same file."""
_GENERATED = re.compile(r"(map|filter|flat-map|aggregate|top|distinct|join|apply)-[0-9]+")


# -- describing --------------------------------------------------------------------------------------------------------


def describe(program: Program) -> Description:
    """Return what a program is, in values that JSON has."""
    found = _DESCRIBED.get(program)
    if found is None:
        found = _DESCRIBED[program] = _describe(program)
    return found


_DESCRIBED: WeakKeyDictionary[Program, Description] = WeakKeyDictionary()
"""Descriptions of programs; they are never changed."""


def _describe(program: Program) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "holdfast": __version__,
        "application": program.name,
        "versions": {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__},
        "operators": {str(name): _described(program, program.operators[name]) for name in sorted(program.operators)},
        "outputs": {str(name): program.output_names[name] for name in sorted(program.output_names)},
    }


def _described(program: Program, operator: OperatorProgram) -> dict[str, Any]:
    source = program.sources.get(operator.id)
    routes = () if source is not None else operator.inputs
    feeds = [InputColumns(route.keys, program.operators[route.edge.source].schema) for route in routes]
    declared = operator.kernel.declare(feeds)
    computes = dict(declared.computes)
    if "aggregates" in computes:
        computes["aggregates"] = [
            {**one, "type": _type_of(operator.schema, one["name"])} for one in computes["aggregates"]
        ]
    state = None
    if declared.tables is None or declared.tables:
        tables = declared.tables
        state = {
            "keys": list(declared.state_keys),
            "not_split": declared.not_split,
            "tables": None if tables is None else {name: _columns(tables[name]) for name in sorted(tables)},
            "kept": dict(declared.kept),
        }
    priority = program.topology.operator(operator.id).priority
    return {
        "kind": declared.kind,
        "parallelism": operator.parallelism,
        "inputs": [
            {
                "from": str(route.edge.source),
                "keys": list(route.keys),
                "partitioning": str(route.partitioning),
                "schema": _columns(feed.schema),
            }
            for route, feed in zip(routes, feeds, strict=True)
        ],
        "keys": list(source.keys) if source is not None else list(feeds[0].keys),
        "window": None if declared.window is None else dict(declared.window),
        "event_time": [source.event_time] if source is not None else list(declared.event_times),
        "lateness": None if source is None else source.lateness,
        "computes": computes,
        "schema": _columns(operator.schema),
        "deterministic": operator.deterministic,
        "state": state,
        "priority": (list(priority) if isinstance(priority, tuple) else priority)
        if operator.id in program.output_names
        else None,
    }


def _columns(schema: pa.Schema | None) -> list[list[str]] | None:
    """Return a schema as names and types, in order; names are free, so one text for all could be read in two ways."""
    return None if schema is None else [[field.name, str(field.type)] for field in schema]


def _type_of(schema: pa.Schema | None, column: str) -> str | None:
    return None if schema is None else str(schema.field(column).type)


# -- comparing ---------------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """What a restart finds of an operator."""

    SAME = "same"
    COMPATIBLE = "compatible"
    ADDED = "added"
    REMOVED = "removed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Change:
    """One operator over a restart."""

    operator: str
    verdict: Verdict
    what: tuple[str, ...] = ()
    """What changed, in words: `parallelism 4 -> 2`."""
    because: tuple[str, ...] = ()
    """Why it is refused."""
    remedy: str | None = None
    layout: bool = False
    """Whether partitions and blocks of before and after do not fit together."""

    def __str__(self) -> str:
        words = "; ".join(self.because or self.what)
        line = f"{self.operator}: {self.verdict}" + (f": {words}" if words else "")
        return f"{line}; {self.remedy}" if self.remedy else line


@dataclass(frozen=True, slots=True)
class Changes:
    """All operators of both descriptions over a restart, by their ids."""

    application: str
    operators: tuple[Change, ...]
    versions: tuple[str, ...] = ()
    """Other versions of Holdfast, Python or a library: information. Results of before and after the restart are each
    right; where a new Arrow orders groups otherwise, batches made again may come in another order (decision 0056)."""
    cautions: tuple[str, ...] = ()
    """What is accepted and may still be a mistake: ids that were renamed, or are made by number."""

    @property
    def refused(self) -> list[Change]:
        """The operators with which the run cannot go on."""
        return [one for one in self.operators if one.verdict is Verdict.REFUSED]

    @property
    def layout_changed(self) -> bool:
        """Whether the run needs a new generation: all partitions begin at one checkpoint, with nothing sent before."""
        return any(one.layout for one in self.operators)

    def verdict(self, operator: str) -> Verdict | None:
        """Return what is found of one operator; None: neither description has it."""
        return next((one.verdict for one in self.operators if one.operator == operator), None)

    def lines(self) -> list[str]:
        """Return a line for people per operator."""
        return [str(one) for one in self.operators]


def check_changes(changes: Changes, where: str | None = None) -> None:
    """Refuse a restart that would lose state or rows, naming every operator and what to do."""
    refused = changes.refused
    if not refused:
        return
    remedies = list(dict.fromkeys(f"{one.operator}: {one.remedy}" for one in refused))
    raise BadInput(
        "cannot go on with this application: "
        + "; ".join(f"{one.operator}: {', '.join(one.because)}" for one in refused),
        where=where or f"application {changes.application}",
        remedy=refused[0].remedy if len(refused) == 1 else "; ".join(remedies),
    )


def compare(before: Description, now: Description) -> Changes:
    """Say of every operator what a restart from `before` to `now` does to it."""
    _check_format(before)
    _check_format(now)
    if before["application"] != now["application"]:
        raise BadInput(
            f"this is a run of application {before['application']!r}, not of {now['application']!r}",
            remedy="give every application a directory of its own, and keep its name",
        )
    old, new = _Graph(before), _Graph(now)
    found = [_compared(name, old, new) for name in sorted({*old.operators, *new.operators})]
    versions = [
        f"{name} {its} -> {then}"
        for name in ("holdfast", "python", "pyarrow", "numpy")
        if (its := _version(before, name)) != (then := _version(now, name))
    ]
    return Changes(now["application"], tuple(found), tuple(versions), tuple(_cautions(found, old, new)))


class _Graph:
    """A description's operators, and who reads whom."""

    def __init__(self, description: Description) -> None:
        self.operators: Mapping[str, Mapping[str, Any]] = description["operators"]
        self.outputs: Mapping[str, str] = description["outputs"]
        self._readers: dict[str, list[str]] = {name: [] for name in self.operators}
        for name, one in self.operators.items():
            for feed in _feeds(one):
                self._readers[feed].append(name)

    def origins(self, name: str) -> set[str]:
        """Return the sources and operators with state that an operator's rows come from, through those without."""
        return self._nearest(name, lambda one: _feeds(self.operators[one]))

    def fed_states(self, name: str) -> set[str]:
        """Return the operators with state that an operator's rows reach, through those without."""
        return self._nearest(name, self._readers.__getitem__)

    def states_behind(self, name: str) -> set[str]:
        """Return all operators with state downstream of an operator."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            fresh = self.fed_states(waiting.pop()) - found
            found |= fresh
            waiting += fresh
        return found

    def _nearest(self, name: str, step: Callable[[str], Sequence[str]]) -> set[str]:
        found: set[str] = set()
        waiting, seen = [name], {name}
        while waiting:
            fresh = set(step(waiting.pop())) - seen
            seen |= fresh
            keep = {one for one in fresh if _remembers(self.operators[one])}
            found |= keep
            waiting += fresh - keep
        return found


def _compared(name: str, old: _Graph, new: _Graph) -> Change:
    before, now = old.operators.get(name), new.operators.get(name)
    if before is None:
        # It reads from the restart on; nobody sends it what came before, so no other query is replayed.
        return Change(name, Verdict.ADDED, ("begins at the restart, with empty state",), layout=True)
    if now is None:
        # Operators that read it and stay have other inputs now: they are looked at themselves.
        dropped = () if before["state"] is None else ("its state is dropped",)
        return Change(name, Verdict.REMOVED, dropped, layout=True)
    changed = dict(_changed(name, old, new))
    if because := list(_refusals(name, old, new)):
        reasons = tuple(reason for reason, _ in because)
        remedy = "; ".join(dict.fromkeys(remedy for _, remedy in because))
        return Change(name, Verdict.REFUSED, tuple(changed.values()), reasons, remedy, layout=True)
    if not changed:
        return Change(name, Verdict.SAME)
    return Change(name, Verdict.COMPATIBLE, tuple(changed.values()), layout=not set(changed) <= _NO_LAYOUT)


def _refusals(name: str, old: _Graph, new: _Graph) -> Iterator[tuple[str, str]]:
    """Give every reason why an operator cannot go on from what it was, with what to do."""
    before, now = old.operators[name], new.operators[name]
    anew = _another_id(name, old, new)
    if before["kind"] != now["kind"] and (_remembers(before) or _remembers(now)):
        # A state is of its kind; a source has a log and no inputs, all others have inputs and no log.
        yield f"kind {before['kind']} -> {now['kind']}", anew
    elif now["kind"] == "source":
        yield from _source_refusals(before, now, anew)
    elif now["state"] is not None:
        yield from _state_refusals(before, now, anew)
        if _feeds(before) == _feeds(now):
            spread = spread_changes(name, old.operators, new.operators)
            yield from ((f"{one}: its state is of its partitions", anew) for one in spread)
    elif _feeds(before) != _feeds(now):
        # A state that was made from one stream must not go on with another in silence.
        was, is_ = old.origins(name), new.origins(name)
        if was != is_ and (fed := old.fed_states(name) & new.fed_states(name)):
            yield (
                f"its rows come from {_names(is_)}, not from {_names(was)}, and {_names(fed)} has state of those",
                f"give {_names(_with_those_behind(fed, old, new))} another id, to begin anew",
            )


def _source_refusals(before: Mapping[str, Any], now: Mapping[str, Any], anew: str) -> Iterator[tuple[str, str]]:
    # Rows that are logged and not processed have the columns of before, and states hold them.
    if difference := _column_changes(before["schema"], now["schema"]):
        yield f"columns: {difference}", f"keep its schema, or {anew}"
    # The watermark never goes back: one that follows another column would make rows late, or close windows too soon.
    if before["event_time"] != now["event_time"]:
        yield f"event time {_plain(before['event_time'])} -> {_plain(now['event_time'])}", anew


def _state_refusals(before: Mapping[str, Any], now: Mapping[str, Any], anew: str) -> Iterator[tuple[str, str]]:
    was, is_ = before["state"], now["state"]
    inputs_differ = _feeds(before) != _feeds(now)
    # What a state holds of an input that is gone would meet no rows any more, and a new input would find none of its.
    if inputs_differ:
        yield f"inputs {_names(_feeds(before))} -> {_names(_feeds(now))}", anew
    # Rows of one key would find the state of another, or none, in whatever partition they come to.
    pairs = [] if inputs_differ else list(zip(before["inputs"], now["inputs"], strict=True))
    rekeyed = [(one, other) for one, other in pairs if one["keys"] != other["keys"]]
    for one, other in rekeyed:
        of = f" of {one['from']}" if len(pairs) > 1 else ""
        yield f"keys{of} {_plain(one['keys'])} -> {_plain(other['keys'])}", anew
    # Panes, open sessions and rows that wait are cut for their window, by their event time.
    if before["window"] != now["window"]:
        yield f"window {_window(before['window'])} -> {_window(now['window'])}", anew
    if before["event_time"] != now["event_time"]:
        yield f"event time {_plain(before['event_time'])} -> {_plain(now['event_time'])}", anew
    # Rows of other columns do not go into the tables there are. Other inputs or keys are reason enough for that.
    if not inputs_differ and not rekeyed:
        if because := _table_problem(before, now):
            yield because, anew
        else:
            yield from ((f"{one}: its rows would not find their state", anew) for one in key_type_changes(before, now))
    for field in sorted({*was["kept"], *is_["kept"]}):
        one, other = was["kept"].get(field), is_["kept"].get(field)
        # The best rows are among the best of more: a lower k finds all it needs, a higher one does not.
        if one != other and not (field == "k" and one is not None and other is not None and other < one):
            yield f"{field} {_plain(one)} -> {_plain(other)}", anew
    if before["parallelism"] != now["parallelism"] and (why := was["not_split"] or is_["not_split"]):
        yield (
            f"parallelism {before['parallelism']} -> {now['parallelism']}, but {why}",
            f"keep parallelism={before['parallelism']}, or {anew}",
        )


def _table_problem(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say how the columns of a state differ; None: they are the same, or not known and nothing says they are not."""
    was, is_ = before["state"]["tables"], now["state"]["tables"]
    computed = "; ".join(_computed_changes(before["computes"], now["computes"]))
    if was is None and is_ is None:
        # A function makes the rows, and only it knows their columns: its code is the user's decision. What is kept of
        # them follows from what is computed.
        others = {name for name in {*before["computes"], *now["computes"]} if name != "function"}
        same = all(before["computes"].get(name) == now["computes"].get(name) for name in others)
        return None if same else computed
    if was is None or is_ is None:
        one, other = ("not declared", "declared") if was is None else ("declared", "not declared")
        return f"the columns of its input were {one} and are {other}, so it is not known whether its state fits"
    for table in sorted({*was, *is_}):
        difference = _column_changes(was.get(table, []), is_.get(table, []))
        if difference:
            return (f"{computed}: " if computed else "") + f"its state has other columns: {difference}"
    return None


def _changed(name: str, old: _Graph, new: _Graph) -> Iterator[tuple[str, str]]:
    """Give what changed of an operator, in words, by field."""
    before, now = old.operators[name], new.operators[name]
    for field in ("kind", "parallelism"):
        if before[field] != now[field]:
            yield field, f"{field} {before[field]} -> {now[field]}"
    if _feeds(before) != _feeds(now):
        yield "inputs", f"inputs {_names(_feeds(before)) or 'none'} -> {_names(_feeds(now)) or 'none'}"
    else:
        for feed, other in zip(before["inputs"], now["inputs"], strict=True):
            if feed["keys"] != other["keys"]:
                yield f"keys {feed['from']}", f"keys {_plain(feed['keys'])} -> {_plain(other['keys'])}"
            if feed["partitioning"] != other["partitioning"]:
                words = f"exchange from {feed['from']} {feed['partitioning']} -> {other['partitioning']}"
                yield f"partitioning {feed['from']}", words
            if difference := _column_changes(feed["schema"], other["schema"]):
                yield f"input {feed['from']}", f"columns of {feed['from']}: {difference}"
    if not before["inputs"] and before["keys"] != now["keys"]:
        yield "keys", f"key {_plain(before['keys'])} -> {_plain(now['keys'])}"
    if before["window"] != now["window"]:
        yield "window", f"window {_window(before['window'])} -> {_window(now['window'])}"
    if before["event_time"] != now["event_time"]:
        yield "event_time", f"event time {_plain(before['event_time'])} -> {_plain(now['event_time'])}"
    if words := "; ".join(_computed_changes(before["computes"], now["computes"])):
        yield "computes", words
    if difference := _column_changes(before["schema"], now["schema"]):
        yield "schema", f"columns: {difference}"
    if before["deterministic"] != now["deterministic"]:
        yield "deterministic", f"deterministic {_plain(before['deterministic'])} -> {_plain(now['deterministic'])}"
    for field in ("lateness", "priority"):
        if before[field] != now[field] and None not in (before[field], now[field]):
            yield field, f"{field} {_plain(before[field])} -> {_plain(now[field])}"
    was, is_ = old.outputs.get(name), new.outputs.get(name)
    if was != is_:
        # A sink that comes or goes is an edge; under another name the same edge ends in another sink. An operator is an
        # output also where nobody reads it and nobody said so: a query that is added then ends that output.
        yield "output" if was and is_ else "sink", f"output {was or 'none'} -> {is_ or 'none'}"


def _cautions(found: Sequence[Change], old: _Graph, new: _Graph) -> Iterator[str]:
    verdicts = {one.operator: one.verdict for one in found}
    added = [name for name, verdict in verdicts.items() if verdict is Verdict.ADDED]
    removed = [name for name, verdict in verdicts.items() if verdict is Verdict.REMOVED]
    for name in removed:
        before = old.operators[name]
        for other in added:
            if before["state"] is not None and before == new.operators[other]:
                yield f"{other} is what {name} was: under another id it begins anew, and the state of {name} is dropped"
    moved = {_kind_of_id(name) for name in (*added, *removed)} - {None}
    stay = [name for name in verdicts if name not in (*added, *removed) and _kind_of_id(name) in moved]
    if stay:
        yield (
            f"{_names(stay)}: ids made by number, and others of the kind came or went: an operator may have taken "
            "over the id of another; give every operator an id"
        )


def _kind_of_id(name: str) -> str | None:
    """Return the kind in an id that was made by number; None: a user chose it."""
    found = _GENERATED.fullmatch(name)
    return None if found is None else found.group(1)


# -- words -------------------------------------------------------------------------------------------------------------


def _another_id(name: str, old: _Graph, new: _Graph) -> str:
    """Say to begin anew; operators with state that read this one have another input then, and must begin anew too."""
    others = _with_those_behind({name}, old, new) - {name}
    if not others:
        return f"give it another id: {_ANEW}"
    read = "which reads its rows" if len(others) == 1 else "which read its rows"
    return f"give it another id, and {_names(others)}, {read}: they then begin anew, as new queries"


def _with_those_behind(names: set[str], old: _Graph, new: _Graph) -> set[str]:
    """Return operators and those with state behind them, as far as they were there before."""
    behind = {other for name in names for other in new.states_behind(name)}
    return names | {name for name in behind if name in old.operators}


def _column_changes(before: Columns, now: Columns) -> str:
    """Say how columns differ; nothing: they do not."""
    if before is None or now is None:
        return "" if before == now else ("not declared -> declared" if before is None else "declared -> not declared")
    old, new = {one[0]: one[1] for one in before}, {one[0]: one[1] for one in now}
    words = [f"{name} {kind} -> {new[name]}" for name, kind in old.items() if new.get(name, kind) != kind]
    words += [f"{name} is gone" for name in old if name not in new]
    words += [f"{name} {kind} is new" for name, kind in new.items() if name not in old]
    return ", ".join(words) or ("" if list(old) == list(new) else f"order {', '.join(old)} -> {', '.join(new)}")


def _computed_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for field in sorted({*before, *now}):
        was, is_ = (_STARTED.sub("", _plain(one.get(field)), 1) for one in (before, now))
        if was != is_:  # types of results are among the columns
            yield f"{field} {was} -> {is_}"


def _window(window: Mapping[str, Any] | None) -> str:
    if window is None:
        return "none"
    sizes = {name: value for name, value in window.items() if name != "kind"}
    if window["kind"] != "rows":
        sizes = {name: f"{value / 1_000_000:g} s" for name, value in sizes.items()}
    return f"{window['kind']}({', '.join(f'{name}={value}' for name, value in sizes.items())})"


def _plain(value: Any) -> str:
    """Write a value of a description as people would."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain(one) for one in value)
    if isinstance(value, Mapping) and "function" in value:  # an aggregate
        return f"{value['name']}={value['function']}({value['column'] or ''})"
    return value if isinstance(value, str) else json.dumps(value)


def _names(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(sorted(found) if isinstance(names, set) else found)


def _feeds(operator: Mapping[str, Any]) -> list[str]:
    return [feed["from"] for feed in operator["inputs"]]


def _remembers(operator: Mapping[str, Any]) -> bool:
    """Say whether an operator has something from before the restart: a state, or a source's log."""
    return operator["state"] is not None or operator["kind"] == "source"


def _version(description: Description, name: str) -> str:
    return str(description["holdfast"] if name == "holdfast" else description["versions"].get(name, "unknown"))


def _check_format(description: Description) -> None:
    number = description.get("format")
    if isinstance(number, int) and 1 <= number <= FORMAT:
        return
    newer = isinstance(number, int) and number > FORMAT
    raise BadInput(
        f"the run is described in format {number}, and this Holdfast ({__version__}) reads up to {FORMAT}"
        if newer
        else "this is not the description of a run",
        remedy=f"use Holdfast {description.get('holdfast')} or later" if newer else "give what `describe` returned",
    )

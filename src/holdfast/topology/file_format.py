"""The topology file of the public contract, JSON or YAML: text to model and back, exactly. Runs anywhere.

Reading is strict: what is not understood is refused with the field and what would be right. Writing leaves out what is
default, so reading and writing again gives the same text. Opening files is the caller's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NoReturn

from holdfast.errors import BadInput, HoldfastError, one_line
from holdfast.ids import OperatorId
from holdfast.topology import checks
from holdfast.topology.model import Topology
from holdfast.topology.operators import Input, Operator, Partitioning

FORMAT_VERSION = 1
LARGEST_FILE = 256 * 2**20

_TOP = ("holdfast", "name", "operators", "measured")
_LISTS = {"weights", "priority", "cost", "reprocess_seconds", "domain"}
_FIELDS = tuple(field.name for field in fields(Operator))
_DEFAULTS = {field.name: field.default for field in fields(Operator) if field.name not in ("id", "inputs")}


def parse(text: str | bytes, where: str, *, yaml: bool | None = None) -> Topology:
    """Read a topology from the text of a file; `where` names the file in errors.

    YAML is read when `yaml` is true, JSON when it is false; by default the name decides, and then the text itself.
    """
    try:
        return from_document(load_document(text, where, yaml))
    except HoldfastError as error:
        raise error.placed(where) from None


def from_document(document: object) -> Topology:
    """Make a topology of a parsed document: dicts, lists, texts and numbers."""
    if not isinstance(document, dict):
        raise BadInput(
            f"is not a topology but {checks.describe(document)}",
            remedy='start with {"holdfast": 1, "name": …, "operators": […]}',
        )
    if "holdfast" not in document:
        raise BadInput("is not a topology file", field="holdfast", remedy='add "holdfast": 1')
    version = document["holdfast"]
    if isinstance(version, bool) or version != FORMAT_VERSION:
        raise BadInput(
            f"version {checks.describe(version)} is not supported", field="holdfast", remedy=f"write {FORMAT_VERSION}"
        )
    _only_known(document, _TOP, "")
    if "operators" not in document:
        raise BadInput("is missing", field="operators", remedy="list the operators, sources first")
    listed = document["operators"]
    if not isinstance(listed, list):
        raise BadInput(
            f"must be a list, not {checks.describe(listed)}", field="operators", remedy='write [{"id": "S1"}]'
        )
    if "name" not in document:
        raise BadInput("is missing", field="name", remedy='add "name": "traffic"')
    measured_of(document)
    shared: dict[tuple[str, str], Input] = {}
    operators = [_operator(one, f"operators[{number}]", shared) for number, one in enumerate(listed)]
    return Topology(document["name"], operators)


def measured_of(document: dict[Any, Any]) -> dict[str, Any] | None:
    """Return what a run measured, of a file that `holdfast profile` wrote; None: the file is a declaration."""
    measured = document.get("measured")
    if measured is not None and not isinstance(measured, dict):
        raise BadInput(
            f"must be an object, not {checks.describe(measured)}",
            field="measured",
            remedy="leave it out, or give what `holdfast profile` wrote",
        )
    return measured


def _operator(document: object, field: str, shared: dict[tuple[str, str], Input]) -> Operator:
    if not isinstance(document, dict):
        raise BadInput(f"must be an object, not {checks.describe(document)}", field=field, remedy='write {"id": "S1"}')
    if "id" not in document:
        _only_known(document, _FIELDS, field)
        raise BadInput("is missing", field=f"{field}.id", remedy='give the operator an id, like "O3"')
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name == "inputs":
            values[name] = _inputs(value, f"{field}.inputs", shared)
        elif name in _LISTS:
            values[name] = _one_or_list(name, value, f"{field}.{name}")
        elif name in ("joins", "output"):
            if not isinstance(value, bool):
                raise BadInput(
                    f"must be true or false, not {checks.describe(value)}",
                    field=f"{field}.{name}",
                    remedy="write true or false",
                )
            values[name] = value
        elif name in _FIELDS:
            if value is None or isinstance(value, list | dict):
                raise BadInput(
                    f"must be one value, not {checks.describe(value)}",
                    field=f"{field}.{name}",
                    remedy="leave it out for the default",
                )
            values[name] = value
    _only_known(document, _FIELDS, field)
    return Operator(**values)


def _inputs(document: object, field: str, shared: dict[tuple[str, str], Input]) -> tuple[Input, ...]:
    """Read inputs; alike ones become one object, since a million of them may come from a few operators."""
    if not isinstance(document, list):
        raise BadInput(
            f"must be a list, not {checks.describe(document)}",
            field=field,
            remedy='write [{"from": "S1", "partitioning": "full"}]',
        )
    found = []
    for number, one in enumerate(document):
        place = f"{field}[{number}]"
        if not isinstance(one, dict):
            raise BadInput(
                f"must be an object, not {checks.describe(one)}",
                field=place,
                remedy='write {"from": "S1", "partitioning": "full"}',
            )
        for name in ("from", "partitioning"):
            if name not in one:
                _only_known(one, ("from", "partitioning"), place)
                raise BadInput("is missing", field=f"{place}.{name}", remedy=f"add {name!r}")
        if len(one) > 2:
            _only_known(one, ("from", "partitioning"), place)
        source, kind = one["from"], one["partitioning"]
        if not isinstance(source, str):
            raise BadInput(
                f"must be an operator's id, not {checks.describe(source)}",
                field=f"{place}.from",
                remedy='quote it, like "S1"',
            )
        key = (source, kind if isinstance(kind, str) else "")
        if key not in shared:
            shared[key] = Input(OperatorId(source), _partitioning(kind, f"{place}.partitioning"))
        found.append(shared[key])
    return tuple(found)


_PARTITIONINGS = {kind.value: kind for kind in Partitioning}


def _partitioning(kind: object, field: str) -> Partitioning:
    known = _PARTITIONINGS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise BadInput(
            f"{checks.describe(kind)} is not a partitioning",
            field=field,
            remedy=f"use {', '.join(list(_PARTITIONINGS)[:-1])} or {list(_PARTITIONINGS)[-1]}",
        )
    return known


def _one_or_list(name: str, value: object, field: str) -> object:
    if isinstance(value, list):
        return tuple(value)
    if name == "weights":
        raise BadInput(
            f"must be a list with one share per partition, not {checks.describe(value)}",
            field=field,
            remedy="write [3, 1], or leave it out for equal shares",
        )
    if value is None or isinstance(value, dict):
        raise BadInput(
            f"must be one value or a list, not {checks.describe(value)}",
            field=field,
            remedy="leave it out for the default",
        )
    return value


def _only_known(document: dict[Any, Any], known: tuple[str, ...], field: str) -> None:
    for name in document:
        if name not in known:
            place = f"{field}." if field else ""
            raise BadInput(
                "is not a known field" if isinstance(name, str) else "is not a text",
                field=f"{place}{name if _is_plain_name(name) else checks.describe(name)}",
                remedy=checks.suggestion(str(name), known),
            )


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and name.isprintable() and 0 < len(name.strip()) == len(name) < 60


# -- text ---------------------------------------------------------------------------------------------------------


def load_document(text: str | bytes, where: str, yaml: bool | None = None) -> object:
    """Read JSON or YAML as a topology file may be: what is repeated, not finite or nested too deeply is refused."""
    if len(text) > LARGEST_FILE:
        raise BadInput(
            f"has {len(text):,} bytes, which is too large",
            remedy=f"use at most {LARGEST_FILE:,} bytes in a topology file",
        )
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadInput(f"is not UTF-8 text (byte {error.start})", remedy="save it as UTF-8") from None
    if not text.strip():
        raise BadInput("is empty", remedy='start with {"holdfast": 1, "name": …, "operators": […]}')
    if yaml is None:
        lower = where.lower()
        yaml = lower.endswith((".yaml", ".yml")) or (not lower.endswith(".json") and text.lstrip()[0] not in "{[")
    try:
        return _load_yaml(text) if yaml else _load_json(text)
    except RecursionError:
        raise BadInput("is nested too deeply", remedy="a topology is at most four levels deep") from None


def _load_json(text: str) -> object:
    alike: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        # A million inputs may be written out that come from a few operators: alike ones become one object at once.
        if len(items) == 2 and isinstance(items[0][1], str) and isinstance(items[1][1], str):
            known = alike.get(tuple(items))
            if known is not None:
                return known
        made = dict(items)
        if len(made) != len(items):
            met: set[str] = set()
            twice = next(name for name, _ in items if name in met or met.add(name))  # type: ignore[func-returns-value]
            place = twice if _is_plain_name(twice) else checks.describe(twice)
            raise BadInput("occurs twice in one object", field=place, remedy="keep one of them")
        if len(items) == 2 and isinstance(items[0][1], str) and isinstance(items[1][1], str):
            alike[tuple(items)] = made
        return made

    def constant(word: str) -> NoReturn:
        raise BadInput(f"{word} is not a number that JSON or a topology may have", remedy="give a finite number")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})", remedy="correct the file there"
        ) from None
    except ValueError:  # a whole number with more digits than Python converts
        raise BadInput("has a number with too many digits", remedy="give numbers of at most 18 digits") from None


def _load_yaml(text: str) -> object:
    import yaml

    from holdfast.topology.strict_yaml import load

    try:
        return load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = one_line(error.problem or error.context or "cannot be read")
        raise BadInput(
            f"is not YAML as a topology may use it: {problem}{place}", remedy="correct the file there"
        ) from None
    except yaml.YAMLError as error:
        raise BadInput(f"is not YAML: {one_line(str(error))}", remedy="save it as UTF-8 text") from None


# -- writing ------------------------------------------------------------------------------------------------------


def to_document(topology: Topology, measured: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the document of a topology: what `from_document` reads, without what is default."""
    document: dict[str, Any] = {
        "holdfast": FORMAT_VERSION,
        "name": topology.name,
        "operators": [_operator_document(operator) for operator in topology.operators],
    }
    return document if measured is None else {**document, "measured": dict(measured)}


def _operator_document(operator: Operator) -> dict[str, Any]:
    document: dict[str, Any] = {"id": str(operator.id)}
    for name in _FIELDS[1:]:
        value = getattr(operator, name)
        if name == "inputs":
            if value:
                document[name] = [{"from": str(i.source), "partitioning": i.partitioning.value} for i in value]
        elif value != _DEFAULTS[name]:
            document[name] = [_plain(one) for one in value] if isinstance(value, tuple) else _plain(value)
    return document


def _plain(value: Any) -> Any:
    """Write whole numbers without a decimal point; everything else as it is."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def to_json(topology: Topology, measured: Mapping[str, Any] | None = None) -> str:
    """Write a topology as JSON: one operator to a line, made to be read and compared."""
    document = to_document(topology, measured)
    dump: Callable[[object], str] = lambda value: json.dumps(value, ensure_ascii=False, allow_nan=False)  # noqa: E731
    lines = ",\n".join(f"    {dump(operator)}" for operator in document["operators"])
    head = f'  "holdfast": {document["holdfast"]},\n  "name": {dump(document["name"])},'
    tail = "" if measured is None else f',\n  "measured": {dump(document["measured"])}'
    return f'{{\n{head}\n  "operators": [\n{lines}\n  ]{tail}\n}}\n'


def to_yaml(topology: Topology) -> str:
    """Write a topology as YAML."""
    from holdfast.topology.strict_yaml import dump

    return dump(to_document(topology))

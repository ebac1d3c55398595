"""YAML without its tricks: the JSON-like part of YAML 1.2, and nothing that surprises. Runs anywhere.

PyYAML's own rules are those of YAML 1.1: `NO` is false there, `1e3` a text, `012` ten and `12:30` a number of minutes.
Here `true` and `false` are the only truth values, numbers are as in JSON (a leading dot or plus is allowed), and
everything else is text. Aliases (which can blow a small file up to any size), tags, merge keys, repeated keys and
several documents are refused.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_DEEPEST = 32
_MOST_DIGITS = 400

_RESOLVERS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


class _Loader(_SafeLoader):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  PyYAML's own way


class _Dumper(_SafeDumper):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first])


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            raise yaml.constructor.ConstructorError(None, None, "a key that is not a text", key_node.start_mark)
        key = key_node.value
        if key in made:
            raise yaml.constructor.ConstructorError(None, None, f"{key!r} occurs twice", key_node.start_mark)
        made[key] = loader.construct_object(value_node, deep=True)
    return made


def _whole(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if len(text) > _MOST_DIGITS:
        raise yaml.constructor.ConstructorError(None, None, "a number with too many digits", node.start_mark)
    return int(text)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def load(text: str) -> object:
    """Read one document of plain values; anything beyond raises yaml.MarkedYAMLError with its place."""
    _refuse_tricks(text)
    return yaml.load(text, Loader=_Loader)


def _refuse_tricks(text: str) -> None:
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        problem = None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases are not used in topology files: write the value out"
        elif getattr(event, "tag", None) is not None:
            problem = f"tags such as {event.tag!r} are not used in topology files"
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            problem = "a second document: keep one topology to a file" if documents > 1 else None
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            problem = "nested too deeply" if depth > _DEEPEST else None
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if problem:
            raise yaml.constructor.ConstructorError(None, None, problem, event.start_mark)


def dump(document: object) -> str:
    """Write plain values as YAML that `load` reads back exactly."""
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )
    return text

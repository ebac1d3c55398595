"""Where the rows of a key come to, by the descriptions of a run: which partition of an operator with state. Pure.

Part of comparing what a run was with what it is to be (`runtime.identity`). The columns of most states hold the key, so
their types are compared there. What an `apply` keeps is its own affair: its state may be as before while rows come to
other partitions than before, and there nobody finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Operators: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The operators of a description, by their ids."""
Spread: TypeAlias = tuple[tuple[str, ...], int] | None
"""Rows are spread by these columns, in so many ranges of their hash; None: as they come."""

_ALIKE = (re.compile(r"u?int[0-9]+"), re.compile(r"(large_)?string"), re.compile(r"timestamp\[.+\]"))
"""Types of which the same value, written in another one, has the same hash."""


def key_type_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Say which keys of an operator's inputs have another type, so that their hash is another; inputs are the same."""
    for was, is_ in zip(before["inputs"], now["inputs"], strict=True):
        for key in was["keys"]:
            old, new = _type(was, key), _type(is_, key)
            if old != new and not (old and new and any(one.fullmatch(old) and one.fullmatch(new) for one in _ALIKE)):
                yield f"key {key} {old or 'not declared'} -> {new or 'not declared'}"


def spread_changes(name: str, before: Operators, now: Operators) -> Iterator[str]:
    """Say which inputs of an operator without a key had rows spread by a key further up, and have no more."""
    was, is_ = before[name], now[name]
    if was["parallelism"] == 1 or was["kind"] != "apply":
        return
    for old, new in zip(was["inputs"], is_["inputs"], strict=True):
        if old["keys"] or new["keys"]:
            continue
        one, other = arriving(name, old, before), arriving(name, new, now)
        if one is not None and one != other:
            yield f"rows of {old['from']} came spread by {_words(one)}, and come {_words(other, 'spread by ')}"


def arriving(name: str, feed: Mapping[str, Any], operators: Operators) -> Spread:
    """Return how rows of an input are spread over the partitions of an operator."""
    count = int(operators[name]["parallelism"])
    if feed["keys"]:
        return tuple(feed["keys"]), count
    up = operators[feed["from"]]
    spread = _leaving(feed["from"], operators)
    if spread is None or int(up["parallelism"]) < count:
        return None  # a partition's rows are dealt out over several
    keys, ranges = spread
    # Ranges nest where one count divides the other: then partitions that are put together have a range again.
    return (keys, count) if ranges == up["parallelism"] and ranges % count == 0 else (keys, ranges)


def _leaving(name: str, operators: Operators) -> Spread:
    """Return how the rows that an operator gives are spread over its partitions: they are where their input was."""
    one = operators[name]
    if not one["inputs"]:
        return (tuple(one["keys"]), int(one["parallelism"])) if one["keys"] else None
    return arriving(name, one["inputs"][0], operators)


def _type(feed: Mapping[str, Any], column: str) -> str | None:
    return None if feed["schema"] is None else next((kind for name, kind in feed["schema"] if name == column), None)


def _words(spread: Spread, before: str = "") -> str:
    return "as they are" if spread is None else f"{before}{', '.join(spread[0])} in {spread[1]}"

"""Topologies as commands take them: a file (JSON or YAML, `-` for standard input) or a name from the library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.durable_files import replace_durably
from holdfast.errors import BadInput
from holdfast.lab import has_lab, lab_module

if TYPE_CHECKING:
    from holdfast.topology import Ints, Topology


def read_topology(given: str) -> Topology:
    """Return the topology in a file, or the named one; what is neither is refused with what would be right."""
    from holdfast.topology import parse
    from holdfast.topology.file_format import LARGEST_FILE

    if given == "-":
        if sys.stdin is None:  # closed by the caller: `<&-`
            raise BadInput("is closed", where="standard input", remedy="pipe a topology into it, or name a file")
        return parse(sys.stdin.buffer.read(LARGEST_FILE + 1), "standard input")
    path = Path(given)
    try:
        if not path.exists() and (named := _named_topology(given)) is not None:
            return named
        if path.is_file() and path.stat().st_size > LARGEST_FILE:
            raise BadInput("is too large", where=given, remedy=f"use at most {LARGEST_FILE:,} bytes")
        if path.exists() and not path.is_file():
            raise BadInput("is not a file", where=given, remedy="give a topology file or a name")
        return parse(path.read_bytes(), given)
    except FileNotFoundError:
        raise BadInput(
            "no such file, and no topology of that name",
            where=given,
            remedy="see `holdfast topology list` for the names",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot be read: {reason}", where=given, remedy="give a file you may read") from None


def _named_topology(name: str) -> Topology | None:
    """Return an example's topology, or one of the papers' where the lab is installed."""
    from holdfast.examples.registry import EXAMPLES

    if name in EXAMPLES:
        return EXAMPLES[name].application().topology()
    if has_lab():
        library = lab_module("topologies", needed_by=name)
        if name in library.named_topologies():
            found: Topology = library.named_topology(name)
            return found
    return None


def read_partitions(topology: Topology, given: str) -> Ints:
    """Return the numbers of partitions named `all`, `none` or `O1[0],O2[3]`; an operator's id means all of its own."""
    import numpy as np

    words = [word.strip() for word in given.split(",") if word.strip()]
    if words == ["all"]:
        return np.arange(len(topology))
    if words in ([], ["none"]):
        return np.array([], np.int64)
    found: set[int] = set()
    for word in words:
        if word.endswith("]"):
            found.add(topology.index(word))
        else:
            found.update(topology.partitions_of(word))
    return np.array(sorted(found), np.int64)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Refuse a place that cannot be written, with the reason, while something is written there."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"cannot be written: {reason}", where=path, remedy="give a file you may write") from None


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all; what is no ordinary file (a pipe, /dev/null) is written to, not replaced."""
    with writing(path):
        given = Path(path)
        if given.exists() and not given.is_file():
            given.write_text(text, encoding="utf-8")
            return
        target = Path(os.path.realpath(given))  # a link stays a link: what it leads to is written
        replace_durably(target, text.encode())

"""Topologies as commands take them: an application, a topology file (`-`: standard input) or a name.

| given | what it means |
|---|---|
| `my_app.py`, `my_app.py:name`, `package.module:name` | the topology of that application |
| the path of a file that exists, or `-` | a topology file, JSON or YAML |
| any other word | an example's name, or one of the papers' topologies where the lab is installed |

So `traffic` is the example even beside a file `traffic.py`; `traffic.py` is always the file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from holdfast.durable_files import replace_durably
from holdfast.errors import BadInput
from holdfast.lab import has_lab, lab_module

if TYPE_CHECKING:
    from holdfast.topology import Ints, Topology

P = ParamSpec("P")
R = TypeVar("R")

TOPOLOGY = "APP|FILE|NAME"
"""How help texts call an argument that `read_topology` reads."""
_NOTE = """APP is an application: my_app.py, my_app.py:name or package.module:name. FILE is a topology file (JSON or
    YAML; - is standard input), NAME one of `holdfast topology list`. What ends in .py is always an application's file,
    any other file that exists a topology file; a name stands for itself even beside a NAME.py."""


def topology_argument(function: Callable[P, R]) -> Callable[P, R]:
    """Give a command its argument `given`, and its help text the paragraph that explains it."""
    head, _, rest = (function.__doc__ or "").partition("\n\n")
    function.__doc__ = f"{head}\n\n    {_NOTE}\n\n{rest}"
    return click.argument("given", metavar=TOPOLOGY)(function)


def read_topology(given: str) -> Topology:
    """Return the topology of an application, in a file or of a name; what is none of these is refused."""
    from holdfast.topology import parse
    from holdfast.topology.file_format import LARGEST_FILE

    if given == "-":
        if sys.stdin is None:  # closed by the caller: `<&-`
            raise BadInput("is closed", where="standard input", remedy="pipe a topology into it, or name a file")
        return parse(sys.stdin.buffer.read(LARGEST_FILE + 1), "standard input")
    from holdfast.loading import find_application, names_application

    if names_application(given):
        return find_application(given).topology()
    path = Path(given)
    try:
        if not path.is_file() and (named := _named_topology(given)) is not None:
            return named
        if path.is_file() and path.stat().st_size > LARGEST_FILE:
            raise BadInput("is too large", where=given, remedy=f"use at most {LARGEST_FILE:,} bytes")
        if path.exists() and not path.is_file():
            raise BadInput("is not a file", where=given, remedy="give an application, a topology file or a name")
        return parse(path.read_bytes(), given)
    except FileNotFoundError:
        beside = f"write {given}.py for the file, or " if Path(f"{given}.py").is_file() else ""
        raise BadInput(
            "no such file, and no topology of that name",
            where=given,
            remedy=f"{beside}give my_app.py, package.module:name, a topology file, or one of `holdfast topology list`",
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

"""The path of one batch and of one failure through the code, from a real trace, not from a list that somebody wrote.

Run: `python tools/trace_path.py [batch | failure] [--json] [--depth N] [--source DIR]`. An example runs in one process,
with its files in a directory and Parquet for its outputs, as `holdfast run` has them. Some batches make it warm, and a
checkpoint is taken. Then one batch is traced, and after it one failure: all partitions of one node are lost with their
files and brought back, until the run stands where it stood. What Spark adds to either is not in it.

What counts:

- *Functions*: those written in files of the imported holdfast package. Lambdas and comprehensions belong to the
  function they stand in. What runs when a module is imported does not count, nor do methods that nobody wrote
  (a dataclass's).
- *Calls*: a function and one that it calls, straight or through a library; a pair counts once, however often it runs.
- *Files entered*: every file with a function that ran, be it a property of a value.
- *Own logic* have all functions except accessors. An accessor's body is nothing, or one `return` of an expression that
  calls and loops over nothing; a constructor that only keeps such expressions is one too.
- The *main path*: functions with own logic that call another with own logic, so that whoever follows the path must read
  them to see where it goes on. Where it ends (a checksum, a table that is written) a name says enough. Its files are
  those to read; its calls are those between two of its functions in different files. Of its files, those that *hand
  on* have a function on it that calls one with own logic in another file.
- *Packages*: the first name under holdfast; `ids.py` is one as well. A *sub-package* is the folder a file is in.

After a failure lost batches are made again, by the path of any batch: the failure's *own* part is the calls that the
traced batch did not make.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WARM, AFTER_CHECKPOINT = 8, 2
"""Batches before the checkpoint, and between it and the traced one: these must be made again after the failure."""
ROWS, SEED = 500, 1
ANONYMOUS = re.compile(r"(^|\.)(<locals>\.)?<(lambda|genexpr|listcomp|setcomp|dictcomp)>.*")
WORKS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.comprehension, ast.Lambda, ast.NamedExpr)
"""What an accessor has none of."""


def stages(application: str, nodes: int, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Bring a run to where a batch comes, then to where a node fails. All that is said here of Holdfast's names."""
    from holdfast.examples import EXAMPLES
    from holdfast.runtime import InProcess

    app = EXAMPLES[application].application()
    batches = list(EXAMPLES[application].batches(SEED, WARM + AFTER_CHECKPOINT + 1, ROWS))
    topology = app.topology()
    outputs = {str(topology.partition(index).operator) for index in topology.outputs}
    sinks = {name: str(folder / "out" / name) for name in outputs}
    running = InProcess(app, directory=folder / "run", nodes=nodes, checkpoint_every=10**6, sinks=sinks)
    for batch in batches[:WARM]:
        running.feed(batch)
    running.checkpoint()
    for batch in batches[WARM:-1]:
        running.feed(batch)
    yield "batch", lambda: running.feed(batches[-1])
    node = max(running.placement.values())
    lost = [partition for partition, where in running.placement.items() if where == node]

    def fail_and_recover() -> None:
        running.fail(*lost)
        running.recover()

    yield "failure", fail_and_recover


# -- what was written -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Function:
    """A function that was written in a file of the package."""

    file: str
    """Under the package's folder."""
    name: str
    """With its class."""
    line: int
    does: str
    """The first line of its docstring."""
    has_logic: bool

    def package(self, *, deep: bool = False) -> str:
        """Return the package it is in: the first name under holdfast, or with `deep` the folder."""
        folders = self.file.split("/")
        return "/".join(folders[:-1]) if deep and len(folders) > 1 else folders[0].removesuffix(".py")


def is_accessor(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether a function has no logic of its own; see the module for the rule."""
    body = [one for one in function.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    if any(isinstance(node, WORKS) for statement in body for node in ast.walk(statement)):
        return False
    if function.name in ("__init__", "__post_init__"):
        return all(isinstance(one, ast.Assign | ast.AnnAssign | ast.Pass) for one in body)
    return not body or (len(body) == 1 and isinstance(body[0], ast.Return | ast.Pass))


@cache
def functions_in(path: str, root: str) -> dict[str, Function]:
    """Return the functions written in a file, by their qualified names."""
    found: dict[str, Function] = {}
    file = Path(path).relative_to(root).as_posix()

    def look(node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    name = inside + child.name
                    does = (ast.get_docstring(child) or "").partition("\n")[0]
                    found.setdefault(name, Function(file, name, child.lineno, does, not is_accessor(child)))
                    look(child, f"{name}.<locals>.")
                case ast.ClassDef():
                    look(child, f"{inside}{child.name}.")
                case _:
                    look(child, inside)

    look(ast.parse(Path(path).read_text()), "")
    return found


# -- what ran ---------------------------------------------------------------------------------------------------------

Calls = dict[tuple[Function | None, Function], None]
"""Who called whom, in the order of the first time; None: the stage itself, or a thread's start."""


def traced(stage: Callable[[], object], root: Path) -> Calls:
    """Run a stage, and return the calls that were made in it."""
    calls: Calls = {}
    inside = f"{root}/"

    @cache
    def function_of(code: CodeType) -> tuple[Function | None, bool]:
        """The function that code belongs to, and whether the code is the function itself."""
        if not code.co_filename.startswith(inside):
            return None, False
        name = ANONYMOUS.sub("", code.co_qualname)
        return functions_in(code.co_filename, str(root)).get(name), name == code.co_qualname

    def on_event(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        called, itself = function_of(frame.f_code)
        if called is None or not itself:
            return
        above, caller = frame.f_back, None
        while above is not None and (caller := function_of(above.f_code)[0]) is None:
            above = above.f_back
        if caller != called:
            calls.setdefault((caller, called))

    threading.setprofile(on_event)
    sys.setprofile(on_event)
    try:
        stage()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


# -- what it comes to -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trace:
    """The calls of a path, and what is counted in them."""

    calls: Calls
    root: Path
    functions: dict[Function, None] = field(init=False)
    """In the order of first entry."""
    main: set[Function] = field(init=False)
    """Those on the main path."""

    def __post_init__(self) -> None:
        self.functions = dict.fromkeys(one for call in self.calls for one in call if one is not None)
        self.main = {a for a, b in self._inner() if a.has_logic and b.has_logic}

    def _inner(self) -> list[tuple[Function, Function]]:
        """Return the calls from one function to another."""
        return [(a, b) for a, b in self.calls if a is not None]

    def handing_on(self) -> set[str]:
        """Return the files from which the main path goes on into another."""
        return {a.file for a, b in self._inner() if a in self.main and b.has_logic and a.file != b.file}

    def counts(self) -> dict[str, int]:
        """Return all the figures."""
        inner, main = self._inner(), self.main
        return {
            "files": len({one.file for one in self.functions}),
            "files_with_logic": len({one.file for one in self.functions if one.has_logic}),
            "files_on_main_path": len({one.file for one in main}),
            "files_handing_on": len(self.handing_on()),
            "functions": len(self.functions),
            "functions_on_main_path": len(main),
            "calls": len(inner),
            "calls_between_files": sum(a.file != b.file for a, b in inner),
            "calls_between_files_on_main_path": sum(a.file != b.file and {a, b} <= main for a, b in inner),
            "packages": len({one.package() for one in self.functions}),
            "calls_between_packages": sum(a.package() != b.package() for a, b in inner),
            "calls_between_sub_packages": sum(a.package(deep=True) != b.package(deep=True) for a, b in inner),
        }

    def files(self) -> list[dict[str, Any]]:
        """Return the files in the order of first entry, each with its part, its size and what of it runs."""
        mine: dict[str, list[Function]] = {}
        for one in self.functions:
            mine.setdefault(one.file, []).append(one)
        through = self.handing_on()
        return [
            {
                "file": file,
                "lines": len((self.root / file).read_text().splitlines()),
                "part": "hands on"
                if file in through
                else "main"
                if any(one in self.main for one in functions)
                else "end"
                if any(one.has_logic for one in functions)
                else "values",
                "functions": [one.name for one in functions],
                "on_main_path": [one.name for one in functions if one in self.main],
            }
            for file, functions in mine.items()
        ]

    def tree(self, depth: int | None = None) -> list[tuple[int, Function]]:
        """Return the functions, each once, one level below the first that called it; down to a depth."""
        below: dict[Function | None, list[Function]] = {}
        seen: set[Function] = set()
        for caller, called in self.calls:
            for above, one in ((None, caller), (caller, called)):
                if one is not None and one not in seen:
                    seen.add(one)
                    below.setdefault(above, []).append(one)
        found: list[tuple[int, Function]] = []
        waiting = [(0, one) for one in reversed(below.get(None, []))]
        while waiting:
            deep, function = waiting.pop()
            found.append((deep, function))
            if depth is None or deep + 1 < depth:
                waiting += [(deep + 1, one) for one in reversed(below.get(function, []))]
        return found

    def as_json(self, depth: int | None) -> dict[str, Any]:
        """Return everything."""
        return {
            **self.counts(),
            "file_list": self.files(),
            "path": [
                {"depth": deep, "file": one.file, "function": one.name, "line": one.line, "does": one.does}
                | {"main": one in self.main, "accessor": not one.has_logic}
                for deep, one in self.tree(depth)
            ],
        }

    def show(self, depth: int | None) -> None:
        """Print everything."""
        said = self.counts()
        for what, how_many, more in (
            ("files entered", "files", f"with own logic: {said['files_with_logic']}"),
            ("files on the main path", "files_on_main_path", f"handing on to another: {said['files_handing_on']}"),
            ("functions", "functions", f"on the main path: {said['functions_on_main_path']}"),
            ("calls", "calls", ""),
            (
                "calls between files",
                "calls_between_files",
                f"on the main path: {said['calls_between_files_on_main_path']}",
            ),
            (
                "crossings of packages",
                "calls_between_packages",
                f"of sub-packages: {said['calls_between_sub_packages']}; packages: {said['packages']}",
            ),
        ):
            print(f"{what:24}{said[how_many]:5}  {more}".rstrip())
        print("\nFiles in the order of first entry, and what of them runs (* on the main path):\n")
        for file in self.files():
            names = ", ".join(name + "*" * (name in file["on_main_path"]) for name in file["functions"])
            print(f"{file['part']:9}{file['lines']:4} lines  {file['file']}: {names}")
        print("\nThe path, each function once, below the first that called it (* on the main path, - accessor):\n")
        for deep, one in self.tree(depth):
            mark = "*" if one in self.main else " " if one.has_logic else "-"
            print(f"{mark} {'  ' * deep}{one.file}: {one.name}  {one.does}".rstrip())


def main() -> None:
    """Run, trace and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=["batch", "failure", "all"], default="all", help="which path")
    parser.add_argument("--application", default="traffic", metavar="NAME", help="an example; default: traffic")
    parser.add_argument("--nodes", type=int, default=3, help="default: 3")
    parser.add_argument("--depth", type=int, help="how many levels of the tree are printed; default: all")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--source", type=Path, metavar="DIR", help="the folder that holds the package holdfast")
    options = parser.parse_args()
    if options.source is not None:
        sys.path.insert(0, str(options.source.resolve()))
    root = Path(str(import_module("holdfast").__file__)).parent
    found: dict[str, Trace] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-path-") as folder:
        for name, stage in stages(options.application, options.nodes, Path(folder)):
            found[name] = Trace(traced(stage, root), root)
    own = {call: None for call in found["failure"].calls if call not in found["batch"].calls}
    found["failure_own"] = Trace(own, root)
    wanted = {"batch": ["batch"], "failure": ["failure", "failure_own"], "all": list(found)}[options.which]
    if options.json:
        print(json.dumps({name: found[name].as_json(options.depth) for name in wanted}, indent=2))
        return
    print(f"{options.application} on {options.nodes} nodes, in one process")
    for name in wanted:
        print(f"\n== {name.replace('_own', ': its own part, the calls that the batch did not make')} ==\n")
        found[name].show(options.depth)


if __name__ == "__main__":
    main()

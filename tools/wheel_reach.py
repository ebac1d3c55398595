"""Which share of the wheel's lines a run can reach: modules by their imports, from the code, without running any.

Run: `python tools/wheel_reach.py [--json] [--times] [--source DIR]`. A module reaches

- what it imports, at its top or inside a function; what stands under `if TYPE_CHECKING` never runs, and does not count;
- the packages that a module it reaches is in, for their `__init__` runs first;
- the modules that it names in a string, alone or as `"module:name"`: commands that are imported when they are called,
  what `import_module` is given, and what is started with `python -m`. (A name that is put together is not seen.)

A module that is reached counts with all its lines, blank ones and comments too. Asked are two ways in:

- `run`: the front door (`holdfast/__init__`), the command line's first module, and the command `run`;
- `user`: the same with all commands that serve a user's own application, `USER_COMMANDS`.

The first module of the command line names every command, so its strings are not followed: only the commands asked for.
By the first, 48 % of the lines were reached (26,433 of 55,054) before the package was laid out anew.

With `--times`: the median of seven times, each in a new process, of `import holdfast` (without the interpreter's own
start) and of `holdfast --help` (with it).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "holdfast"
FIRST_MODULE = "holdfast.cli.main"
"""Of the command line; it has the table of commands."""
USER_COMMANDS = ("run", "drill", "plan", "fidelity", "topology", "store", "simulate", "demo")
NAMED = re.compile(rf"({PACKAGE}(?:\.\w+)+)(?::\w+)?")
TIMES = 7
IMPORTING = "import time; began = time.perf_counter(); import holdfast; print(time.perf_counter() - began)"
HELPING = f"from {FIRST_MODULE} import main; main(['--help'])"


class Wheel:
    """The modules of the package, and what each of them reaches."""

    def __init__(self, source: Path) -> None:
        """Read all modules of the package in this folder."""
        self.trees: dict[str, ast.Module] = {}
        self.lines: dict[str, int] = {}
        for path in sorted((source / PACKAGE).rglob("*.py")):
            name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
            text = path.read_text()
            self.trees[name], self.lines[name] = ast.parse(text), len(text.splitlines())
        self._reaches: dict[str, list[str]] = {}

    def commands(self) -> dict[str, str]:
        """Return the commands that the first module of the command line names, each with its module."""
        found = {}
        for node in ast.walk(self.trees[FIRST_MODULE]):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    named = next(iter(self._named_in(value)), None)
                    if isinstance(key, ast.Constant) and named is not None:
                        found[str(key.value)] = named
        return found

    def reached(self, entries: Iterable[str]) -> set[str]:
        """Return the modules that can be reached from these, themselves among them."""
        found: set[str] = set()
        waiting = list(entries)
        while waiting:
            module = waiting.pop()
            if module not in found:
                found.add(module)
                if module not in self._reaches:
                    self._reaches[module] = list(self._next(module))
                waiting += self._reaches[module]
        return found

    def _next(self, module: str) -> Iterator[str]:
        parts = module.split(".")
        yield from (".".join(parts[:end]) for end in range(1, len(parts)))
        yield from (name for name in _imported(self.trees[module]) if name in self.trees)
        if module != FIRST_MODULE:
            yield from self._named_in(self.trees[module])

    def _named_in(self, tree: ast.AST) -> Iterator[str]:
        """Return the modules that are named in strings."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = NAMED.fullmatch(node.value)
                if named is not None and named[1] in self.trees:
                    yield named[1]


def _imported(node: ast.AST) -> Iterator[str]:
    """Return the names that are imported when this runs; of what is imported from a module, each may be one."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            for other in node.orelse:
                yield from _imported(other)
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom():
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _imported(child)


def measure(wheel: Wheel, commands: Iterable[str]) -> dict[str, Any]:
    """Return what can be reached by the front door and these commands, and what cannot."""
    named = wheel.commands()
    wanted = list(commands)
    there = [named[command] for command in wanted if command in named]
    reached = wheel.reached([PACKAGE, FIRST_MODULE, *there])
    lines, total = sum(wheel.lines[module] for module in reached), sum(wheel.lines.values())
    packages: dict[str, list[int]] = {}
    for module, size in wheel.lines.items():
        of_package = packages.setdefault(".".join(module.split(".")[:2]), [0, 0])
        of_package[0] += size * (module in reached)
        of_package[1] += size
    return {
        "commands": [command for command in wanted if command in named],
        "missing_commands": [command for command in wanted if command not in named],
        "modules": len(reached),
        "all_modules": len(wheel.lines),
        "lines": lines,
        "all_lines": total,
        "share": lines / total,
        "packages": {name: {"lines": mine, "all_lines": size} for name, (mine, size) in packages.items()},
        "unreached": {module: size for module, size in wheel.lines.items() if module not in reached},
    }


def measure_times(source: Path) -> dict[str, float]:
    """Return median seconds of `import holdfast` and of `holdfast --help`."""
    environment = {**os.environ, "PYTHONPATH": str(source)}

    def say(code: str) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    def wall(code: str) -> float:
        began = time.perf_counter()
        say(code)
        return time.perf_counter() - began

    for code in (IMPORTING, HELPING):
        say(code)  # compiled files are there from here on
    return {
        "import_seconds": statistics.median(float(say(IMPORTING)) for _ in range(TIMES)),
        "help_seconds": statistics.median(wall(HELPING) for _ in range(TIMES)),
    }


def show(name: str, found: dict[str, Any]) -> None:
    """Print what was found of one way in."""
    print(f"\n== {name}: {', '.join(found['commands'])} ==\n")
    if found["missing_commands"]:
        print(f"there is no command {', '.join(found['missing_commands'])}\n")
    print(
        f"reached: {found['share']:.1%} of the lines, {found['lines']:,} of {found['all_lines']:,}; "
        f"{found['modules']} of {found['all_modules']} modules\n"
    )
    for package, one in sorted(found["packages"].items(), key=lambda item: item[1]["lines"] - item[1]["all_lines"]):
        print(f"{one['lines']:7,} of {one['all_lines']:6,} lines  {package}")
    print("\nnot reached:\n")
    for module, lines in sorted(found["unreached"].items(), key=lambda item: (-item[1], item[0])):
        print(f"{lines:7,} lines  {module}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--times", action="store_true", help="also measure the times of import and help")
    parser.add_argument("--source", type=Path, metavar="DIR", help="the folder that holds the package holdfast")
    options = parser.parse_args()
    source: Path | None = options.source
    if source is None:
        package = find_spec(PACKAGE)
        if package is None or package.origin is None:
            parser.error("there is no holdfast to be imported; name its folder with --source")
        source = Path(package.origin).parent.parent
    wheel = Wheel(source.resolve())
    found = {"run": measure(wheel, ["run"]), "user": measure(wheel, USER_COMMANDS)}
    times = measure_times(source.resolve()) if options.times else None
    if options.json:
        print(json.dumps(found if times is None else {**found, "times": times}, indent=2))
        return
    for name, one in found.items():
        show(name, one)
    if times is not None:
        print(f"\nimport holdfast: {times['import_seconds'] * 1000:.1f} ms (median of {TIMES})")
        print(f"holdfast --help: {times['help_seconds'] * 1000:.0f} ms (median of {TIMES})")


if __name__ == "__main__":
    main()

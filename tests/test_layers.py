"""The map is tested: which package may import which, and what the fast paths must not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "holdfast"

# Top to bottom, as in docs/concepts/architecture.md: a package imports only from lines below its own.
LINES = [
    ["cli"],
    ["pictures"],
    ["drill", "simulation"],
    ["spark"],
    ["reports"],
    ["dashboard"],
    ["runtime", "store"],
    ["recovery"],
    ["planning"],
    ["loading"],
    ["examples"],
    ["application"],
    ["topology", "erasure"],
    ["storage"],
    ["ids", "lab", "durable_files"],
    ["errors", "wording"],
]
DEPTH = {package: depth for depth, line in enumerate(LINES) for package in line}

PURE = {"topology", "erasure", "ids", "errors", "wording", "planning", "recovery", "application"}
# Modules that would let a pure package read a clock, a file, a socket, the environment or global randomness.
IMPURE_MODULES = {
    "os",
    "time",
    "socket",
    "random",
    "subprocess",
    "threading",
    "asyncio",
    "tempfile",
    "pathlib",
    "secrets",
    "uuid",
    "urllib",
    "http",
    "multiprocessing",
    "shutil",
    "io",
}
IMPURE_CALLS = {"open", "print", "input"}
IMPURE_ATTRIBUTES = {"np.random", "numpy.random", "datetime.now", "datetime.utcnow", "date.today", "sys.stdin"}
ONLY_IN = {
    "pyspark": {"spark"},
    "py4j": {"spark"},
    "matplotlib": {"pictures"},
    "rich": {"cli"},
    "click": {"cli"},
    "obstore": {"storage"},
    "opentelemetry": {"spark"},
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the layer"
            module = node.module or ""
            found.append((module, node.lineno))
            if module == "holdfast":
                found += [(f"holdfast.{alias.name}", node.lineno) for alias in node.names]
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_layers(path: Path) -> None:
    package = package_of(path)
    if package in {"__init__", "__main__"}:
        return
    assert package in DEPTH, f"{package} has no layer: add it to docs/concepts/architecture.md and to LINES"
    tree = ast.parse(path.read_text())
    for name, line in imports(tree):
        parts = name.split(".")
        place = f"{path.relative_to(SOURCE)}:{line}"
        if parts[0] == "holdfast" and len(parts) > 1 and parts[1] in DEPTH and parts[1] != package:
            assert DEPTH[parts[1]] > DEPTH[package], f"{place}: {package} must not import {parts[1]}"
        allowed = ONLY_IN.get(parts[0])
        assert allowed is None or package in allowed, f"{place}: {parts[0]} belongs to {sorted(allowed or [])}"
        if package in PURE:
            assert parts[0] not in IMPURE_MODULES, f"{place}: a pure package must not import {parts[0]}"
            assert name != "numpy.random", f"{place}: randomness is an argument"
    if package in PURE:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in IMPURE_CALLS, f"{path}:{node.lineno}: {node.func.id} in a pure package"
            if isinstance(node, ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                written = f"{owner}.{node.attr}"
                assert written not in IMPURE_ATTRIBUTES, f"{path}:{node.lineno}: {written} in a pure package"


def test_help_imports_no_spark_solver_or_plotting() -> None:
    code = (
        "import sys\n"
        "from holdfast.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'pyspark', 'py4j', 'ortools', 'matplotlib', 'numpy', 'pandas', 'pyarrow', 'yaml', 'rich'}\n"
        "loaded = heavy & {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_architecture_page_draws_the_same_layers() -> None:
    page = (SOURCE.parent.parent / "docs" / "concepts" / "architecture.md").read_text()
    drawing = page.split("```text\n")[1].split("```")[0].splitlines()
    drawn = [line.split("  #")[0].split() for line in drawing if line.strip()]
    assert drawn == LINES

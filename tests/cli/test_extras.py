"""Without an extra or the lab, a command ends with one line that says what to install; executors need little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run_without(absent: set[str], code: str, *, lab: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own in which some modules cannot be found."""
    paths = [str(ROOT / "src"), *([str(ROOT / "lab")] if lab else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    program = WITHOUT.format(absent=absent) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("absent", "arguments", "extra"),
    [
        ("matplotlib", ["topology", "show", "traffic", "--svg", "traffic.svg"], "holdfast[plots]"),
        ("ortools", ["plan", "backups", "traffic", "--latency", "3"], "holdfast[plan]"),
        ("ortools", ["plan", "recovery", "traffic", "--capacity", "3", "--algorithm", "exact"], "holdfast[plan]"),
        ("pyspark", ["run", "traffic", "--batches", "1"], "holdfast[spark]"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(absent: str, arguments: list[str], extra: str) -> None:
    done = run_without({absent, "py4j"}, f"from holdfast.cli.main import main; main({arguments!r})")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert extra in done.stderr


def test_recovery_plans_need_no_solver() -> None:
    arguments = ["plan", "recovery", "traffic", "--capacity", "3", "--nodes", "2,2", "--json"]
    done = run_without({"ortools"}, f"from holdfast.cli.main import main; main({arguments!r})")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "topology"],
        ["experiment"],
        ["topology", "generate", "dag"],
        ["simulate", "recovery", "--seeds", "1"],
        ["simulate", "store", "--seeds", "1"],
    ],
)
def test_without_the_lab_its_commands_say_where_it_is(arguments: list[str]) -> None:
    code = "sys.path = [one for one in sys.path if not one.endswith('lab')]\n"
    done = run_without(set(), code + f"from holdfast.cli.main import main; main({arguments!r})", lab=False)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "checkout" in done.stderr


def test_the_cost_model_needs_no_lab(tmp_path: Path) -> None:
    arguments = ["simulate", "recovery", "traffic", "--nodes", "8", "--strategy", "blocking", "--out", str(tmp_path)]
    code = "sys.path = [one for one in sys.path if not one.endswith('lab')]\n"
    done = run_without(set(), code + f"from holdfast.cli.main import main; main({arguments!r})", lab=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "times.json").exists()


def test_executors_need_arrow_numpy_and_the_code_library_only() -> None:
    code = """
import holdfast.spark.python_daemon, holdfast.spark.worker_task, holdfast.store.agent.agent
third = {"pyarrow", "numpy", "pyeclib", "pyeclib_c", "pyspark", "py4j", "holdfast"}
standard = set(sys.stdlib_module_names) | {"cython_runtime", "_cython_3_0_11", "__main__", "dateutil", "six"}
found = {name.partition(".")[0] for name in sys.modules if not name.startswith("_")}
files = {name: str(getattr(sys.modules.get(name), "__file__", "")) for name in found - standard - third}
print(sorted(name for name, file in files.items() if "site-packages" in file))
"""
    done = run_without({"click", "rich", "yaml", "ortools", "matplotlib", "pandas"}, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", done.stdout

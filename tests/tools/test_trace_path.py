"""The trace of a batch and of a failure: what counts, and that it finds the path of the one-process runtime."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tools.loading import SOURCE, TOOLS, load_tool

tool = load_tool("trace_path")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, str(TOOLS / "trace_path.py"), "--json", "--source", str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("name", ["batch", "failure", "failure_own"])
def test_counts_agree_with_the_lists(found: dict[str, Any], name: str) -> None:
    one = found[name]
    parts = [file["part"] for file in one["file_list"]]
    assert one["files"] == len(parts) >= one["files_with_logic"] >= one["files_on_main_path"] > 1
    assert one["files_with_logic"] == one["files"] - parts.count("values")
    assert one["files_on_main_path"] == parts.count("hands on") + parts.count("main")
    assert one["files_handing_on"] == parts.count("hands on")
    assert one["functions"] == len(one["path"]) == sum(len(file["functions"]) for file in one["file_list"])
    assert one["functions_on_main_path"] == sum(step["main"] for step in one["path"])
    assert one["calls"] > one["calls_between_files"] > one["calls_between_files_on_main_path"] > 0
    assert one["calls_between_files"] > one["calls_between_sub_packages"] >= one["calls_between_packages"] > 0
    assert all(file["lines"] > 0 for file in one["file_list"])
    assert not any(step["main"] and step["accessor"] for step in one["path"])


def test_a_batch_is_fed_and_a_failure_is_recovered_from(found: dict[str, Any]) -> None:
    batch, failure = ({step["function"] for step in found[name]["path"]} for name in ("batch", "failure"))
    assert found["batch"]["path"][0]["function"].endswith(".feed")
    assert any(name.endswith(".recover") for name in failure - batch)
    packages = {name: {file["file"].rpartition("/")[0] for file in found[name]["file_list"]} for name in found}
    assert "planning/recovery" in packages["failure_own"] - packages["batch"], "only a failure plans"
    assert found["failure_own"]["calls"] < found["failure"]["calls"]


def test_it_prints_no_deeper_than_asked() -> None:
    command = [sys.executable, str(TOOLS / "trace_path.py"), "batch", "--depth", "1", "--source", str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "files on the main path" in done.stdout
    path = done.stdout.split("\nThe path")[1].splitlines()[2:]
    assert len(path) == 1
    assert "feed" in path[0]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("def f(self): ...", True),
        ('def f(self):\n    """Say it."""\n    return self.x.y[0] + 1 if self.z else None', True),
        ("def __init__(self, x: int) -> None:\n    self.x, self.y = x, 0", True),
        ("def __init__(self, x: int) -> None:\n    self.x = sorted(x)", False),
        ("def f(self):\n    return len(self.x)", False),
        ("def f(self):\n    return [one for one in self.x]", False),
        ("def f(self):\n    self.x = 1", False),
        ("def f(self):\n    if self.x:\n        return 1\n    return 2", False),
    ],
)
def test_accessors_have_no_logic(written: str, expected: bool) -> None:
    function = ast.parse(written).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert tool.is_accessor(function) is expected


def test_what_counts_as_a_function_and_as_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "traced_by_test").mkdir()
    (tmp_path / "traced_by_test" / "one.py").write_text(
        dedent(
            '''
            from dataclasses import dataclass

            @dataclass
            class Value:
                x: int

                def __post_init__(self):
                    self.check()

                def check(self):
                    assert self.x

            def start():
                """Begin.

                More.
                """
                return max((double(x) for x in [Value(1).x, 2, 3]), key=lambda x: triple(x))

            def double(x):
                return 2 * x

            def triple(x):
                return sum([x, x, x])
            '''
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    from traced_by_test import one  # type: ignore[import-not-found]

    root = tmp_path / "traced_by_test"
    trace = tool.Trace(tool.traced(one.start, root), root)
    assert [(caller and caller.name, called.name) for caller, called in trace.calls] == [
        (None, "start"),
        ("start", "Value.__post_init__"),
        ("Value.__post_init__", "Value.check"),
        ("start", "double"),
        ("start", "triple"),
    ]
    assert {one.name for one in trace.main} == {"start", "Value.__post_init__"}
    assert trace.tree()[0][1].does == "Begin."
    assert [one.name for deep, one in trace.tree() if deep == 2] == ["Value.check"]
    assert trace.files()[0]["part"] == "main"

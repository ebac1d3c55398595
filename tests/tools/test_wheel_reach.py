"""What a run can reach of the wheel: by which imports, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.loading import SOURCE, TOOLS, load_tool

tool = load_tool("wheel_reach")

FILES = {
    "__init__.py": "def __getattr__(name):\n    import_module('holdfast.front')\n",
    "front.py": "",
    "cli/__init__.py": "",
    "cli/main.py": "lazy = {'run': ('holdfast.cli.run:run', 'Run.'), 'bench': ('holdfast.cli.bench:bench', 'B.')}\n",
    "cli/run.py": "def run():\n    from holdfast.deep import inner\n",
    "cli/bench.py": "import holdfast.cli.run\n",
    "deep/__init__.py": "if TYPE_CHECKING:\n    import holdfast.typed\nelse:\n    import holdfast.untyped\n",
    "deep/inner.py": "subprocess.run(['python', '-m', 'holdfast.started'])\n",
    "started.py": '"""Not holdfast.alone."""\n',
    "typed.py": "",
    "untyped.py": "",
    "alone.py": "\n\n\n",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Any:
    for name, text in FILES.items():
        path = tmp_path / "holdfast" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tool.Wheel(tmp_path)


def test_imports_packages_and_names_are_followed(wheel: Any) -> None:
    found = tool.measure(wheel, ["run", "nothing"])
    assert found["unreached"] == {"holdfast.alone": 3, "holdfast.cli.bench": 1, "holdfast.typed": 0}
    assert found["missing_commands"] == ["nothing"]
    assert found["lines"] == found["all_lines"] - 4
    assert found["packages"]["holdfast.cli"] == {"lines": 3, "all_lines": 4}


def test_the_table_of_commands_is_read(wheel: Any) -> None:
    assert wheel.commands() == {"run": "holdfast.cli.run", "bench": "holdfast.cli.bench"}


def test_it_measures_this_wheel() -> None:
    command = [sys.executable, str(TOOLS / "wheel_reach.py"), "--source", str(SOURCE)]
    done = subprocess.run([*command, "--json", "--times"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert 0.2 < found["run"]["share"] < found["user"]["share"] <= 1
    assert not found["run"]["missing_commands"]
    assert not found["user"]["missing_commands"]
    assert set(found["user"]["unreached"]) < set(found["run"]["unreached"])
    for one in (found["run"], found["user"]):
        assert one["all_lines"] - one["lines"] == sum(one["unreached"].values())
    assert set(found["times"]) == {"import_seconds", "help_seconds"}
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{found['run']['share']:.1%} of the lines" in said
    assert "holdfast.cli.run" not in said.split("not reached")[1].split("==")[0].split()

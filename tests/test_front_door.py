"""The front door: everything a user needs is in `holdfast`, documented, and nothing is imported before it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf

HEAVY = {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "click", "yaml"}


def test_importing_holdfast_imports_nothing_heavy() -> None:
    loaded = "{m.partition('.')[0] for m in sys.modules}"
    code = f"import sys, holdfast\nfound = {HEAVY!r} & {loaded}\nassert not found, found"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in hf.__all__ if not name.startswith("_")])
def test_every_name_is_there_and_says_what_it_is_for(name: str) -> None:
    found = getattr(hf, name)
    text = inspect.getdoc(found)
    assert text, name
    if inspect.isfunction(found) or name in ("Application", "Run", "Stream", "Windowed"):
        everything = text + "".join(inspect.getdoc(one) or "" for _, one in inspect.getmembers(found))
        assert ">>>" in everything or "Example" in everything, f"{name} has no example"
    assert name in dir(hf)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'total'"):
        hf.total  # noqa: B018


LOADED = """
import holdfast as hf

app = hf.Application("quiet")
app.source("s", schema="a bigint").output("rows")
hf.submit(app)
ran = True
"""


def test_submit_runs_nothing_while_a_file_is_loaded(tmp_path: Path) -> None:
    import runpy

    file = tmp_path / "quiet.py"
    file.write_text(LOADED)
    assert runpy.run_path(str(file))["ran"]
    with pytest.raises(hf.BadInput, match="is not an application"):
        hf.submit("app")  # type: ignore[arg-type]


def test_a_submitted_file_takes_the_options_of_run(tmp_path: Path) -> None:
    file = tmp_path / "quiet.py"
    file.write_text(LOADED)
    done = subprocess.run([sys.executable, str(file), "--nodes", "0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'--nodes'" in done.stderr
    helped = subprocess.run([sys.executable, str(file), "--help"], capture_output=True, text=True, check=False)
    assert helped.returncode == 0
    assert "--available-now" in helped.stdout

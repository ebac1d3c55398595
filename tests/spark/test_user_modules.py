"""The user's own modules go to the nodes by value, however the application is started; installed ones are imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast
from holdfast.spark.user_modules import is_own, pickled, send_by_value

UNITS = """
import pyarrow.compute as pc
from fleet_of_test import offsets

class Scale:
    factor = 1.8

def fahrenheit(rows):
    return rows.append_column("f", pc.add(pc.multiply(rows["c"], Scale.factor), offsets.ZERO))
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the user's, imported here and in no other process."""
    folder = tmp_path / "fleet_of_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "offsets.py").write_text("ZERO = 32.0\n")
    (folder / "units.py").write_text(UNITS)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "fleet_of_test"]:
        del sys.modules[name]


def elsewhere(data: bytes, tmp_path: Path) -> list[float]:
    """Load a function in a process that cannot import the package, and call it, as a node does."""
    (tmp_path / "function").write_bytes(data)
    code = (
        "import json, pickle, sys, pyarrow as pa\n"
        "function = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(json.dumps(function(pa.table({'c': [0.0, 100.0]}))['f'].to_pylist()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "function")], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout)
    return found


def test_functions_of_own_modules_run_where_the_modules_are_not(fleet: Path, tmp_path: Path) -> None:
    function = import_module("fleet_of_test.units").fahrenheit
    assert elsewhere(pickled(function), tmp_path) == [32.0, 212.0]
    assert elsewhere(pickled(lambda rows: function(rows.slice(0))), tmp_path) == [32.0, 212.0], (
        "through another's globals"
    )


def test_what_is_kept_stays_as_it_was_when_its_files_change(fleet: Path, tmp_path: Path) -> None:
    kept = pickled(import_module("fleet_of_test.units").fahrenheit)
    (fleet / "offsets.py").write_text("ZERO = 0.0\n")
    assert elsewhere(kept, tmp_path) == [32.0, 212.0]


def test_what_a_reader_refers_to_goes_by_value_too(fleet: Path, tmp_path: Path) -> None:
    """PySpark pickles functions of columns itself, by what cloudpickle has registered."""
    from pyspark import cloudpickle

    function = import_module("fleet_of_test.units").fahrenheit

    def reader(spark: object) -> object:
        return function, unpicklable

    unpicklable = (one for one in ())
    send_by_value(reader)
    assert elsewhere(cloudpickle.dumps(function), tmp_path) == [32.0, 212.0]


def test_installed_modules_are_imported_by_the_nodes(fleet: Path) -> None:
    own = import_module("fleet_of_test.units")
    assert is_own(own.__name__)
    for module in (json, pa, pc, pytest, holdfast, sys):
        assert not is_own(module.__name__), module
    assert not is_own("__main__")
    assert not is_own(None)

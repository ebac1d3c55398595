"""A drill of a user's application, up to where the cluster would start: reference, victims, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.cli.drill_display import verdict_words
from holdfast.cli.main import run
from holdfast.drill.checkers import ExactlyOnce, Verdict, check_exactly_once
from holdfast.drill.inputs import write_input
from holdfast.drill.prepare import aim_at_partitions, prepare_input
from holdfast.drill.reference import make_reference
from holdfast.drill.scenarios import find_scenario, is_application, scenario_of
from holdfast.drill.schedule import FaultKind, make_schedule
from holdfast.drill.settings import DrillSettings, check_settings, read_settings
from holdfast.errors import BadInput
from holdfast.runtime.io.sinks import MemorySink

APP = """
import random
import pyarrow as pa
from holdfast import Application

app = Application("mine")
rows = app.source("rows", schema={"key": "string", "n": "int64"}, parallelism=2, key="key")
rows.filter(lambda table: pa.array([True] * len(table)), id="kept").output(priority=[5, 2], sink="never/used")


def drawn(table):
    return table.set_column(1, "n", pa.array([random.randrange(10**9) for _ in range(len(table))]))


def counted(state, inputs, watermark):
    return state, inputs[0]


same = {"key": "string", "n": "int64"}
rows.map(drawn, schema=same, id="drawn").output()
rows.apply(counted, state={"n": "int64"}, schema=same, deterministic=False, id="loose").output()
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrillSettings]:
    before = list(sys.path)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(APP)
    rows = pa.table({"key": [f"k{n % 7}" for n in range(100)], "n": list(range(100))})
    write_input({"rows": rows}, tmp_path / "rows")
    yield DrillSettings("mine.py", nodes=4, kill=2, batches=20, rows=50, fail_at=5.0, input=str(tmp_path / "rows"))
    sys.path[:] = before


def test_only_outputs_that_can_be_compared_are(asked: DrillSettings) -> None:
    reference = make_reference(scenario_of(asked), asked, twice=True)
    assert set(reference.rows) == {"kept"}
    assert reference.rows["kept"].num_rows == 100
    assert reference.not_compared == {
        "drawn": "two runs without failures gave different rows",
        "loose": "it depends on an operator with deterministic=False",
    }
    assert not Path("never").exists(), "its own sinks are not used"


def test_what_is_not_compared_is_said() -> None:
    left = {"drawn": "two runs without failures gave different rows"}
    said = check_exactly_once({"kept": ExactlyOnce(100)}, left)
    assert said.verdict is Verdict.OK
    assert said.reason == "100 rows, each once; drawn is not compared: two runs without failures gave different rows"
    assert check_exactly_once({}, left).verdict is Verdict.UNKNOWN
    assert check_exactly_once({"kept": ExactlyOnce(100, missing=1)}, left).verdict is Verdict.FAILED


def test_killed_nodes_are_ones_with_partitions(asked: DrillSettings) -> None:
    topology = scenario_of(asked).application().topology()
    aimed = aim_at_partitions(asked, topology)
    assert sorted(aimed.kill_hosting) == sorted(str(one) for one in topology.partitions())
    check_settings(aimed)
    kills = [fault for fault in make_schedule(aimed) if fault.kind is FaultKind.KILL]
    assert [fault.hosting for fault in kills] == [aimed.kill_hosting] * 2
    assert aim_at_partitions(replace(asked, freeze=1), topology).kill_hosting == (), "victims are drawn with the others"
    assert aim_at_partitions(DrillSettings("traffic"), topology).kill_hosting == ()
    assert read_settings(aimed.document()) == aimed, "the driver gets the same"


def test_a_given_input_is_copied_unless_a_drill_wrote_it(asked: DrillSettings, tmp_path: Path) -> None:
    said: list[str] = []
    assert prepare_input(asked, tmp_path / "drill", said.append).input == asked.input
    assert said == ["using 100 rows of rows, cut into 20 batches"]
    assert prepare_input(DrillSettings("traffic"), tmp_path / "drill") == DrillSettings("traffic")
    Path("other").mkdir()
    Path("other/rows.csv").write_text("key,n\na,1\nb,2\n")
    copied = prepare_input(replace(asked, input="other"), tmp_path / "drill", said.append)
    assert copied.input == str(tmp_path / "drill" / "input")
    assert said[1] == "read 2 rows of rows, cut into 20 batches"
    assert sum(batch["rows"].num_rows for batch in scenario_of(copied).batches(1, 20, 50)) == 2


def test_sinks_are_left_out_of_a_copy(asked: DrillSettings) -> None:
    from holdfast.loading import find_application

    app = find_application("mine.py")
    app.sinks[next(iter(app.sinks))] = MemorySink()
    assert scenario_of(asked).application().sinks == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mine.py"], "mine.py: rows: has no reader, so there is nothing to record; give its rows with --input DIR"),
        (["mine.py", "--input", "nowhere"], "nowhere: --input: no such folder"),
        (["mine.py", "--strategy", "structured-streaming"], "runs the traffic scenario only"),
        (["none.py"], "none.py: no such file"),
        (["mine"], "there is no scenario 'mine'; write mine.py for the file"),
        (["mine.py:other"], "mine.py: defines no 'other'; it has app"),
        (["mine.py", "--nodes", "2", "--kill", "3", "--input", "rows"], "--kill"),
    ],
)
def test_what_cannot_be_done_gets_one_line(
    arguments: list[str], said: str, asked: DrillSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["drill", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert said in printed.err
    assert not Path("out").exists(), "nothing was started"


def test_examples_are_scenarios_too(asked: DrillSettings) -> None:
    assert find_scenario("word-count").application().name == "word-count"
    assert not is_application("word-count")
    with pytest.raises(BadInput, match="input is recorded first"):
        scenario_of(replace(asked, input=None)).batches(1, 2, 3)


def test_the_verdict_in_words() -> None:
    result = {
        "verdict": "ok",
        "killed": 2,
        "nodes": 4,
        "exactly_once": {"expected": 1234},
        "queries": [{"down_at": 12.0}, {"down_at": None}],
        "all_back_after": 8.25,
        "reasons": [],
        "not_compared": {"drawn": "why"},
        "settings": {"input": "rows"},
    }
    assert verdict_words(result) == (
        "OK: 2 of 4 nodes were killed; 1 of 2 queries went down, all back after 8.2 s; 1,234 output rows equal those "
        "of a run without failures. Not compared row by row: drawn. The application's own sinks were not used."
    )
    failed = {**result, "verdict": "failed", "reasons": ["exactly once: kept: 1 missing"], "not_compared": {}}
    assert verdict_words(failed).startswith("FAILED: 2 of 4 nodes were killed; exactly once: kept: 1 missing.")

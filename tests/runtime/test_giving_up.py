"""A change of layout leaves out what is parked for good and is no more in the application; the others lose nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.coordinator.giving_up import GivenUp, given_up, machine_without
from holdfast.runtime.coordinator.layout import change_layout, check_layout
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.identity import describe
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.messages import Failed, OperatorFailed
from holdfast.runtime.program import Program
from holdfast.storage.files import FileStorage

SCHEMA = {"n": "int64"}


def meet(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    rows = pa.concat_tables(inputs)
    if 13 in rows["n"].to_pylist():
        raise ValueError("thirteen")
    return state, rows


def same(rows: pa.Table) -> pa.Table:
    return rows


def app(*, bad: bool = True, other: bool = False, parallelism: int = 2) -> hf.Application:
    """Two queries that share a source and an operator, `bad` with one of its own; with `other`, one behind `bad`."""
    made = hf.Application("poisoned")
    shared = made.source("s", schema=SCHEMA).map(same, schema=SCHEMA, id="shared")
    shared.map(same, schema=SCHEMA, id="good", parallelism=parallelism).output("good")
    if bad:
        own = made.source("t", schema=SCHEMA).map(same, schema=SCHEMA, id="own")
        looked = own.apply(meet, shared, state=SCHEMA, schema=SCHEMA, id="bad").output("bad")
        if other:
            looked.map(same, schema=SCHEMA, id="behind").output("behind")
    return made


def machine(query: str = "bad[0]", partition: str = "bad[0]") -> dict[str, object]:
    parked = {query: {"partition": partition, "batch": 1, "error": "ValueError: thirteen"}}
    return {"parked": parked, "published": {"bad[0]": 0, "good[0]": 3}}


def asked(before: hf.Application, now: hf.Application, fields: dict[str, object] | None) -> GivenUp | None:
    return given_up(describe(Program(before)), describe(Program(now)), fields)


def test_what_serves_only_parked_queries_that_are_removed_is_given_up() -> None:
    found = asked(app(), app(bad=False), machine())
    assert found is not None
    assert found.operators == {"t", "own", "bad"}, "what the other query needs as well stays"
    assert found.lines == (
        "output bad is given up: it is parked by bad[0] at batch 1 (ValueError: thirteen) and is removed; rows after "
        "batch 0 of bad[0] are not published, and the state of bad, own, t is dropped",
    )
    of_source = asked(app(), app(bad=False), machine(partition="t[0]"))
    assert of_source is not None
    assert of_source.operators == found.operators


@pytest.mark.parametrize(
    ("before", "now", "fields"),
    [
        (app(), app(bad=False), {"parked": {}}),
        (app(), app(bad=False), None),
        (app(), app(parallelism=3), machine()),
        (app(), app(bad=False), machine(partition="shared[0]")),
        (app(), app(bad=False), machine(query="good[0]")),
        (app(other=True), app(), machine()),
        (app(other=True), app(bad=False), machine()),
    ],
    ids=["nothing parked", "begins", "stays", "shared fails", "another one too", "it stays", "one behind it goes on"],
)
def test_nothing_else_is_given_up(before: hf.Application, now: hf.Application, fields: dict[str, object]) -> None:
    assert asked(before, now, fields) is None


def test_an_application_without_operators_is_otherwise_as_it_was() -> None:
    whole, left = (
        describe(Program(app())),
        describe(Program(app().without([OperatorId(n) for n in ("t", "own", "bad")]))),
    )
    assert left["outputs"] == {"good": "good"}
    assert left["operators"] == {name: whole["operators"][name] for name in ("s", "shared", "good")}


def test_what_a_machine_says_of_others_stays() -> None:
    written = {
        "checkpoints": {"global": 3},
        "placement": {"bad[0]": "node-1", "good[1]": "node-1"},
        "published": {"bad[0]": 0, "good[1]": 3},
        "parked": {"bad[0]": {}},
        "quarantined": {"bad[0]": {}},
        "tentative": {"bad[0]": {}},
        "dropped": ["bad[0]", "good[1]"],
        "tentative_choices": {"requests": 4, "queries": {"bad[0]": True, "good[1]": False}},
    }
    assert machine_without(written, ["bad"]) == {
        "checkpoints": {"global": 3},
        "placement": {"good[1]": "node-1"},
        "published": {"good[1]": 3},
        "parked": {},
        "quarantined": {},
        "tentative": {},
        "dropped": ["good[1]"],
        "tentative_choices": {"requests": 4, "queries": {"good[1]": False}},
    }


def test_the_layout_before_is_tried_whole_and_then_run_without_what_is_given_up(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    sinks = {name: str(tmp_path / "out" / name) for name in ("good", "bad")}
    run = InProcess(app(), directory=tmp_path, sinks=sinks, errors=ErrorSettings(retries=0))
    run.feed({"s": pa.table({"n": [1, 13]}), "t": pa.table({"n": [2]})})
    assert list(map(str, run.parked)) == ["bad[0]"]
    asked: list[frozenset[OperatorId]] = []
    lines: list[str] = []

    def run_old(*, anew: bool, without: frozenset[OperatorId] = frozenset()) -> None:
        asked.append(without)
        if not without:
            failed = Failed(PartitionId(OperatorId("bad"), 0), BatchId(0), "thirteen")
            raise OperatorFailed(failed, ["bad[0]"])
        progress = Progress(storage, "poisoned")
        check_layout(progress, Program(app().without(without)), where="here", without=without)
        progress.end()
        raise InterruptedError

    with pytest.raises(OperatorFailed):
        change_layout(storage, storage.within("checkpoints"), Program(app(parallelism=3)), run_old=run_old)
    with pytest.raises(InterruptedError):
        change_layout(
            storage, storage.within("checkpoints"), Program(app(bad=False)), run_old=run_old, log=lines.append
        )
    assert asked == [frozenset(), frozenset(), {"t", "own", "bad"}]
    assert len(lines) == 1
    assert lines[0].startswith("output bad is given up: it is parked by bad[0] at batch 0 (ValueError: thirteen)")
    other = Progress(storage, "poisoned")
    with pytest.raises(CheckFailed, match="another start has changed the layout"):
        check_layout(other, Program(app().without(asked[-1])), where="here")

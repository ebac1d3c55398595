"""Each checker finds what it is there for, and says unknown where it cannot know."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drill.made_up import PLACED, begin, event, one_node_killed, outputs
from holdfast.drill.checkers import (
    Check,
    ExactlyOnce,
    Verdict,
    check_bound,
    check_exactly_once,
    check_faults,
    check_live_queries,
    check_outboxes,
    check_recovered,
    compare_rows,
    judge,
)
from holdfast.drill.cluster_pool import ClusterPool
from holdfast.drill.drill import compare_outputs, judge_drill, run_drill
from holdfast.drill.history import Event, HistoryFile, read_history
from holdfast.drill.losses import placement_of
from holdfast.drill.measures import measure
from holdfast.drill.report import make_report
from holdfast.drill.result import make_result
from holdfast.drill.scenarios import scenario_of
from holdfast.drill.settings import DrillSettings, DrillStrategy
from holdfast.errors import BadInput, CheckFailed

INCREMENTAL = DrillStrategy.INCREMENTAL


def table(*values: object) -> pa.Table:
    return pa.table({"k": pa.array([str(value) for value in values]), "v": [1.0] * len(values)})


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (table("b", "a", "a"), ExactlyOnce(3)),
        (table("a", "b"), ExactlyOnce(3, missing=1)),
        (table("a", "a", "a", "b", "b"), ExactlyOnce(3, duplicated=2)),
        (table("a", "a", "b", "c"), ExactlyOnce(3, wrong=1)),
        (table("c"), ExactlyOnce(3, missing=3, wrong=1)),
        (None, ExactlyOnce(3, missing=3)),
        (pa.table({"other": [1]}), ExactlyOnce(3, missing=3, wrong=1)),
    ],
)
def test_rows_are_compared_as_bags(found: pa.Table | None, answer: ExactlyOnce) -> None:
    assert compare_rows(table("a", "a", "b"), found) == answer


def test_not_a_number_equals_itself_and_null_is_no_number() -> None:
    rows = pa.table({"x": pa.array([math.nan, None, 1.0])})
    assert compare_rows(rows, rows).holds
    assert not compare_rows(rows, pa.table({"x": pa.array([math.nan, math.nan, 1.0])})).holds


def test_exactly_once_names_the_output() -> None:
    check = check_exactly_once({"O3": ExactlyOnce(10), "O5": ExactlyOnce(5, duplicated=2)})
    assert check.verdict is Verdict.FAILED
    assert "O5: 0 missing, 2 duplicated" in check.reason
    assert check_exactly_once({"O3": ExactlyOnce(10)}).verdict is Verdict.OK
    assert check_exactly_once({"O3": ExactlyOnce(0)}).verdict is Verdict.UNKNOWN, "nothing was compared"


def test_rows_where_none_were_expected_are_wrong() -> None:
    found = compare_rows(table(), table("a"))
    check = check_exactly_once({"O3": found})
    assert check.verdict is Verdict.FAILED
    assert "O3: 0 missing, 0 duplicated, 1 wrong" in check.reason
    check = check_exactly_once({"O3": found}, {"O5": "it depends on an operator with deterministic=False"})
    assert check.verdict is Verdict.FAILED


def test_recovered() -> None:
    whole = one_node_killed()
    assert check_recovered(measure(whole), whole, ended=True).verdict is Verdict.OK
    cut = [one for one in whole if one.at < 36]
    check = check_recovered(measure(cut), cut, ended=True)
    assert check.verdict is Verdict.FAILED
    assert "B[0]" in check.reason
    assert check_recovered(measure(whole), whole, ended=False).verdict is Verdict.UNKNOWN
    endless = [one for one in whole if one.kind != "recovery-ended"]
    check = check_recovered(measure(endless), endless, ended=True)
    assert (check.verdict, check.reason) == (
        Verdict.FAILED,
        "what was lost at 20.2 s is back, and recovery has not ended",
    )
    again = sorted([*endless, event(50, "driver-ready")], key=lambda one: one.at)
    assert check_recovered(measure(again), again, ended=True).verdict is Verdict.OK, "a new driver began anew"


def costs(history: list[Event], capacity: float) -> Check:
    return check_bound(history, dict.fromkeys(PLACED, 1.0), capacity, 0.8)


def test_no_node_is_planned_above_its_bound() -> None:
    assert costs(one_node_killed(), 5).verdict is Verdict.OK
    history = one_node_killed()
    # The start puts three on a node, and later plans no more; one more, and it is above four fifths of 3.75.
    assert costs(history, 3.75).verdict is Verdict.OK
    more = event(25, "planned", placement={"B[0]": "127.0.0.2-0"}, recover=["B[0]"], queries=[], priority=0)
    tight = costs(sorted([*history, more], key=lambda one: one.at), 3.75)
    assert tight.verdict is Verdict.FAILED
    assert "127.0.0.2-0 was planned to carry 4, above 0.8 of 3.75" in tight.reason
    assert costs(begin()[:1], 5).verdict is Verdict.UNKNOWN, "the history has no plan"


def test_what_a_killed_driver_had_placed_is_not_counted_again() -> None:
    again = {name: "127.0.0.9-0" if name.startswith("A") else "127.0.0.9-1" for name in PLACED}
    history = [
        *begin(),
        event(20, "fault", what="kill-driver"),
        event(30, "driver-ready"),
        event(31, "planned", placement={**again, "S[0]": "127.0.0.2-0"}, recover=[], queries=[], priority=0),
    ]
    assert costs(history, 3.75).verdict is Verdict.OK


def test_live_queries_do_not_wait_for_dead_ones() -> None:
    history = one_node_killed()
    assert check_live_queries(measure(history), INCREMENTAL, history).verdict is Verdict.OK
    waiting = [
        one
        for one in history
        if not (one.kind == "published" and one.fields["partition"] == "A[0]" and 20 <= one.at <= 40)
    ]
    check = check_live_queries(measure(waiting), INCREMENTAL, waiting)
    assert check.verdict is Verdict.FAILED
    assert "A[0]" in check.reason
    assert check_live_queries(measure(waiting), DrillStrategy.SOURCE_REPLAY, waiting).verdict is Verdict.OK
    on_its_way = sorted([*waiting, *outputs("A[0]", range(19, 20), at=21.0)], key=lambda one: one.at)
    check = check_live_queries(measure(on_its_way), INCREMENTAL, on_its_way)
    assert check.verdict is Verdict.FAILED, "what was on its way at the fault says nothing"


def test_outboxes_are_trimmed_to_the_last_checkpoint() -> None:
    assert check_outboxes(one_node_killed()).verdict is Verdict.OK
    left = [event(60, "kept", checkpoint=59, oldest={"S[0]": 40, "T[0]": 60})]
    assert check_outboxes(left).reason == "S[0] still keeps batch 40, which the checkpoint at 59 covers"
    assert check_outboxes(left).verdict is Verdict.FAILED
    assert check_outboxes([]).verdict is Verdict.UNKNOWN
    assert check_outboxes([event(60, "kept", checkpoint=59, oldest={})]).verdict is Verdict.UNKNOWN, "no node answered"
    kept = [event(60, "kept", checkpoint=59, oldest={"S[0]": 60}, buffering=True)]
    assert check_outboxes(kept).verdict is Verdict.FAILED
    none = check_outboxes([event(60, "kept", checkpoint=-1, oldest={"S[0]": 0})])
    assert none.verdict is Verdict.UNKNOWN, "everything is kept, and no checkpoint was ever complete"


def test_faults_must_have_been_done() -> None:
    history = one_node_killed()
    measures = measure(history)
    assert check_faults(history, 2, measures, harmful=1).verdict is Verdict.OK
    assert check_faults(history, 3, measures, harmful=1).verdict is Verdict.UNKNOWN
    calm = [*begin(), *outputs("A[0]", range(5)), event(20, "fault", what="kill", node="node-9")]
    assert check_faults(calm, 1, measure(calm), harmful=1).verdict is Verdict.UNKNOWN, "no partition was hit"


def test_a_fault_whose_losses_replicas_cover_has_hit() -> None:
    took_over = {"partition": "A[1]", "before": "127.0.0.3-1", "node": "127.0.0.4-2", "batch": 19}
    history = [
        *begin(),
        *outputs("A[0]", range(30)),
        event(20, "fault", what="kill", node="node-2"),
        event(20.2, "node-lost", nodes=["127.0.0.3-1"]),
        event(20.2, "promoted", **took_over, why="127.0.0.3-1 lost"),
    ]
    assert not measure(history).failed, "no query was down"
    check = check_faults(history, 1, measure(history), harmful=1)
    assert (check.verdict, check.reason) == (Verdict.OK, "1 fault done, 1 partition taken over by replicas")
    moved = [one for one in history if one.kind not in {"node-lost", "promoted"}]
    moved.append(event(21, "promoted", **took_over, why="moved"))
    assert check_faults(moved, 1, measure(moved), harmful=1).verdict is Verdict.UNKNOWN, "a move is no loss"


def test_a_partition_is_where_its_replica_took_over() -> None:
    took_over = {"partition": "A[1]", "before": "127.0.0.3-1", "node": "127.0.0.4-2", "batch": 19, "why": "lost"}
    assert placement_of([*begin(), event(20, "promoted", **took_over)])["A[1]"] == "127.0.0.4-2"


def test_the_worst_word_counts() -> None:
    ok, bad, unsure = (Check("x", verdict, "") for verdict in (Verdict.OK, Verdict.FAILED, Verdict.UNKNOWN))
    assert judge([ok, ok]) is Verdict.OK
    assert judge([ok, unsure]) is Verdict.UNKNOWN
    assert judge([unsure, bad, ok]) is Verdict.FAILED
    assert judge([]) is Verdict.UNKNOWN


def test_a_history_survives_its_driver(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history.jsonl", began=1000.0)
    file.add(1000.0, "begin", {"queries": {}})
    file.add(1002.5, "published", {"partition": "größe[0]", "batch": 1})
    file.add(1001.0, "logged", {"batch": 1})  # the driver's pipe was late
    ordered = file.close()
    assert [one.at for one in ordered] == [0.0, 1.0, 2.5]
    text = (tmp_path / "history.jsonl").read_text(encoding="utf-8")
    assert read_history(text.splitlines(keepends=True)) == ordered
    assert read_history([*text.splitlines(keepends=True), '{"at": 3, "ki']) == ordered, "a torn last line"
    with pytest.raises(BadInput, match="line 1"):
        read_history(['{"at": 3, "ki\n', *text.splitlines(keepends=True)])


def test_a_drill_that_does_not_begin_leaves_no_verdict_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("result.json", "report.html", "junit.xml", "history.jsonl"):
        (tmp_path / name).write_text('{"verdict": "ok"}')

    def no_cluster(pool: ClusterPool, nodes: int) -> None:
        raise CheckFailed("the driver did not start", where="drill")

    monkeypatch.setattr(ClusterPool, "take", no_cluster)
    with pytest.raises(CheckFailed, match="did not start"):
        run_drill(DrillSettings("traffic", batches=30, rows=1), tmp_path)
    assert not [one.name for one in tmp_path.iterdir() if one.is_file()]


def test_an_output_that_cannot_be_read_fails_the_drill(tmp_path: Path) -> None:
    expected = {"good": table("a"), "cut": table("a"), "empty": table()}
    for name in ("good", "cut", "empty"):
        (tmp_path / name).mkdir()
    pq.write_table(table("a"), tmp_path / "good" / "1.parquet")
    pq.write_table(table("a"), tmp_path / "cut" / "1.parquet")
    (tmp_path / "cut" / "2.parquet").write_bytes(b"PAR1 and then the node died")
    (tmp_path / "empty" / "1.parquet").write_bytes(b"no Parquet")
    compared, unread = compare_outputs(str(tmp_path), expected)
    assert compared == {"good": ExactlyOnce(1), "cut": ExactlyOnce(1, missing=1), "empty": ExactlyOnce(0)}
    assert [name for name, _ in unread] == ["cut", "empty"]
    history = one_node_killed()
    topology = scenario_of(DrillSettings("traffic")).application().topology()
    asked = DrillSettings("traffic", capacity=100.0)
    result, checks = judge_drill(asked, topology, history, compared, True, 1.0, {}, None, unread)
    (outputs_check,) = [one for one in checks if one.name == "outputs"]
    assert outputs_check.verdict is Verdict.FAILED
    assert "empty cannot be read" in outputs_check.reason
    assert result["verdict"] == "failed"


def test_result_and_report() -> None:
    history = one_node_killed()
    measures = measure(history)
    checks = [check_recovered(measures, history, ended=True), Check("exactly once", Verdict.OK, "<b>")]
    asked = DrillSettings("traffic", nodes=3, kill=1, arrivals=(10.0,), batches=60)
    result = make_result(asked, measures, checks, {"A": ExactlyOnce(600)}, 1, {"seconds": 70.0})
    result = json.loads(json.dumps(result, allow_nan=False))
    contract = {"scenario", "strategy", "seed", "nodes", "killed", "batches", "verdict", "exactly_once"}
    contract |= {"detected_after", "planned_after", "first_restore_after", "unavailability", "unavailability_level"}
    assert contract | {"queries", "available", "recovered_at"} <= set(result)
    assert {"id", "priority", "down_at", "tentative_at", "back_at", "level_at"} <= set(result["queries"][0])
    failed = [one for one in result["queries"] if one["down_at"] is not None]
    assert result["unavailability"] == pytest.approx(
        sum(one["priority"] * (one["back_at"] - one["down_at"]) for one in failed)
    )
    page = make_report(result, measures, checks, history)
    assert page.count("<svg") == 4, "queries, the recovery, available queries, latencies"
    for outside in ("http://", "https://", "src=", "href=", "@import", "url("):
        assert outside not in page.replace("http://www.w3.org/2000/svg", ""), "the page needs no network"
    assert "&lt;b&gt;" in page
    assert "kill -9 node-2" in page

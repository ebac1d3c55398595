"""The fold of an event log into what the page shows: made-up logs, recorded ones, damaged ones."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.made_up import Log, Recorder, topology
from holdfast import Application
from holdfast.dashboard.changes import changes
from holdfast.dashboard.estimate import Durations, Under, estimate
from holdfast.dashboard.partition_rows import DOWN, shown_state
from holdfast.dashboard.view import percent, view_of
from holdfast.dashboard.view_model import RunModel
from holdfast.examples.registry import EXAMPLES
from holdfast.ids import NodeId
from holdfast.planning.replicas.fidelity import fidelity
from holdfast.recovery.events import NodesLost
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.in_process import InProcess
from holdfast.topology import from_document

CHAIN = topology(("s", 2), ("m", 4), ("out", 2))
SMALL = topology(("s", 1), ("m", 2), ("out", 1))


def folded(log: Log) -> RunModel:
    model = RunModel()
    for event in log.events:
        model.take(event)
    assert model.skipped == 0
    return model


def seen(log: Log, **more: Any) -> dict[str, Any]:
    view = view_of(folded(log), log.at, **more)
    json.dumps(view, allow_nan=False)
    return view


def test_a_query_with_tentative_outputs_is_shown_as_such_until_it_is_whole() -> None:
    log = Log(CHAIN).started()
    log.add("published", partition="out[0]", batch=4, rows=3)
    log.after(1.0).lose("node-0", "s[0]")
    log.add("tentative", query="out[0]", since=5, fidelity=0.5, without=["s[0]"])
    log.add("published", partition="out[0]", batch=5, rows=2, tentative=True, fidelity=0.5)
    (one,) = [query for query in seen(log)["queries"] if query["id"] == "out[0]"]
    assert (one["state"], one["tentative"], one["fidelity"]) == ("tentative", True, 0.5)
    assert (one["published"], one["rows"]) == (4, 3), "tentative rows are not counted as published"
    assert any("50% of the data" in happened["text"] for happened in seen(log)["happened"])
    view = seen(log)
    marked = {name for name, row in view["partitions"].items() if row["tentative"]}
    assert marked == {"m[0]", "m[1]", "m[2]", "m[3]", "out[0]"}, "what s[0] feeds, of the query that goes on"
    assert view["states"] == {"healthy": 2, "lost": 1, "tentative": 5}
    assert view["headline"]["text"].endswith("1 query tentative")
    log.add("tentative-ended", query="out[0]", problem=None)
    log.add("corrected", query="out[0]", since=5, through=5)
    (one,) = [query for query in seen(log)["queries"] if query["id"] == "out[0]"]
    assert (one["tentative"], one["fidelity"]) == (False, None)
    assert seen(log)["states"] == {"healthy": 7, "lost": 1}


def test_a_start_goes_from_nothing_to_running() -> None:
    log = Log(CHAIN)
    view = seen(log)
    assert (view["run"]["state"], view["headline"]["text"]) == ("starting", "0 of 8 partitions, starting")
    log.live(2).after(1.0)
    assert seen(log)["states"] == {"restoring": 8}
    log.restored(*log.names).after(1.0).level(*log.names)
    view = seen(log)
    assert view["headline"]["text"] == "8 of 8 partitions live, every query is up"
    assert (view["run"]["state"], view["headline"]["level"]) == ("running", "ok")
    assert [one["is_start"] for one in view["recoveries"]] == [True]
    assert view["recoveries"][0]["queries"] == {}, "a start is no outage"


def test_a_loss_and_its_recovery_stage_by_stage() -> None:
    log = Log(CHAIN).started()
    log.after(10).lose("node-1", "m[1]", "m[3]")
    lost = seen(log)
    exact = fidelity(from_document(CHAIN), from_document(CHAIN).indices(["m[1]", "m[3]"]))
    assert lost["headline"]["fidelity"] == pytest.approx(exact)
    assert lost["headline"]["text"] == f"6 of 8 partitions, fidelity {percent(exact)}, 2 without a node"
    assert {one["id"]: one["state"] for one in lost["queries"]} == {"out[0]": "down", "out[1]": "down"}
    log.after(1).place({"m[1]": "node-0"}, left=["m[3]"], queries=[])
    assert seen(log)["recoveries"][0]["plans"][0]["left_out"] == ["m[3]"]
    log.after(2).restored("m[1]").after(1).level("m[1]")
    log.after(5).add("node-arrived", nodes=["node-2"], capacity={"node-2": None})
    log.place({"m[3]": "node-2"}, queries=["out[0]", "out[1]"])
    half = seen(log)
    assert half["headline"]["recovery"] == {"seconds": 3.0, "plus_minus": 0.0, "source": "measured"}
    assert "full recovery in 3 s ± 1 s" in half["headline"]["text"]
    log.after(2).restored("m[3]", node="node-2").after(1).level("m[3]", node="node-2")
    log.after(0.5).add("published", partition="out[0]", batch=7, rows=3, latency=0.25)
    view = seen(log)
    recovery = view["recoveries"][0]
    assert recovery["nodes"] == ["node-1"]
    assert (recovery["how_ended"], recovery["ended"] - recovery["began"]) == ("level", 12.0)
    assert [row["partition"] for row in recovery["rows"]] == ["m[1]", "m[3]"], "in the order of the plans"
    assert [span[0] for span in recovery["rows"][1]["spans"]] == ["lost", "restoring", "catching-up"]
    assert recovery["queries"]["out[0]"]["back_at"] == log.at
    assert recovery["queries"]["out[1]"]["back_at"] is None, "it has published nothing since"
    assert recovery["first_estimate"] is None, "this fold was made after it was over"
    assert view["run"]["state"] == "running"


def test_why_this_order_is_the_planners_density() -> None:
    log = Log(topology(("s", 1), ("a", 2), ("out", 2), full=False))
    document = log.document
    document["operators"][1] = {"id": "a", "parallelism": 2, "inputs": [{"from": "s", "partitioning": "full"}]}
    document["operators"][1]["cost"] = [1, 4]
    document["operators"][2]["priority"] = [2, 4]
    log = Log(document).started()
    log.after(1).lose("node-1", "a[0]", "a[1]").place({"a[0]": "node-0"}, left=["a[1]"], queries=["out[0]"])
    reasons = seen(log)["recoveries"][0]["plans"][0]["reasons"]
    assert [(one["query"], one["density"], one["cost"], one["now"]) for one in reasons] == [
        ("out[0]", 2.0, 1.0, True),
        ("out[1]", 1.0, 4.0, False),
    ]


def test_restores_say_where_snapshots_came_from_and_what_was_predicted() -> None:
    log = Log(CHAIN).started().after(5).lose("node-1", "m[1]", "m[3]").place({"m[1]": "node-0", "m[3]": "node-0"})
    sizes = {"bytes_from_peers": 100, "bytes_from_folder": 0, "bytes_from_node": 0}
    log.add("restored", partition="m[1]", node="node-0", batch=3, fetch_seconds=0.2, predicted_seconds=0.1, **sizes)
    log.restored("m[1]")
    log.add("restored", partition="m[3]", node="node-0", batch=3)  # it had no state
    log.restored("m[3]")
    view = seen(log)
    assert view["partitions"]["m[1]"]["fetched"]["from_peers"] == 100
    assert view["partitions"]["m[3]"]["fetched"] is None
    found = view["recoveries"][0]["fetched"]
    assert (found["restores"], found["seconds"], found["predicted"]) == (1, 0.2, 0.1)


def test_replicas_are_built_level_promoted_and_dropped() -> None:
    log = Log(CHAIN).started()
    for p in ("m[0]", "m[1]"):
        log.add("replica-building", partition=p, node="node-1", batch=3)
    log.add("replica-level", partition="m[0]", node="node-1", batch=3)
    assert seen(log)["replicas"] == {"level": 1, "building": 1}
    assert {one["name"]: one["replicas"] for one in seen(log)["nodes"]} == {"node-0": 0, "node-1": 2}
    log.add("promoted", partition="m[0]", before="node-0", node="node-1", batch=5, why="lost")
    log.add("replica-dropped", partition="m[1]", node="node-1", why="slow")
    view = seen(log)
    assert view["replicas"] == {"level": 0, "building": 0}
    assert (view["partitions"]["m[0]"]["node"], view["partitions"]["m[0]"]["state"]) == ("node-1", "running")


def test_the_load_of_a_node_counts_its_replicas() -> None:
    log = Log(CHAIN).started()
    log.add("measures", partitions={p: {"cost": 0.5} for p in ("m[0]", "m[1]")}, batch=3)
    before = {one["name"]: one["load"] for one in seen(log)["nodes"]}
    home = seen(log)["partitions"]["m[0]"]["node"]
    other = next(name for name in before if name != home)
    log.add("replica-building", partition="m[0]", node=other, batch=3)
    after = {one["name"]: one["load"] for one in seen(log)["nodes"]}
    assert after == {**before, other: (before[other] or 0.0) + 0.5}
    log.add("replica-dropped", partition="m[0]", node=other, why="slow")
    assert {one["name"]: one["load"] for one in seen(log)["nodes"]} == before


def test_an_estimate_is_left_out_where_nothing_is_known() -> None:
    under = {"a": Under("restoring", 0.0)}
    assert estimate(1.0, under, 0, Durations.of([]), Durations.of([]), None) is None
    assert estimate(1.0, under, 0, Durations.of([4.0, 6.0]), Durations.of([]), None) is None, "nobody has replayed yet"
    assert estimate(1.0, under, 1, Durations.of([4.0]), Durations.of([1.0]), None) is None, "something waits for nodes"
    found = estimate(1.0, under, 0, Durations.of([4.0, 6.0]), Durations.of([2.0]), None)
    assert found is not None
    assert (found.seconds, found.plus_minus) == (6.0, 1.0)
    assert estimate(100.0, under, 0, Durations.of([4.0, 6.0]), Durations.of([2.0]), None) is None, (
        "it took far longer than any before"
    )
    planned = estimate(1.0, under, 0, Durations.of([]), Durations.of([]), 9.0)
    assert planned is not None
    assert (planned.seconds, planned.plus_minus, planned.source) == (8.0, None, "plan")


def test_a_plans_prediction_and_target_stand_beside_a_recovery() -> None:
    log = Log(CHAIN)
    promises = [{"what": "recovery", "query": f"out[{n}]", "predicted": 8.0, "target": 30.0} for n in range(2)]
    log.add("plan", targets={"survive": 1}, predicted=promises, interval_seconds=5.0)
    log.started().after(5).lose("node-1", "out[1]").place({"out[1]": "node-0"}).after(2)
    view = seen(log)
    assert view["headline"]["text"].endswith("full recovery in about 6 s (the plan's prediction), target 30 s")
    log.add("node-lost", nodes=["node-9"])
    assert seen(log)["headline"]["recovery"] is None, "the plan survives one node, and two are lost"


def test_a_driver_that_starts_again_keeps_the_history() -> None:
    log = Log(CHAIN).started()
    log.after(5).lose("node-1", "m[1]").after(1)
    log.run("two", claim=2)
    view = seen(log)
    assert view["states"] == {"lost": 8}
    assert [one["how_ended"] for one in view["recoveries"]] == [None, "the driver ended", "level"]
    log.add("ended", start="one", problem="claim 1 is over")
    assert seen(log)["run"]["ended"] is None, "the end of the driver before is not this one's"
    log.started(2).add("ended", start="two", problem=None)
    assert seen(log)["run"]["state"] == "ended"


def test_a_driver_that_is_gone_is_said() -> None:
    log = Log(CHAIN).started()
    view = seen(log, driver="gone")
    assert view["run"]["state"] == "gone"
    assert view["notices"][0]["title"] == "The driver is gone"


def test_a_rotated_log_begins_with_what_is_needed(tmp_path: Path) -> None:
    from holdfast.runtime.coordinator.event_log import Observation
    from holdfast.spark import event_file

    log = Log(CHAIN).started().after(1).lose("node-1", "m[1]")
    query = next(iter(folded(log).queries))
    log.add("parked", query=query, partition="m[1]", error="poison")
    log.add("promise-alarm", what="overhead", now=0.1, target=0.05)
    log.add("promise-alarm", what="recovery of out", now=9.0, target=5.0)
    log.add("promise-holds", what="recovery of out", now=4.0, target=5.0)
    log.add("kept-no-more", partitions=["m[1]", "m[2]"], outbox_bytes=10)
    log.add("regenerated", partitions=["m[2]"])
    file = event_file.EventFile(tmp_path / "events.jsonl")
    before, event_file.MOST_BYTES = event_file.MOST_BYTES, 4000
    try:
        for event in log.events:
            fields = {key: value for key, value in event.items() if key not in ("at", "event")}
            file.write(Observation(event["at"], event["event"], fields))
        for number in range(100):
            file.write(Observation(log.at + number, "cycle-failed", {"number": number, "problem": "x" * 100}))
    finally:
        event_file.MOST_BYTES = before
        file.close()
    model = RunModel()
    for line in (tmp_path / "events.jsonl").read_text().splitlines():
        model.take(json.loads(line))
    view = view_of(model, log.at + 100)
    assert view["states"] == {"healthy": 7, "lost": 1}
    assert model.skipped == 0
    assert (set(model.parked), set(model.alarms)) == ({query}, {"overhead"})
    assert "m[1]" in model.dropped
    assert not [one for one in model.happened if one["kind"] == "parked"], "what is repeated is no news"


def test_a_query_that_catches_up_is_named() -> None:
    log = Log(CHAIN).started()
    log.add("catching-up", query="out[0]", lag_batches=1600)
    log.add("caught-up", query="out[0]")
    texts = [one["text"] for one in folded(log).happened]
    assert texts[-2:] == [
        "out[0] is 1,600 batches behind and catches up",
        "out[0] has caught up with the other queries",
    ]


def test_what_was_dropped_for_a_waiting_partition_is_said_until_it_is_regenerated() -> None:
    log = Log(CHAIN).started().after(1).lose("node-1", "m[1]")
    log.add("kept-no-more", partitions=["m[1]", "m[2]"], outbox_bytes=10)
    log.add("replicas-changed", start=["m[0]"], stop=[], why="rates")
    assert any("m[1], m[2] were dropped" in one["title"] for one in seen(log)["notices"])
    log.add("regenerated", partitions=["m[1]", "m[2]"])
    assert not any("dropped" in one["title"] for one in seen(log)["notices"])
    texts = [one["text"] for one in folded(log).happened]
    assert "replicas started for m[0]: rates" in texts


def test_waiting_and_slow_partitions_are_named_with_what_to_do() -> None:
    log = Log(CHAIN).started().after(5).lose("node-1", "m[1]", "m[2]")
    log.place({"m[1]": "node-0"}, left=["m[2]"]).after(1).restored("m[1]").after(1).level("m[1]")
    log.add("requested", count=1).after(30)
    (notice,) = seen(log)["notices"]
    assert notice["title"] == "Waiting for nodes"
    assert "32 s" in notice["text"]
    assert "1 node requested" in notice["text"]
    log.place({"m[2]": "node-0"}).after(60)
    assert [one["title"] for one in seen(log)["notices"]] == ["Slow: m[2]"]


def test_loads_of_nodes_stand_against_the_bound() -> None:
    log = Log(CHAIN).started()
    log.add("measures", partitions={p: {"cost": 0.5} for p in log.names})
    nodes = {one["name"]: one for one in seen(log)["nodes"]}
    assert (nodes["node-0"]["load"], nodes["node-0"]["capacity"], nodes["node-0"]["bound"]) == (4.0, 4.0, 0.8)


# -- recorded logs -----------------------------------------------------------------------------------------------------


def test_a_recorded_run_that_loses_a_node() -> None:
    record = Recorder()
    example = EXAMPLES["incidents"]
    running = InProcess(example.application(), nodes=4, checkpoint_every=3, emit=record)
    for number, batch in enumerate(example.batches(1, 8, 200)):
        if number == 5:
            node = NodeId("node-1")
            running._backend.lose_nodes(node)
            running._coordinator.handle(NodesLost((node,)))
        running.feed(batch)
    model = RunModel()
    stages = set()
    for event in record:
        model.take(event)
        stages.add(view_of(model, event["at"])["run"]["state"])
    assert model.skipped == 0
    assert stages == {"starting", "running", "recovering"}
    view = view_of(model, record.events[-1]["at"])
    state = running._coordinator.state
    assert {p: row["state"] for p, row in view["partitions"].items()} == {
        str(p): str(one.state) for p, one in state.partitions.items()
    }
    assert {one["id"]: one["published"] for one in view["queries"]} == {str(p): b for p, b in state.published.items()}
    assert view["checkpoint"]["batch"] == state.checkpoints.global_batch
    assert [one["priority"] for one in view["queries"]] == sorted(
        (one["priority"] for one in view["queries"]), reverse=True
    )
    recovery = view["recoveries"][0]
    assert not recovery["is_start"]
    assert recovery["how_ended"] == "level"
    assert recovery["lowest_fidelity"] < 1
    assert all(one["latency"] is not None for one in view["queries"] if one["published"] >= 0)


def test_a_recorded_run_with_a_parked_query() -> None:
    def look(rows: pa.Table) -> pa.Table:
        if 13 in rows["n"].to_pylist():
            raise ValueError("<script>alert(13)</script>")
        return rows

    app = Application("two")
    source = app.source("s", schema={"n": "int64"})
    source.map(lambda rows: rows, schema={"n": "int64"}, id="good").output()
    source.map(look, schema={"n": "int64"}, id="bad").output()
    record = Recorder()
    running = InProcess(app, errors=ErrorSettings(retries=0), nodes=2, emit=record)
    running.feed({"s": pa.table({"n": [13]})})
    model = RunModel()
    for event in record:
        model.take(event)
    view = view_of(model, record.events[-1]["at"])
    assert [(one["query"], one["error"]) for one in view["parked"]] == [
        ("bad[0]", "ValueError: <script>alert(13)</script>")
    ]
    assert {one["id"]: one["state"] for one in view["queries"]} == {"bad[0]": "parked", "good[0]": "healthy"}
    assert view["headline"]["level"] == "warn"


def test_what_is_counted_as_events_come_is_what_the_rows_say() -> None:
    """Counts by state, query and node follow single rows: after any run they are those of all rows counted anew."""
    record = Recorder()
    example = EXAMPLES["traffic"]
    running = InProcess(example.application(), nodes=4, checkpoint_every=3, emit=record)
    for number, batch in enumerate(example.batches(1, 12, 50)):
        if number in (1, 3):
            node = NodeId(f"node-{number}")
            running._backend.lose_nodes(node)
            running._coordinator.handle(NodesLost((node,)))
        running.feed(batch)
    model = RunModel()
    for event in record:
        model.take(event)
        rows, topology_now = model.rows, model.topology
        if topology_now is None:
            continue
        assert rows.shown == Counter(shown_state(row) for row in rows.values())
        assert rows.down == {name for name, row in rows.items() if row["state"] in DOWN}
        for query, members in topology_now.members.items():
            assert rows.states_in(query) == {rows[p]["state"] for p in members}
            assert rows.down_in(query) == sum(p in rows.down for p in members)
        held = {(row["node"], name) for name, row in rows.items() if row["node"] is not None}
        assert {(node, name) for node, names in rows.on.items() for name in names} == held


# -- what must never happen --------------------------------------------------------------------------------------------

_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9), _JUNK), min_size=1, max_size=3))
def test_no_event_breaks_the_page(damages: list[tuple[int, int, Any]]) -> None:
    log = Log(SMALL).started().after(1).lose("node-1", "m[1]").place({"m[1]": "node-0"}).after(1)
    log.add("published", partition="out[0]", batch=1, rows=1, latency=0.1).add("checkpoint", batch=1, durable=0)
    for place, field, junk in damages:
        event = log.events[place % len(log.events)]
        event[sorted(event)[field % len(event)]] = junk
    model = RunModel()
    for event in log.events:
        model.take(event)
    view_of(model, log.at)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(["s[0]", "m[1]", "out[0]"]), st.sampled_from(["lost", "running"])), max_size=8)
)
def test_changes_applied_to_a_view_give_the_next_one(steps: list[tuple[str, str]]) -> None:
    model, log = RunModel(), Log(CHAIN).started()
    for event in log.events:
        model.take(event)
    here: dict[str, Any] = {}
    before = None
    for partition, after in steps:
        log.after(1).state(partition, "", after, "node-0")
        model.take(log.events[-1])
        view = view_of(model, log.at)
        changed = changes(before, view)
        rows = changed.pop("partitions", {})
        here |= changed
        here["partitions"] = {**here.get("partitions", {}), **rows}
        assert here == view
        assert len(rows) <= (1 if before is not None else math.inf)
        assert changes(view, view_of(model, log.at)) == {}, "where nothing happens, nothing is sent"
        before = view

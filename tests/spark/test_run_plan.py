"""What a start makes of a plan: from targets, a file, a profile; settings set by hand go before it. Without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import Application
from holdfast.cli.main import run as run_command
from holdfast.cli.plan_segments import describe
from holdfast.errors import BadInput, NoPlan
from holdfast.ids import OperatorId, PartitionId
from holdfast.planning.joint.explaining import plan_document
from holdfast.planning.joint.model import JointModel
from holdfast.planning.joint.search import plan_jointly
from holdfast.planning.joint.targets import Assumptions, targets
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.planning.segments.algorithms import Algorithm, plan_segments
from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import model_of
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.profile_records import ProfileRecords
from holdfast.runtime.coordinator.promises import PromiseWatch
from holdfast.runtime.program import Program
from holdfast.spark.planned import NEVER, plan_for_run
from holdfast.spark.planned_segments import never_anchors, planned_segments, segment_lines, with_boundaries
from holdfast.spark.settings import PREFIX, Settings
from holdfast.spark.start import Watch, _Relay
from holdfast.storage.memory import MemoryStorage
from holdfast.topology import Input, Operator, Partitioning, Topology, made_for, to_document


def chain(rate: float = 100.0, last: int = 2) -> Topology:
    full = Partitioning.FULL
    return Topology(
        "chain",
        [
            Operator(OperatorId("s"), rate=rate, tuple_seconds=1e-5, failure_rate=1e-6),
            Operator(
                OperatorId("a"),
                parallelism=2,
                inputs=(Input(OperatorId("s"), full),),
                tuple_seconds=5e-4,
                state_bytes=1e8,
                failure_rate=1e-6,
            ),
            Operator(
                OperatorId("b"),
                parallelism=last,
                inputs=(Input(OperatorId("a"), full),),
                tuple_seconds=5e-4,
                state_bytes=1e8,
                priority=5,
                failure_rate=1e-6,
            ),
        ],
    )


def clock() -> float:
    return 0.0


def test_targets_become_settings_and_promises_of_what_is_executed() -> None:
    plan = plan_for_run(targets(recovery={5: 30}, survive=1, replicas=3), chain(), None, nodes=4, clock=clock)
    assert plan is not None
    changed, remarks = plan.applied(Settings(), {})
    assert (changed.checkpoint_seconds, changed.checkpoint_batches) == (plan.interval, NEVER)
    assert 0 < changed.store_tolerate_node_loss < 1
    assert int(4 * changed.store_tolerate_node_loss) == plan.document["fragments"]["parity"]
    assert remarks == []
    assert all(one["predicted"] <= 30 for one in plan.predicted if one["what"] == "recovery")
    assert plan.replicas is not None
    assert len(plan.replicas.partitions) == 3
    assert [one["target"] for one in plan.predicted if one["what"] == "fidelity"] == [None]
    less = plan_for_run(targets(replicas=1), chain(), None, nodes=4, clock=clock)
    assert less is not None
    assert "a budget of 1 replica keeps no output alive" in less.lines[-1]
    event = plan.event()
    assert event["predicted"] == [dict(one) for one in plan.predicted]
    assert json.loads(json.dumps(event)) == event
    assert plan_for_run(None, chain(), None) is None
    automatic = plan_for_run("auto", chain(), None, nodes=3, clock=clock)
    assert automatic is not None
    assert automatic.document["targets"]["overhead"] == 0.05


@pytest.mark.parametrize("text", ["3", "0.5", "1.0", "3 cores"])
def test_a_budget_that_is_set_is_planned_with_and_the_plan_runs(text: str) -> None:
    budget, key = ReplicaBudget.parse(text), f"{PREFIX}replicas.budget"
    for asked in ("auto", targets(recovery={5: 60})):
        plan = plan_for_run(asked, chain(), None, nodes=4, replicas=text, clock=clock)
        assert plan is not None
        assert plan.replicas is not None
        assert len(plan.replicas.partitions) == (5 if text == "1.0" else 0 if text == "0.5" else 3)
        assert ReplicaBudget.read(plan.document["targets"]["replicas"]).document() == budget.document()
        changed, remarks = plan.applied(Settings.of({key: text}), {key: text})
        assert (changed.replicas_budget, remarks) == (None, [])
        assert plan.replicas.cores == budget.cores
    by_hand = {key: text, f"{PREFIX}replicas.algorithm": "greedy"}
    changed, remarks = plan.applied(Settings.of(by_hand), by_hand)
    assert changed.replicas_budget == text
    assert bool(remarks) == bool(plan.replicas.partitions)
    with pytest.raises(BadInput, match=r"replicas\.budget: 'some' is not a budget"):
        plan_for_run("auto", chain(), None, nodes=4, replicas="some", clock=clock)


@pytest.mark.parametrize(("target", "text"), [(6, "2"), ("4 cores", "2"), (3, "0.5")])
def test_a_budget_that_goes_before_the_one_of_the_targets_is_named(target: int | str, text: str) -> None:
    plan = plan_for_run(targets(replicas=target), chain(), None, nodes=4, replicas=text, clock=clock)
    assert plan is not None
    (line,) = [line for line in plan.lines if "hf.targets" in line]
    budget = ReplicaBudget.parse(text)
    assert line == (
        f"{PREFIX}replicas.budget={budget} is set, and goes before hf.targets(replicas={ReplicaBudget.of(target)})"
    )
    for asked in ("auto", targets(), targets(replicas=budget)):
        same = plan_for_run(asked, chain(), None, nodes=4, replicas=text, clock=clock)
        assert same is not None
        assert not any("hf.targets" in line for line in same.lines)


def test_a_start_names_replicas_without_room_and_promises_nothing_of_them() -> None:
    def planned(cores: float) -> tuple[list[str], float]:
        storage = MemoryStorage()
        nodes = {f"n{number}": cores for number in range(3)}
        ProfileRecords(storage, 1).write(0.0, to_document(chain(), {"nodes": nodes}))
        plan = plan_for_run(targets(replicas=5, survive=1, overhead=1.0), chain(), storage, clock=clock)
        assert plan is not None
        longest = max(one["predicted"] for one in plan.predicted if one["what"] == "recovery")
        return [line for line in plan.lines if "promise" in line], longest

    (line,), restored = planned(2.0)
    assert line.startswith("the plan does not promise take-over by 5 replicas without room: s[0]")
    nothing, taken_over = planned(9.0)
    assert nothing == []
    assert taken_over < restored


def test_what_is_set_by_hand_goes_before_the_plan() -> None:
    plan = plan_for_run("auto", chain(), None, nodes=4, clock=clock)
    assert plan is not None
    given = {
        f"{PREFIX}checkpoint.seconds": "7s",
        f"{PREFIX}retention": "all",
        f"{PREFIX}store.dataFragments": "2",
        f"{PREFIX}store.parityFragments": "1",
    }
    settings = Settings.of(given)
    changed, (remark,) = plan.applied(settings, given)
    assert changed.checkpoint_seconds == 7
    assert changed.store_tolerate_node_loss == settings.store_tolerate_node_loss
    for key in given:
        assert key in remark


def test_a_profile_of_the_same_topology_is_planned_with_and_another_is_not() -> None:
    storage = MemoryStorage()
    measured = {"nodes": {"a": 2.0, "b": 2.0, "c": 2.0}, "checkpoint_interval_seconds": 10.0}
    ProfileRecords(storage, 1).write(0.0, to_document(chain(rate=777.0), measured))
    same = plan_for_run("auto", chain(), storage, clock=clock)
    assert same is not None
    assert same.document["profile"]["operators"][0]["rate"] == 777
    assert same.document["assumptions"]["nodes"] == {"value": 3, "from": "measured"}
    other = plan_for_run("auto", chain(last=3), storage, clock=clock)
    assert other is not None
    assert other.document["profile"]["operators"][0]["rate"] == 100


@pytest.mark.parametrize(
    "document",
    [
        {"holdfast": 99, "name": "from a later version"},
        {**to_document(chain(rate=777.0)), "measured": {"restore_bandwidth": "fast"}},
    ],
)
def test_a_profile_that_cannot_be_read_keeps_no_run_from_its_start(document: dict[str, Any]) -> None:
    storage = MemoryStorage()
    ProfileRecords(storage, 1).write(0.0, document)
    plan = plan_for_run("auto", chain(), storage, clock=clock)
    fresh = plan_for_run("auto", chain(), MemoryStorage(), clock=clock)
    assert plan is not None
    assert fresh is not None
    assert plan.predicted == fresh.predicted, "with what the application declares"


def test_a_file_is_executed_for_its_own_topology_with_its_segments(tmp_path: Path) -> None:
    topology = chain(rate=2000.0)
    model = JointModel(topology, targets(recovery={5: 60}, survive=2, overhead=0.2), Assumptions(nodes=8))
    found = plan_jointly(model, clock=clock)
    assert found.keeps_targets
    file = tmp_path / "plan.json"
    segmented = replace(found.plan, anchors=np.array([True, False, True]), interval=np.array([9.0, 9.0, 4.0]))
    document: dict[str, Any] = plan_document(model, segmented)
    file.write_text(json.dumps(document))
    plan = plan_for_run(str(file), topology, None)
    assert plan is not None
    assert plan.interval == pytest.approx(min(one["interval_seconds"] for one in document["segments"]))
    assert any(line.startswith("plan: 2 segments, a checkpoint every 4 to 9 s") for line in plan.lines)
    assert plan.document["executed"]["not_executed"] == []
    found_segments = {tuple(one["operators"]): one["interval_seconds"] for one in plan.event()["segments"]}
    assert found_segments == {
        tuple(one["operators"]): pytest.approx(one["interval_seconds"]) for one in document["segments"]
    }
    assert {one.segment: one.batches for one in plan.segments.intervals} == dict.fromkeys(
        plan.segments.segments.names, NEVER
    )
    by_hand = plan.executed_segments({f"{PREFIX}checkpoint.seconds": "7s"})
    assert by_hand.segments == plan.segments.segments
    assert by_hand.intervals == (), "the one that is set holds for all"
    assert json.loads(json.dumps(plan.event())) == plan.event()
    with pytest.raises(BadInput, match=r"is a plan for topology chain .* plan again for this topology"):
        plan_for_run(file, chain(last=3), None)
    file.write_text("no")
    with pytest.raises(BadInput, match="is not JSON"):
        plan_for_run(file, topology, None)
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        plan_for_run(tmp_path / "nothing", topology, None)
    with pytest.raises(BadInput, match="3 is not a plan"):
        plan_for_run(3, topology, None)


def test_a_file_promises_what_its_own_profile_gives_and_not_what_the_application_declares(tmp_path: Path) -> None:
    """A profile has measured values, the application declared ones: the file's promises are those of the run."""
    measured = chain(rate=1500.0)
    operators = [replace(one, reprocess_seconds=(3.0,) * one.parallelism) for one in measured.operators]
    assumed = Assumptions(nodes=8, base_interval=12.0)
    model = JointModel(Topology("chain", operators), targets(survive=2, overhead=0.3), assumed)
    document: dict[str, Any] = plan_document(model, plan_jointly(model, clock=clock).plan)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    plan = plan_for_run(file, chain(rate=10.0), None)
    assert plan is not None
    promised = [one["predicted"] for one in document["executed"]["promises"]]
    assert [one["predicted"] for one in plan.predicted] == pytest.approx(promised, rel=1e-4)
    document["profile"] = to_document(chain(last=3))
    file.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"plan again for this topology"):
        plan_for_run(file, chain(), None)


def test_a_file_that_misses_its_targets_says_so_and_one_that_no_run_may_execute_is_refused(tmp_path: Path) -> None:
    topology, file = chain(rate=2000.0), tmp_path / "plan.json"
    model = JointModel(topology, targets(recovery={5: 60}, survive=1, overhead=0.2), Assumptions(nodes=8))
    found = plan_jointly(model, clock=clock).plan
    late = replace(found, interval=np.full(3, 600.0), backups=found.backups & False, anchors=model.sources)
    file.write_text(json.dumps(plan_document(model, late)))
    plan = plan_for_run(file, topology, None)
    assert plan is not None
    (missed,) = [line for line in plan.lines if "misses" in line]
    assert missed.startswith("the plan misses a target: b[0] is back after ")
    file.write_text(json.dumps(plan_document(model, replace(found, anchors=found.anchors & False))))
    with pytest.raises(BadInput, match=r"plan.json: has a plan that no run may execute: source s is not an anchor"):
        plan_for_run(file, topology, None)


def test_auto_takes_segments_where_they_help_but_not_after_what_is_not_deterministic() -> None:
    app = Application("noisy")
    stream = app.source("s", schema={"n": "int64"})
    for name, sure in (("a", True), ("b", False), ("c", True)):
        stream = stream.apply(
            lambda state, inputs, watermark: (state, inputs[0]),
            schema={"n": "int64"},
            state={"n": "int64"},
            id=name,
            deterministic=sure,
        )
    stream.output()
    assert never_anchors(app) == {"c"}
    slow = Topology("chain", [replace(one, state_bytes=1e9) for one in chain().operators])
    free = plan_for_run(targets(overhead=0.5), slow, None, nodes=4, clock=clock)
    assert free is not None
    assert free.segments.segments.many
    bound = plan_for_run(targets(overhead=0.5), slow, None, nodes=4, never_anchors={"a", "b"}, clock=clock)
    assert bound is not None
    assert not bound.segments.segments.many
    again = bound.replanning(Settings(), {}, lambda search: pytest.fail("not yet"))
    assert again is not None
    assert again.never_anchors == {"a", "b"}


def test_a_plan_of_segments_only_is_executed_and_the_rest_is_as_set(tmp_path: Path) -> None:
    topology, file = chain(), tmp_path / "segments.json"
    model = model_of(topology, 1e8)
    planned = plan_segments(model, 3.0, algorithm=Algorithm.N_SEGMENTS, grid=FrequencyGrid(60))
    document = describe(model, planned) | {"topology": made_for(topology)}
    file.write_text(json.dumps(document))
    plan = plan_for_run(file, topology, None)
    assert plan is not None
    assert plan.segments.segments.names == ("a", "b", "s")
    seconds = {one.segment: one.seconds for one in plan.segments.intervals}
    assert seconds == {name: pytest.approx(1 / document["frequency"][name]) for name in ("a", "b", "s")}
    assert plan.backups is None
    slowest = max(document["recovery_seconds"].values())
    assert {one["query"]: one["predicted"] for one in plan.predicted} == {
        f"b[{number}]": pytest.approx(3 + slowest, rel=1e-4) for number in range(2)
    }
    assert plan.document["executed"]["promises"] == list(plan.predicted)
    assert plan.document["targets"]["survive"] == 0, "an operator that fails alone"
    assert "predicted: all queries back within" in plan.lines[0]
    changed, _ = plan.applied(Settings(), {})
    assert changed.checkpoint_seconds == pytest.approx(min(seconds.values()))
    assert changed.store_tolerate_node_loss == Settings().store_tolerate_node_loss
    assert json.loads(json.dumps(plan.event())) == plan.event()
    with pytest.raises(BadInput, match=r"is a plan for topology chain .* plan again for this topology"):
        plan_for_run(file, chain(last=3), None)
    file.write_text(json.dumps({**document, "frequency": {**document["frequency"], "b": 0}}))
    with pytest.raises(BadInput, match="b has no frequency above 0"):
        plan_for_run(file, topology, None)
    file.write_text(json.dumps({**document, "anchors": 3}))
    with pytest.raises(BadInput, match="is not a whole plan of segments"):
        plan_for_run(file, topology, None)
    file.write_text(json.dumps({**document, "recovery_seconds": {"s": 1}}))
    with pytest.raises(BadInput, match="is not a time for every operator"):
        plan_for_run(file, topology, None)
    file.write_text(json.dumps({name: value for name, value in document.items() if name != "recovery_seconds"}))
    silent = plan_for_run(file, topology, None)
    assert silent is not None
    assert silent.predicted == ()
    assert "it promises nothing" in silent.lines[-1]
    together = {**document, "anchors": ["s"], "topology": None}
    file.write_text(json.dumps(together))
    refined = plan_for_run(file, topology, None)
    assert refined is not None
    assert not refined.segments.segments.many
    assert refined.interval == pytest.approx(max(seconds.values())), "of the least frequent one"


def test_frequencies_within_a_segment_become_multiples_of_its_checkpoints(tmp_path: Path) -> None:
    topology, file = chain(), tmp_path / "segments.json"
    document: dict[str, object] = {"anchors": ["s"], "frequency": {"s": 0.4, "a": 0.2, "b": 0.1}}
    file.write_text(json.dumps({**document, "topology": made_for(topology)}))
    plan = plan_for_run(file, topology, None)
    assert plan is not None
    assert plan.interval == pytest.approx(10)
    assert plan.segments.segments.multiples == {"s": 4, "a": 2}
    assert plan.event()["not_executed"] == []
    by_hand = plan.executed_segments({"spark.holdfast.checkpoint.seconds": "5"})
    assert by_hand.segments.multiples == {}, "what a user has set holds for all operators"
    file.write_text(json.dumps({**document, "anchors": ["s", "b"], "topology": None}))
    several = plan_for_run(file, topology, None)
    assert several is not None
    assert several.segments.segments.multiples == {"s": 2}
    assert [
        (one["segment"], one["interval_seconds"], one.get("multiples")) for one in several.segments.described()
    ] == [
        ("s", pytest.approx(5), {"s": 2}),
        ("b", pytest.approx(10), None),
    ]
    file.write_text(json.dumps({"anchors": ["s"], "frequency": {"s": 0.25, "a": 0.1, "b": 0.1}, "topology": None}))
    odd = plan_for_run(file, topology, None)
    assert odd is not None
    assert odd.segments.segments.multiples == {"s": 2}
    assert odd.event()["not_executed"] == [
        "s is planned to save 2.5 times as often as its segment's checkpoint moves, and saves 2 times"
    ]


def test_lines_of_a_start_name_multiples_and_segments_that_do_not_recover_alone() -> None:
    app = Application("noisy")
    stream = app.source("s", schema={"n": "int64"})
    for name, sure in (("a", True), ("b", False), ("c", True)):
        stream = stream.apply(
            lambda state, inputs, watermark: (state, inputs[0]),
            schema={"n": "int64"},
            state={"n": "int64"},
            id=name,
            deterministic=sure,
        )
    stream.output()
    program = Program(app)
    found = planned_segments(program.topology, ["c"], {"s": 1.0, "a": 2.0, "b": 4.0, "c": 4.0})
    assert segment_lines(found, program) == [
        "2 segments checkpoint at intervals of their own",
        "as often as their segment's checkpoint moves, operators save: a 2 times, s 4 times",
        "segments after b do not recover alone, and the plan's recovery times do not hold for them: they roll back "
        "with what is not deterministic; declare it deterministic=True where it is, or plan without anchors after it",
    ]
    one = planned_segments(program.topology, [], {"s": 1.0, "a": 1.0, "b": 1.0, "c": 2.0})
    assert segment_lines(one, program) == [
        "as often as their segment's checkpoint moves, operators save: a 2 times, s 2 times",
        "b save only when their segment's checkpoint moves: what is not deterministic, or comes after it, starts from "
        "there",
    ]
    held = with_boundaries(found.segments, program, held=True)
    assert (held.holds, found.segments.holds) == (True, False)
    *_, line = segment_lines(replace(found, segments=held), program, held=True)
    assert line == (
        "blocks of b wait for a checkpoint of their segment before they cross to another: both sides recover alone, "
        "and c are up to 4 s behind, and the time to save"
    )
    assert with_boundaries(one.segments, program, held=True) == one.segments, "there is no boundary after b"


def test_a_plan_of_backups_only_is_executed_for_its_own_topology(tmp_path: Path) -> None:
    topology, file = chain(), tmp_path / "backups.json"
    document = {"backups": ["a[0]"], "topology": made_for(topology)}
    file.write_text(json.dumps(document))
    plan = plan_for_run(file, topology, None)
    assert plan is not None
    assert plan.backups == {PartitionId(OperatorId("a"), 0)}
    assert plan.applied(Settings(), {}) == (Settings(), [])
    assert any("names no checkpoint interval: checkpoints are taken as set" in line for line in plan.lines)
    with pytest.raises(BadInput, match=r"is a plan for topology chain .* plan again for this topology"):
        plan_for_run(file, chain(last=3), None)
    file.write_text(json.dumps({"backups": ["z[0]"]}))
    with pytest.raises(BadInput, match=r"there is no partition z\[0\]"):
        plan_for_run(file, topology, None)


def test_a_plan_of_backups_takes_checkpoints_at_the_interval_that_its_times_are_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operators = [replace(one, reprocess_seconds=(2.0,) * one.parallelism) for one in chain().operators]
    profile, file = tmp_path / "profile.json", tmp_path / "backups.json"
    measured = {"checkpoint_interval_seconds": 12.0}
    profile.write_text(json.dumps(to_document(Topology("chain", operators), measured)))
    assert run_command(["plan", "backups", str(profile), "--latency", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["interval_seconds"] == 12
    file.write_text(json.dumps(document))
    plan = plan_for_run(file, chain(), None)
    assert plan is not None
    assert len(plan.lines) == 1
    assert [(one["query"], one["predicted"], one["target"]) for one in plan.predicted] == [
        ("b[0]", 3 + document["worst"], 3 + 5),
        ("b[1]", 3 + document["worst"], 3 + 5),
    ]
    assert plan.event()["predicted"] == [dict(one) for one in plan.predicted]
    query = PartitionId(OperatorId("b"), 0)
    watch = PromiseWatch({query: [query]}, plan.predicted, int(plan.document["targets"]["survive"]))
    for at, after in ((0.0, "restoring"), (1.0, "running"), (5.0, "lost"), (6.0, "running")):
        watch.emit(Observation(at, "state", {"partition": "b[0]", "after": after}))
    (promise,) = watch.emit(Observation(9.0, "published", {"partition": "b[0]", "batch": 3, "rows": 1}))
    assert promise.kind == "promise"
    assert promise.fields["kept"] is True
    changed, remarks = plan.applied(Settings(), {})
    assert (changed.checkpoint_seconds, changed.checkpoint_batches, remarks) == (12, NEVER, [])
    by_hand = {f"{PREFIX}checkpoint.seconds": "7s"}
    changed, (remark,) = plan.applied(Settings.of(by_hand), by_hand)
    assert changed.checkpoint_seconds == 7
    assert "promises may not hold: spark.holdfast.checkpoint.seconds" in remark
    file.write_text(json.dumps({**document, "backups": []}))
    late = plan_for_run(file, chain(), None)
    assert late is not None
    assert late.lines[1].startswith("the plan misses its latency of 5 s: b[0] is back after 6 s")
    file.write_text(json.dumps({**document, "interval_seconds": 0}))
    with pytest.raises(BadInput, match="0 s are no interval"):
        plan_for_run(file, chain(), None)


def test_targets_that_cannot_be_kept_end_before_a_start() -> None:
    with pytest.raises(NoPlan, match=r"recovery 5:1 .* cannot be met"):
        plan_for_run(targets(recovery={5: 1}), chain(), None, clock=clock)
    with pytest.raises(NoPlan, match="contradicts a cluster of 2 nodes"):
        plan_for_run(targets(survive=2), chain(), None, nodes=2, clock=clock)


def test_promises_that_were_measured_are_events_and_lines_like_all_others() -> None:
    lines: list[str] = []
    events: list[Observation] = []
    relay = _Relay()
    relay.join(Watch(log=lines.append), [events.append])
    query = PartitionId(OperatorId("b"), 0)
    promise = {"what": "recovery", "query": "b[0]", "predicted": 9.0, "target": 10.0}
    relay.watch(PromiseWatch({query: [query]}, [promise], survive=0))
    for at, after in ((0.0, "restoring"), (1.0, "running"), (5.0, "lost"), (6.0, "running")):
        relay.emit(Observation(at, "state", {"partition": "b[0]", "after": after}))
    relay.emit(Observation(8.0, "published", {"partition": "b[0]", "batch": 3, "rows": 1}))
    assert [(one.kind, one.fields.get("measured")) for one in events][-2:] == [("published", None), ("promise", 3.0)]
    assert lines == ["recovery of b[0]: back after 3.0 s, predicted 9 s, target 10 s: kept"]

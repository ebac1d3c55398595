"""What a start makes of a plan: from targets, a file, a profile; settings set by hand go before it. Without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput, NoPlan
from holdfast.ids import OperatorId, PartitionId
from holdfast.planning.joint.explaining import plan_document
from holdfast.planning.joint.model import JointModel
from holdfast.planning.joint.search import plan_jointly
from holdfast.planning.joint.targets import Assumptions, targets
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.profile_records import ProfileRecords
from holdfast.runtime.coordinator.promises import PromiseWatch
from holdfast.spark.planned import NEVER, plan_for_run
from holdfast.spark.settings import PREFIX, Settings
from holdfast.spark.start import Watch, _Relay
from holdfast.storage.memory import MemoryStorage
from holdfast.topology import Input, Operator, Partitioning, Topology, to_document


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
    plan = plan_for_run(targets(recovery={5: 30}, survive=1, replicas=1), chain(), None, nodes=4, clock=clock)
    assert plan is not None
    changed, remarks = plan.applied(Settings(), {})
    assert (changed.checkpoint_seconds, changed.checkpoint_batches) == (plan.interval, NEVER)
    assert 0 < changed.store_tolerate_node_loss < 1
    assert int(4 * changed.store_tolerate_node_loss) == plan.document["fragments"]["parity"]
    assert remarks == []
    assert all(one["predicted"] <= 30 for one in plan.predicted if one["what"] == "recovery")
    assert any("replicas are not executed yet: a budget of 1 is unused" in line for line in plan.lines)
    event = plan.event()
    assert event["predicted"] == [dict(one) for one in plan.predicted]
    assert json.loads(json.dumps(event)) == event
    assert plan_for_run(None, chain(), None) is None
    automatic = plan_for_run("auto", chain(), None, nodes=3, clock=clock)
    assert automatic is not None
    assert automatic.document["targets"]["overhead"] == 0.05


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


def test_a_file_is_executed_for_its_own_topology_and_segments_are_named_as_not_executed(tmp_path: Path) -> None:
    topology = chain(rate=2000.0)
    model = JointModel(topology, targets(recovery={5: 60}, survive=2, overhead=0.2), Assumptions(nodes=8))
    found = plan_jointly(model, clock=clock)
    assert found.keeps_targets
    file = tmp_path / "plan.json"
    document: dict[str, Any] = plan_document(model, found.plan)
    file.write_text(json.dumps(document))
    plan = plan_for_run(str(file), topology, None)
    assert plan is not None
    assert plan.interval == pytest.approx(min(one["interval_seconds"] for one in document["segments"]))
    if len(document["segments"]) > 1:
        assert any("segments are not executed yet" in line for line in plan.lines)
    with pytest.raises(BadInput, match=r"is a plan for topology chain .* plan again for this topology"):
        plan_for_run(file, chain(last=3), None)
    file.write_text('{"backups": []}')
    with pytest.raises(BadInput, match=r"is a plan of backups only; give it as spark\.holdfast\.retention"):
        plan_for_run(file, topology, None)
    file.write_text("no")
    with pytest.raises(BadInput, match="is not JSON"):
        plan_for_run(file, topology, None)
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        plan_for_run(tmp_path / "nothing", topology, None)
    with pytest.raises(BadInput, match="3 is not a plan"):
        plan_for_run(3, topology, None)


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

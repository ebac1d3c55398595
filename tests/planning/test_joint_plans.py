"""One joint plan from targets: the model against paths by hand, never worse than one after the other, against all."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput, NoPlan
from holdfast.ids import OperatorId
from holdfast.planning.joint.checking import missed_targets, problems_of, unsound
from holdfast.planning.joint.conflicts import only, refuse, require_room, targets_in
from holdfast.planning.joint.explaining import plan_document, read_plan
from holdfast.planning.joint.intervals import best_intervals
from holdfast.planning.joint.losing import chosen_nodes, losing
from holdfast.planning.joint.model import JointModel, JointPlan
from holdfast.planning.joint.replicas import replica_mask
from holdfast.planning.joint.search import one_after_the_other, plan_jointly, score_of
from holdfast.planning.joint.targets import Assumptions, Targets, assumptions_of, targets
from holdfast.topology import Input, Operator, Partitioning, Topology
from holdfast_lab.rivals.joint_exhaustive import plan_exhaustively
from planning.joint_cases import asked, topologies

ASSUMED = Assumptions()
FEW = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))


def clock() -> float:
    """A clock that stands still: searches end by themselves."""
    return 0.0


def chain(size: int, *, state: float = 2e8, rate: float = 20_000.0, work: float = 2e-5) -> Topology:
    operators = [Operator(OperatorId("o0"), rate=rate, tuple_seconds=1e-6, failure_rate=1e-6)]
    for number in range(1, size):
        before = (Input(OperatorId(f"o{number - 1}"), Partitioning.ONE_TO_ONE),)
        operators.append(
            Operator(
                OperatorId(f"o{number}"),
                inputs=before,
                selectivity=0.7,
                tuple_seconds=work,
                tuple_bytes=100.0,
                state_bytes=state,
                priority=5 if number == size - 1 else 1,
                failure_rate=1e-6,
            )
        )
    return Topology("chain", operators)


@settings(max_examples=30, deadline=None)
@given(topologies(), st.data())
def test_the_longest_path_is_that_of_the_definition(topology: Topology, data: st.DataObject) -> None:
    model = JointModel(topology, Targets(), ASSUMED)
    size = len(topology)
    draw = st.lists(st.booleans(), min_size=size, max_size=size)
    serves = np.array(data.draw(draw))
    anchors = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(topology.operators), max_size=len(topology.operators)))
    )
    own = st.lists(st.integers(0, 9), min_size=size, max_size=size)
    fixed, slope = np.array(data.draw(own), float), np.array(data.draw(own), float)
    length, slopes = model.longest(fixed, slope, serves, anchors | model.sources)

    def expected(v: int) -> float:
        mine = float(fixed[v] + slope[v])
        if anchors[topology.operator_of[v]]:
            return mine
        return mine + max((expected(int(u)) for u in topology.upstream(v) if not serves[u]), default=0.0)

    for v in range(size):
        assert length[v] == pytest.approx(expected(v))
        assert slopes[v] <= length[v] + 1e-9


@FEW
@given(topologies(most=4, parallelism=2), asked())
def test_the_joint_plan_is_never_worse_than_one_after_the_other_and_passes_the_checker(
    topology: Topology, wanted: Targets
) -> None:
    model = JointModel(topology, wanted, ASSUMED)
    found = plan_jointly(model, clock=clock, seconds=1.0)
    replicas = replica_mask(topology, wanted.replicas)
    before, _ = one_after_the_other(model, clock, replicas)
    if before is not None:
        assert found.score[:2] <= score_of(before, model.evaluate(before))[:2]
    problems = problems_of(model, found.plan)
    assert found.keeps_targets == (not problems), problems
    assert found.finished


@FEW
@given(topologies(most=3, parallelism=2), asked())
def test_it_is_near_the_best_of_all_structures(topology: Topology, wanted: Targets) -> None:
    model = JointModel(topology, wanted, ASSUMED)
    found, (plan, best) = plan_jointly(model, clock=clock, seconds=1.0), plan_exhaustively(model)
    assert problems_of(model, plan) == [] or best.violation > 0
    assert found.evaluation.violation <= best.violation + 1e-6
    if best.violation == 0:
        assert found.evaluation.downtime <= best.downtime * 1.02


def test_a_plan_keeps_its_targets_as_it_is_executed() -> None:
    """With nodes lost, an anchor waits for its senders: promises that leave that out are not what a run keeps."""
    model = JointModel(chain(4, state=5e7), targets(recovery={5: 60}, overhead=0.1, survive=2), ASSUMED)
    plan = plan_jointly(model, clock=clock).plan
    promises = plan_document(model, plan)["executed"]["promises"]
    assert promises == plan_document(model, plan)["promises"]
    assert all(one["predicted"] <= one["target"] for one in promises if one["what"] in ("recovery", "overhead"))


@pytest.mark.parametrize(("seconds", "overhead"), [(40.0, 0.3), (60.0, 0.2), (100.0, 0.05)])
def test_intervals_of_segments_on_one_path_are_near_the_best_of_a_grid(seconds: float, overhead: float) -> None:
    topology = chain(3, state=1e8)
    model = JointModel(topology, targets(recovery={5: seconds}, overhead=overhead, survive=2), ASSUMED)
    anchors, nothing = np.ones(3, bool), np.zeros(3, bool)
    plan, found = best_intervals(model, anchors, nothing, nothing, model.codings[0])
    grid = np.geomspace(2, 600, 30)
    every = (
        model.evaluate(JointPlan(anchors, np.array(at), nothing, nothing, plan.coding))
        for at in itertools.product(grid, repeat=3)
    )
    best = min((one.violation, one.downtime) for one in every)
    assert found.violation <= best[0] + 0.01
    if best[0] == 0:
        assert found.downtime <= best[1] * 1.02


def test_no_segment_begins_with_what_may_be_no_anchor() -> None:
    wanted = targets(overhead=0.2)
    free = plan_jointly(JointModel(chain(4, state=1e9), wanted, ASSUMED), clock=clock).plan
    assert free.anchors[1:].any()
    bound = JointModel(chain(4, state=1e9), wanted, ASSUMED, never_anchors=["o1", "o2", "o3"])
    assert not plan_jointly(bound, clock=clock).plan.anchors[1:].any()
    assert not plan_jointly(bound.asking(targets(overhead=0.3)), clock=clock).plan.anchors[1:].any()
    assert not plan_exhaustively(bound)[0].anchors[1:].any()


@FEW
@given(topologies(most=4), asked())
def test_more_losses_and_less_overhead_are_never_sooner(topology: Topology, wanted: Targets) -> None:
    model = JointModel(topology, wanted, ASSUMED)
    plan = plan_jointly(model, clock=clock, seconds=1.0).plan
    times = []
    for survive in (0, 1, 2):
        other = JointModel(topology, targets(survive=survive), ASSUMED)
        times.append(other.evaluate(plan).promised)
    assert (times[0] <= times[1] + 1e-9).all()
    assert (times[1] <= times[2] + 1e-9).all()
    more = Assumptions(nodes=8)
    crowded = JointModel(topology, targets(survive=2), more).evaluate(plan).promised
    assert (crowded >= times[2] - 1e-9).all()


def test_targets_are_met_by_intervals_and_backups_together() -> None:
    """Neither alone reaches it: at the interval that the overhead allows, no set of backups is fast enough."""
    topology = chain(4, state=1e6)
    wanted = targets(recovery={5: "15 seconds"}, overhead=0.1)
    model = JointModel(topology, wanted, ASSUMED)
    found = plan_jointly(model, clock=clock)
    assert problems_of(model, found.plan) == []
    assert found.evaluation.promised.max() <= 15
    assert found.evaluation.overhead <= 0.1
    assert found.plan.backups.any()
    slow = JointPlan(model.sources, np.full(4, 600.0), np.zeros(4, bool), np.zeros(4, bool), found.plan.coding)
    assert any("is back after" in one for one in problems_of(model, slow))
    assert model.evaluate(slow).downtime > found.evaluation.downtime


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"anchors": [False, True, True]}, "source o0 is not an anchor"),
        ({"interval": [5.0, 9.0, 5.0]}, "o0 and o1 are in one segment and checkpoint at different intervals"),
        ({"interval": [0.1, 0.1, 0.1]}, "checkpoints every 0.1 s, outside of the limits"),
        ({"coding": Coding(20, 2)}, "needs 22 peers, there are 8"),
        ({"coding": Coding(7, 1)}, "does not survive the loss of 2 nodes"),
        ({"replicas": [True, False, False]}, "more replicas than the budget"),
        ({"interval": [600.0] * 3}, r"o2\[0\] is back after"),
        ({"interval": [1.0] * 3}, "is above the allowed 0.05"),
    ],
)
def test_the_checker_names_what_is_wrong(change: dict[str, object], said: str) -> None:
    model = JointModel(chain(3), targets(recovery={5: 300}, survive=2), ASSUMED)
    found = plan_jointly(model, clock=clock).plan
    assert problems_of(model, found) == []
    values = {
        "anchors": found.anchors,
        "interval": found.interval,
        "backups": found.backups,
        "replicas": found.replicas,
        "coding": found.coding,
    }
    if "interval" in change:
        values["anchors"] = model.sources
    values |= {name: np.array(value) if isinstance(value, list) else value for name, value in change.items()}
    plan = JointPlan(**values)  # type: ignore[arg-type]
    problems = problems_of(model, plan)
    assert any(re.search(said, one) for one in problems), problems
    assert problems == unsound(model, plan) + missed_targets(model, model.evaluate(plan))


def test_contradicting_targets_are_named_and_no_more_of_them() -> None:
    topology = chain(4)
    wanted = targets(recovery={5: 12, 1: 1000}, overhead=0.01, survive=1)
    assert not plan_jointly(JointModel(topology, wanted, ASSUMED), clock=clock).keeps_targets
    error = refuse(JointModel(topology, wanted, ASSUMED), clock)
    assert isinstance(error, NoPlan)
    named = [one for one in targets_in(wanted) if one.words in str(error)]
    assert named
    assert "recovery 1:1000" not in str(error), "that one is easy"
    assert not plan_jointly(JointModel(topology, only(wanted, named), ASSUMED), clock=clock).keeps_targets
    for left_out in named:
        rest = only(wanted, [one for one in named if one is not left_out])
        assert plan_jointly(JointModel(topology, rest, ASSUMED), clock=clock).keeps_targets, left_out
    assert "least overhead found that keeps the rest is" in str(error)
    alone = refuse(JointModel(topology, targets(recovery={5: 2}), ASSUMED), clock)
    assert "recovery 5:2 (priority 5 and above back in 2 s) cannot be met: " in str(alone)


def test_nodes_that_are_left_must_carry_what_has_a_target() -> None:
    topology = chain(3)
    two = Assumptions(nodes=2, cores=1.0)
    with pytest.raises(NoPlan, match="survive 2 contradicts a cluster of 2 nodes"):
        require_room(topology, targets(survive=2), two)
    with pytest.raises(
        NoPlan, match=r"recovery 5:20 and survive 1 contradict each other: .* need 3 cores, and 1 nodes"
    ):
        require_room(topology, targets(recovery={5: 20}, survive=1), two)
    require_room(topology, targets(survive=1), two)
    require_room(topology, targets(recovery={5: 20}, survive=1), Assumptions(nodes=2, cores=4.0))


def test_replicas_go_first_to_what_is_late_whatever_is_kept() -> None:
    slow = chain(3, state=5e9)  # 100 s to restore
    wanted = targets(recovery={5: 30}, replicas=3, overhead=1.0)
    model = JointModel(slow, wanted, Assumptions(greatest_interval=5000.0, bandwidth=1e9))
    found = plan_jointly(model, clock=clock)
    assert found.keeps_targets, problems_of(model, found.plan)
    assert set(np.flatnonzero(found.plan.replicas).tolist()) >= {1, 2}
    none = JointModel(slow, targets(recovery={5: 30}, overhead=1.0), Assumptions(bandwidth=1e9))
    assert not plan_jointly(none, clock=clock).keeps_targets


@FEW
@given(topologies(most=4), asked())
def test_a_document_reads_back_and_is_refused_for_another_topology(topology: Topology, wanted: Targets) -> None:
    model = JointModel(topology, wanted, Assumptions(nodes=5).given(bandwidth=3e7))
    plan = plan_jointly(model, clock=clock, seconds=1.0).plan
    document = plan_document(model, plan)
    again, read, _ = read_plan(document, "plan.json")
    assert again.targets.document() == wanted.document()
    assert again.assumed == model.assumed
    assert again.evaluate(read).downtime == pytest.approx(model.evaluate(plan).downtime, rel=1e-4)
    assert document["explanation"]
    assert document["cannot_promise"]
    other = Topology("other", [*topology.operators, Operator(OperatorId("more"))])
    with pytest.raises(BadInput, match=r"plan.json: is a plan for topology drawn .* this is other"):
        read_plan(document, "plan.json", other)
    for broken in (None, {}, {"plan": 1}, {**document, "segments": []}, {**document, "backups": ["nobody[0]"]}):
        with pytest.raises(BadInput, match=r"plan\.json"):
            read_plan(broken, "plan.json")


def test_losing_nodes_says_what_is_down_for_how_long_and_what_waits() -> None:
    topology = chain(3)
    model = JointModel(topology, Targets(), Assumptions(nodes=3, cores=2.0))
    plan = plan_jointly(model, clock=clock).plan
    placement = {"o0[0]": "a", "o1[0]": "b", "o2[0]": "c"}
    assert chosen_nodes(model, placement, "c") == ("c",)
    every = JointPlan(np.ones(3, bool), plan.interval, plan.backups & False, plan.replicas, plan.coding)
    roomy = JointModel(topology, Targets(), Assumptions(nodes=3))
    alone, both = (losing(roomy, every, placement, lost)["down"][0] for lost in (["c"], ["b", "c"]))
    assert both["seconds"] > 1.5 * alone["seconds"], "an anchor waits for a sender that is lost with it"
    (found,) = losing(model, plan, placement, ["c"])["down"]
    assert (found["query"], found["priority"], found["waits_for_nodes"]) == ("o2[0]", 5, False)
    assert found["seconds"] > 3
    assert losing(model, plan, placement, ["a"])["fidelity"] == 0
    all_gone = losing(model, plan, placement, chosen_nodes(model, placement, "3"))
    assert all(one["waits_for_nodes"] and one["seconds"] is None for one in all_gone["down"])
    full = JointModel(topology, Targets(), Assumptions(nodes=3, cores=1.0))
    assert losing(full, plan, placement, ["c"])["down"][0]["waits_for_nodes"], "two nodes have 1.6, three are needed"
    with pytest.raises(BadInput, match="there is no node 'x'"):
        chosen_nodes(model, placement, "x")
    with pytest.raises(BadInput, match="4 of 3 nodes"):
        chosen_nodes(model, placement, "4")


def test_targets_are_read_strictly() -> None:
    wanted = targets(recovery={5: "20 seconds", 1: 60}, overhead=0.1, survive=2, replicas=0.2)
    assert wanted.recovery == ((1, 60.0), (5, 20.0))
    assert [wanted.seconds_for(priority) for priority in (1, 4, 5, 9)] == [60, 60, 20, 20]
    assert math.isinf(Targets().seconds_for(5))
    assert [wanted.replicas.count_for(chain(size)) for size in (4, 10)] == [0, 2]
    assert targets(replicas=3).replicas.count_for(chain(10)) == 3
    bad: list[dict[str, object]] = [
        {"recovery": {0: 5}},
        {"recovery": {5: "soon"}},
        {"recovery": {5: -1}},
        {"overhead": 0},
        {"overhead": 2},
        {"survive": -1},
        {"replicas": 1.5},
        {"replicas": 3.0},
        {"replicas": -1},
        {"replicas": True},
        {"replicas": "some"},
        {"replicas": float("nan")},
    ]
    for one in bad:
        with pytest.raises(BadInput):
            targets(**one)  # type: ignore[arg-type]


def test_assumptions_are_measured_given_or_assumed() -> None:
    measured = {"restore_bandwidth": 1e7, "checkpoint_interval_seconds": 12.0, "nodes": {"a": 2.0, "b": 4.0}}
    found = assumptions_of(measured).given(bandwidth=1e6, nodes=None)
    assert (found.restore_bandwidth, found.nodes, found.cores, found.bandwidth) == (1e7, 2, 2.0, 1e6)
    said = found.document()
    kinds = {name: said[name]["from"] for name in ("restore_bandwidth", "bandwidth", "fixed_seconds")}
    assert kinds == {"restore_bandwidth": "measured", "bandwidth": "given", "fixed_seconds": "assumed"}
    assert Assumptions.read(said) == found
    with pytest.raises(BadInput, match=r"measured\.restore_bandwidth: must be a number"):
        assumptions_of({"restore_bandwidth": "fast"})
    with pytest.raises(BadInput, match="fixed-seconds"):
        found.given(fixed_seconds=-1)


def test_a_restore_is_charged_once_and_detection_stays_an_assumption() -> None:
    topology = Topology("t", [Operator(OperatorId("s"), state_bytes=4e8)])
    plan = JointPlan(np.ones(1, bool), np.array([2.0]), np.zeros(1, bool), np.zeros(1, bool), Coding(1, 0))
    measured = {"restore_bandwidth": 1e8, "restore_seconds": 4.0}
    model = JointModel(topology, Targets(), assumptions_of(measured))
    assert model.evaluate(plan).alone[0] == pytest.approx(3 + 4, abs=0.01), "4e8 bytes at 1e8 bytes/s"
    assert any("fixed seconds 3" in one for one in plan_document(model, plan)["cannot_promise"])
    small = assumptions_of({"restore_seconds": 0.25})  # small states: no bandwidth follows from them
    assert small.fixed_seconds == 3.25
    assert small.document()["fixed_seconds"]["from"] == "assumed"


def test_measured_t_scales_with_the_interval() -> None:
    topology = Topology("t", [Operator(OperatorId("s"), reprocess_seconds=2.0)])
    plan = JointPlan(np.ones(1, bool), np.array([40.0]), np.zeros(1, bool), np.zeros(1, bool), Coding(6, 2))
    fixed = JointModel(topology, Targets(), ASSUMED).evaluate(plan).alone[0]
    assert fixed == pytest.approx(3 + 2, abs=0.01), "a declared T(v) holds for any interval"
    scaled = JointModel(topology, Targets(), Assumptions(base_interval=10.0)).evaluate(plan).alone[0]
    assert scaled == pytest.approx(3 + 16, abs=0.01), "2 s were half of 10 s: 40 s take 16"


def test_every_structure_of_a_large_topology_is_too_many() -> None:
    with pytest.raises(Exception, match="too many structures"):
        plan_exhaustively(JointModel(chain(9), Targets(), ASSUMED))


def test_a_topology_whose_source_is_idle_has_a_plan() -> None:
    """A run without rows measures a rate of 0; it is planned all the same, with as many segments as help."""
    source = Operator(OperatorId("s"), rate=0.0, state_bytes=1e6, failure_rate=1e-6)
    after = Operator(
        OperatorId("a"), inputs=(Input(OperatorId("s"), Partitioning.FULL),), state_bytes=1e6, failure_rate=1e-6
    )
    model = JointModel(Topology("idle", [source, after]), targets(overhead=0.05), Assumptions())
    found = plan_jointly(model, clock=lambda: 0.0)
    assert found.keeps_targets
    assert not problems_of(model, found.plan)

"""Random topologies under random segment plans: what the planner's oracle accepts is what a run executes, to the row.

Each seed draws an application (one or two sources, up to six operators, joins, several partitions), costs, a plan that
an algorithm chose or that the oracle accepts, and losses of partitions and nodes. The plan goes the way of a file.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.sizes import share

from holdfast import Application
from holdfast.cli.plan_segments import describe
from holdfast.errors import NoPlan
from holdfast.ids import NodeId
from holdfast.planning.segments.algorithms import Algorithm, plan_segments
from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import SegmentModel, SegmentPlan, check_plan, model_of, plan_of, segments_of
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import InProcess
from holdfast.spark.planned_segments import PlannedSegments, read_segments
from holdfast.topology import Topology, made_for

SCHEMA = {"key": "int64", "value": "int64"}
BATCHES = 30
SEEDS = [98, 305, 0, 8, 1, 2, 5, 9, 11, 13, 16, 17, 21, 22, 25, 30]
"""The first two save 2 and 3 times as often as the least common frequency: neither is a multiple of the other."""


def running_sums(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    held = dict(zip(state["key"].to_pylist(), state["value"].to_pylist(), strict=True))
    keys, values = [], []
    for table in inputs:
        for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            held[key] = held.get(key, 0) + value
            keys.append(key)
            values.append(held[key] % 1000)

    def as_table(one: list[int], other: list[int]) -> pa.Table:
        return pa.table({"key": pa.array(one, pa.int64()), "value": pa.array(other, pa.int64())})

    return as_table(list(held), list(held.values())), as_table(keys, values)


def application(seed: int) -> Application:
    draw = random.Random(seed)
    app = Application(f"drawn-{seed}")
    sources = [f"s{number}" for number in range(draw.randint(1, 2))]
    made = {name: app.source(name, schema=SCHEMA, parallelism=draw.randint(1, 2)) for name in sources}
    fed: set[str] = set()
    count = draw.randint(2, 6)
    for number in range(count):
        feeds = draw.sample(list(made), min(len(made), draw.choice([1, 1, 1, 2, 2])))
        if number == count - 1:
            feeds += [one for one in sources if one not in fed and one not in feeds]
        first, *others = (made[one].key_by("key") for one in feeds)
        fed.update(feeds)
        made[f"o{number}"] = first.apply(
            running_sums, *others, schema=SCHEMA, state=SCHEMA, id=f"o{number}", parallelism=draw.randint(1, 3)
        )
    for name, stream in made.items():
        if name not in fed or (name not in sources and draw.random() < 0.2):
            stream.output(name)
    return app


def drawn_plan(draw: random.Random, topology: Topology) -> tuple[SegmentModel, SegmentPlan] | None:
    """Draw costs, and a plan that the oracle accepts; None: what was drawn allows none."""
    model = model_of(topology, draw.choice([1e6, 1e7]), batches_per_second=draw.choice([0.0, 2.0]))
    if draw.random() < 0.4:
        anchors = model.sources | np.array([draw.random() < 0.5 for _ in model.names])
        number = segments_of(model, anchors[None, :])[0]
        every = {int(one): draw.uniform(3, 12) for one in sorted(set(number.tolist()))}
        if draw.random() < 0.5:
            return model, plan_of(model, anchors, np.array([1 / every[int(one)] for one in number]))
        return model, relaxed_plan(draw, model, anchors)
    overhead = float(model.input_seconds[model.sources].sum()) + draw.choice([0.05, 0.4, 2.0])
    algorithm = draw.choice([Algorithm.AUTO, Algorithm.ONE_SEGMENT, Algorithm.N_SEGMENTS])
    grid, refined = FrequencyGrid(60, max_frequency=1 / 3), draw.random() < 0.5
    try:
        plan = plan_segments(model, overhead, algorithm=algorithm, grid=grid, refined=refined)
    except NoPlan:
        return None
    check_plan(model, plan, overhead, 1 / 3)
    return model, plan


def relaxed_plan(draw: random.Random, model: SegmentModel, anchors: np.ndarray) -> SegmentPlan:
    """Draw frequencies that are whole multiples of those of each operator's consumers in its segment (RSRFS)."""
    factor = [1] * len(model)
    for number in reversed(model.order):
        inside = [one for one in model.consumers[number] if not anchors[one]]
        factor[number] = math.lcm(*(factor[one] for one in inside)) * draw.choice([1, 1, 2, 3])
    plan = plan_of(model, anchors, np.array(factor) / 30.0, relaxed=True)
    check_plan(model, plan, math.inf, math.inf)
    return plan


def with_costs(draw: random.Random, topology: Topology) -> Topology:
    return Topology(
        topology.name,
        [
            replace(
                one,
                state_bytes=draw.choice([0.0, 1e4, 1e6, 1e7]),
                failure_rate=draw.choice([1e-6, 1e-4]),
                tuple_seconds=draw.choice([1e-4, 1e-2]),
                tuple_bytes=draw.choice([10.0, 1000.0]),
                **({"rate": draw.choice([10.0, 1000.0])} if one.is_source else {}),
            )
            for one in topology.operators
        ],
    )


def is_executed(planned: PlannedSegments, document: dict, topology: Topology) -> None:
    """Check that segments, intervals and multiples are those of the plan."""
    groups: dict[str, list[str]] = {}
    for operator, segment in planned.segments.operators.items():
        groups.setdefault(segment, []).append(str(operator))
    assert sorted(map(sorted, groups.values())) == sorted(map(sorted, document["segments"]))
    seconds = {one.segment: one.seconds for one in planned.intervals}
    assert not planned.lines, "nothing is executed otherwise than planned"
    for operator, segment in planned.segments.operators.items():
        whole = seconds[segment] if planned.segments.many else planned.shortest
        saves = planned.segments.multiples.get(operator, 1) / whole
        assert saves == pytest.approx(document["frequency"][str(operator)], rel=1e-6), operator


@pytest.mark.parametrize("seed", SEEDS[: share(len(SEEDS))])
def test_a_plan_that_the_oracle_accepts_is_executed_as_it_is(seed: int) -> None:
    draw = random.Random(seed * 7 + 3)
    topology = application(seed).topology()
    found = drawn_plan(draw, with_costs(draw, topology))
    while found is None:
        found = drawn_plan(draw, with_costs(draw, topology))
    document = json.loads(json.dumps(describe(*found) | {"topology": made_for(topology)}))
    planned = read_segments(document, topology, "plan.json")
    is_executed(planned, document, topology)

    rows = np.random.default_rng(seed)
    sources = [str(one.id) for one in topology.operators if one.is_source]
    given = [
        {
            name: pa.table({"key": rows.integers(0, 20, size), "value": rows.integers(1, 9, size)})
            for name in sources
            for size in [int(rows.integers(0, 12))]
        }
        for _ in range(BATCHES)
    ]
    plain = InProcess(application(seed))
    backups = frozenset(p for p in plain.placement if draw.random() < 0.2)
    run = InProcess(
        application(seed),
        nodes=3,
        checkpoint_every=max(1, round(min(BATCHES / 2, planned.shortest))),
        intervals={str(one.segment): max(1, round(min(BATCHES / 2, one.seconds))) for one in planned.intervals},
        recovery=RecoverySettings(segments=planned.segments, backup_partitions=backups),
    )
    for number, batch in enumerate(given):
        plain.feed(batch)
        run.feed(batch)
        match draw.choice(["partitions", "node", *["nothing"] * 8]):
            case "partitions":
                run.fail(*draw.sample(sorted(run.placement), min(len(run.placement), draw.randint(1, 3))))
                run.recover()
            case "node":
                run._backend.lose_nodes(draw.choice(sorted(run._backend.nodes)))
                run._backend.add_nodes({NodeId(f"new-{number}"): float("inf")})
                run.run()
    assert run.checkpoint_batch >= 0, "checkpoints were taken"
    for name in application(seed).output_names().values():
        assert run.rows(name).equals(plain.rows(name)), name

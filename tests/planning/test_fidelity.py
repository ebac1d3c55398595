"""Fidelity and completeness: the paper's figures, eq. 1-4 computed edge by edge, and what must always hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import OperatorId
from holdfast.planning.replicas.fidelity import LossModel, Metric, completeness, fidelity, working
from holdfast.planning.replicas.fidelity_gradient import entangled, slopes, values_if_one_fails
from holdfast.topology import Input, Operator, Partitioning, Topology, rates_of
from holdfast_lab.rivals.fidelity_incremental import IncrementalFidelity
from topology.topology_strategies import topologies

FULL, MERGE, SPLIT, ONE = Partitioning.FULL, Partitioning.MERGE, Partitioning.SPLIT, Partitioning.ONE_TO_ONE
METRICS = st.sampled_from(list(Metric))


def op(name: str, size: int = 1, *inputs: tuple[str, Partitioning], **values: object) -> Operator:
    feeds = tuple(Input(OperatorId(source), kind) for source, kind in inputs)
    return Operator(OperatorId(name), size, feeds, **values)  # type: ignore[arg-type]


def figure_2(*, joins: bool) -> Topology:
    return Topology(
        "figure-2",
        [
            op("O1", 2, rate=3, weights=(1, 2)),
            op("O2", 2, rate=5, weights=(3, 2)),
            op("O3", 1, ("O1", FULL), ("O2", FULL), joins=joins),
        ],
    )


@st.composite
def silenced(draw: st.DrawFn) -> Topology:
    """A topology of which some operators emit nothing and some partitions receive nothing."""
    topology = draw(topologies(most_operators=5, most_partitions=4))
    operators = []
    for operator in topology.operators:
        one = operator
        if draw(st.booleans()):
            one = replace(one, selectivity=0.0)
        if one.is_source and draw(st.booleans()):
            one = replace(one, rate=0.0)
        operators.append(one)
    return Topology("silenced", operators)


ANY = st.one_of(topologies(), silenced())


@st.composite
def failures(draw: st.DrawFn) -> tuple[Topology, np.ndarray]:
    topology = draw(ANY)
    alive = draw(st.lists(st.booleans(), min_size=len(topology), max_size=len(topology)))
    return topology, np.array(alive, bool)


def plainly(topology: Topology, alive: np.ndarray, metric: Metric) -> float:
    """Equations 1-4 as printed, loss by loss and edge by edge."""
    rates = rates_of(topology)

    def mean(losses: list[float], weights: list[float]) -> float:
        if sum(weights) <= 0:
            weights = [1.0] * len(losses)
        return sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / sum(weights)

    loss = [0.0] * len(topology)
    for partitions in topology.partitions_by_level:
        for p in partitions.tolist():
            if not alive[p]:
                loss[p] = 1.0
                continue
            streams = range(int(topology.stream_start[p]), int(topology.stream_start[p + 1]))
            if not streams:
                continue
            losses, weights = [], []
            for s in streams:
                upstream = topology.edge_from[topology.edge_start[s] : topology.edge_start[s + 1]].tolist()
                # The rate of a substream is its part of the upstream output; the part is the same for all of them.
                losses.append(mean([loss[u] for u in upstream], [float(rates.output[u]) for u in upstream]))
                weights.append(float(rates.stream[s]))
            if topology.joins[p] and metric is Metric.FIDELITY:
                loss[p] = 1.0 - float(np.prod([1.0 - one for one in losses]))
            else:
                loss[p] = mean(losses, weights)
    if metric is Metric.FIDELITY:
        heads = topology.outputs.tolist()
        return 1.0 - mean([loss[p] for p in heads], [float(rates.output[p]) for p in heads])
    return 1.0 - mean(loss, rates.input.tolist())


def test_figure_2_loses_two_fifths_when_joined_and_a_quarter_when_united() -> None:
    assert 1 - fidelity(figure_2(joins=True), [3]) == pytest.approx(2 / 5, abs=1e-12)
    assert 1 - fidelity(figure_2(joins=False), [3]) == pytest.approx(1 / 4, abs=1e-12)


def test_completeness_takes_joins_as_unions_and_counts_every_input() -> None:
    # Inputs: 1 2 3 2 at the sources and 8 at O3. Without t22, 6 of 8 source tuples are taken in, and 6 of 8 joined.
    assert completeness(figure_2(joins=True), [3]) == pytest.approx(12 / 16)


@given(failures(), METRICS)
def test_the_sweep_is_the_equations(given: tuple[Topology, np.ndarray], metric: Metric) -> None:
    topology, alive = given
    assert LossModel(topology, metric).value(alive) == pytest.approx(plainly(topology, alive, metric), abs=1e-9)


@given(ANY, METRICS)
def test_nothing_failed_is_one_and_every_source_failed_is_zero(topology: Topology, metric: Metric) -> None:
    model = LossModel(topology, metric)
    assert model.value(np.ones(len(topology), bool)) == 1.0
    assert model.value(~topology.is_source) == 0.0


@given(failures(), METRICS, st.data())
def test_it_never_rises_when_anything_more_fails(
    given: tuple[Topology, np.ndarray], metric: Metric, data: st.DataObject
) -> None:
    topology, alive = given
    fewer = alive & np.array(data.draw(st.lists(st.booleans(), min_size=len(topology), max_size=len(topology))))
    model = LossModel(topology, metric)
    assert model.value(fewer) <= model.value(alive) + 1e-12


@given(ANY, METRICS, st.integers(0, 2**32 - 1))
def test_many_sets_at_once_are_each_alone(topology: Topology, metric: Metric, seed: int) -> None:
    sets = np.random.default_rng(seed).random((7, len(topology))) < 0.8
    model = LossModel(topology, metric)
    assert model.values(sets).tolist() == pytest.approx([model.value(one) for one in sets], abs=1e-12)


@given(ANY, METRICS, st.integers(0, 2**32 - 1))
def test_incremental_changes_agree_with_a_fresh_sweep(topology: Topology, metric: Metric, seed: int) -> None:
    random = np.random.default_rng(seed)
    model = LossModel(topology, metric)
    now = IncrementalFidelity(model)
    # Small topologies are swept whole: make it look for what changes, as large ones do.
    now._sweep_is_cheaper = [False] * len(now._sweep_is_cheaper)
    for _ in range(12):
        partition = int(random.integers(len(topology)))
        value = now.restore(partition) if random.random() < 0.5 else now.fail(partition)
        assert value == pytest.approx(model.value(now.alive), abs=1e-12)
        assert now.kept == pytest.approx(model.sweep(now.alive)[0], abs=1e-12)


@pytest.mark.parametrize("kind", [FULL, ONE])
def test_a_change_that_spreads_widely_is_swept_from_there(kind: Partitioning) -> None:
    wide = Topology("wide", [op("a", 60), op("b", 60, ("a", kind)), op("c", 30, ("b", MERGE)), op("d", 1, ("c", FULL))])
    model = LossModel(wide)
    now = IncrementalFidelity(model)
    now._sweep_is_cheaper = [False] * len(now._sweep_is_cheaper)
    for partition in (0, 61, 125, 0, 3):
        assert now.fail(partition) == pytest.approx(model.value(now.alive), abs=1e-12)
    assert now.change([0, 61, 125, 3], works=True) == 1.0


@given(failures(), METRICS)
def test_slopes_give_what_one_more_partition_brings(given: tuple[Topology, np.ndarray], metric: Metric) -> None:
    topology, alive = given
    model = LossModel(topology, metric)
    _, brought, group_kept = model.sweep(alive)
    slope = slopes(model, alive, group_kept)
    with_itself = set(entangled(model).tolist())
    for p in range(len(topology)):
        if p in with_itself:
            continue
        on, off = alive.copy(), alive.copy()
        on[p], off[p] = True, False
        difference = plainly(topology, on, metric) - plainly(topology, off, metric)
        assert slope[p] * brought[p] == pytest.approx(difference, abs=1e-9)


@given(ANY, METRICS)
def test_single_failures_at_once_are_each_alone(topology: Topology, metric: Metric) -> None:
    model = LossModel(topology, metric)
    one_by_one = [model.value(working(topology, [p])) for p in range(len(topology))]
    assert values_if_one_fails(model).tolist() == pytest.approx(one_by_one, abs=1e-9)


def test_a_partition_that_meets_itself_in_a_join_is_not_taken_for_a_straight_line() -> None:
    twice = Topology(
        "twice",
        [op("s", 2), op("a", 2, ("s", ONE)), op("b", 2, ("s", ONE)), op("j", 1, ("a", FULL), ("b", FULL), joins=True)],
    )
    model = LossModel(twice)
    assert twice.partitions(entangled(model).tolist()) == twice.partitions([0, 1])
    assert values_if_one_fails(model)[0] == pytest.approx(1 / 4)


def test_ten_thousand_partitions_and_a_million_task_edges() -> None:
    operators = [op("s", 1000)]
    for number in range(1, 10):
        feed = operators[-1].id
        operators.append(op(f"o{number}", 1000, (feed, FULL if number == 4 else ONE)))
    big = Topology("big", operators)
    assert big.task_edges > 1_000_000
    now = IncrementalFidelity(LossModel(big))
    assert now.fail(3) == pytest.approx(0.999)
    assert now.fail(9_003) == pytest.approx(0.999 * 0.999)
    assert now.restore(3) == pytest.approx(0.999)

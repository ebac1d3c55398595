"""The failure effect model and its checker, against eq. 3 written out, and the shapes' own algorithms."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput, NoPlan, Undecided
from holdfast.ids import OperatorId
from holdfast.planning.backups.exhaustive import exhaustive_backups
from holdfast.planning.backups.line_tree import line_backups, tree_backups
from holdfast.planning.backups.model import (
    BackupProblem,
    check_backups,
    reprocess_times,
    require_feasible,
    young_interval,
)
from holdfast.topology import Input, Operator, Partitioning, Topology
from holdfast_lab.topologies import named_topology
from sizes import share
from topology.topology_strategies import topologies


def line(*times: float, domains: tuple[str, ...] | None = None) -> Topology:
    return Topology(
        "line",
        [
            Operator(
                OperatorId(f"v{step}"),
                1,
                (Input(OperatorId(f"v{step - 1}"), Partitioning.ONE_TO_ONE),) if step else (),
                reprocess_seconds=time,
                domain=domains[step] if domains else None,
            )
            for step, time in enumerate(times)
        ],
    )


def by_recursion(problem: BackupProblem, backups: set[int], failed: int) -> int:
    """Eq. 3 as printed, with the domain of the failed partition lost."""
    topology = problem.topology
    lost = problem.domain_of[failed]

    @cache
    def latency(v: int) -> int:
        waits = [0]
        for u in topology.upstream(v).tolist():
            kept = u in backups and not (lost >= 0 and problem.domain_of[u] == lost)
            waits.append(0 if kept else latency(u))
        return int(problem.ticks[v]) + max(waits)

    return latency(failed)


def test_latencies_of_a_line_by_hand() -> None:
    problem = BackupProblem(line(1, 2, 3, 4), 7)
    none = problem.mask([])
    assert problem.in_seconds(problem.latencies(none)).tolist() == [1, 3, 6, 10]
    assert problem.in_seconds(problem.latencies(problem.mask([1]))).tolist() == [1, 3, 3, 7]
    assert check_backups(problem, problem.mask([1])).meets
    late = check_backups(problem, none)
    assert not late.meets
    assert late.late.tolist() == [3]
    assert late.worst == 10


def test_a_backup_in_the_failed_domain_is_lost() -> None:
    problem = BackupProblem(line(1, 1, 1, 1, domains=("a", "b", "b", "c")), 3)
    # v2 fails with v1: the backup at v1 is gone, v1 must reprocess, and v0 before it unless that keeps one.
    assert problem.in_seconds(problem.guaranteed(problem.mask([1]))).tolist() == [1, 2, 3, 2]
    assert problem.in_seconds(problem.guaranteed(problem.mask([0]))).tolist() == [1, 1, 2, 3]


@given(topologies(), st.floats(0, 30), st.randoms(use_true_random=False))
@settings(max_examples=share(150), deadline=None, derandomize=True)
def test_guaranteed_latencies_are_eq_3_for_every_failure(topology: Topology, latency: float, random: object) -> None:
    problem = BackupProblem(topology, latency)
    backups = {v for v in range(len(problem)) if random.random() < 0.4}  # type: ignore[attr-defined]
    found = problem.guaranteed(problem.mask(sorted(backups)))
    assert found.tolist() == [by_recursion(problem, backups, v) for v in range(len(problem))]


@pytest.mark.parametrize("latency", [5e-324, 2.2250738585072014e-308, 1e-295])
def test_a_latency_that_is_hardly_a_number_is_none(latency: float) -> None:
    assert not check_backups(BackupProblem(line(1.0), latency), np.zeros(1, bool)).meets
    assert check_backups(BackupProblem(line(0.0), latency), np.zeros(1, bool)).meets


def test_decimal_times_add_up() -> None:
    assert check_backups(BackupProblem(line(0.1, 0.2), 0.3), np.zeros(2, bool)).meets
    assert check_backups(BackupProblem(line(*[0.1] * 10), 1.0), np.zeros(10, bool)).meets
    assert not check_backups(BackupProblem(line(0.1, 0.2), 0.29999), np.zeros(2, bool)).meets


@pytest.mark.parametrize("scale", [1e-15, 1e-3, 1.0, 1e6, 1e15])
def test_any_unit_of_time_gives_the_same_plan(scale: float) -> None:
    problem = BackupProblem(line(*[scale * t for t in (3, 1, 4, 1, 5, 2, 6)]), 8 * scale)
    assert np.flatnonzero(line_backups(problem)).tolist() == [2, 5]


def test_no_plan_names_the_partition_that_alone_takes_longer() -> None:
    with pytest.raises(NoPlan, match=r"v2\[0\] alone takes 9 s") as met:
        require_feasible(BackupProblem(line(1, 2, 9, 1), 8))
    assert met.value.status == 3
    require_feasible(BackupProblem(line(1, 2, 9, 1), 9))


def test_no_plan_names_the_domain_whose_backups_are_lost() -> None:
    together = line(4, 4, 4, domains=("a", "a", "b"))
    with pytest.raises(NoPlan, match=r"v1\[0\] takes 8 s when domain a fails"):
        require_feasible(BackupProblem(together, 7))
    require_feasible(BackupProblem(together, 8))


@pytest.mark.parametrize("latency", [-1.0, math.nan, math.inf, 1e300])
def test_latencies_that_cannot_be_are_refused(latency: float) -> None:
    with pytest.raises(BadInput):
        BackupProblem(line(1), latency)


@pytest.mark.parametrize("latency", [0.0, 5e-324, 1e-300])
def test_a_latency_of_zero_is_met_by_partitions_that_take_no_time(latency: float) -> None:
    problem = BackupProblem(line(0, 0, 0), latency)
    assert check_backups(problem, problem.mask([])).meets
    with pytest.raises(NoPlan):
        require_feasible(BackupProblem(line(0, 1), latency))


def test_half_of_youngs_interval_where_the_topology_gives_no_time() -> None:
    assert young_interval(2.0, 0.01) == pytest.approx(20.0)
    inputs = (Input(OperatorId("a"), Partitioning.ONE_TO_ONE),)
    topology = Topology(
        "young",
        [
            Operator(OperatorId("a"), 2, failure_rate=0.01),
            Operator(OperatorId("b"), 2, inputs, failure_rate=0.01, reprocess_seconds=1.0),
            Operator(OperatorId("c"), 2, (Input(OperatorId("b"), Partitioning.ONE_TO_ONE),)),
        ],
    )
    assert reprocess_times(topology, 2.0).tolist() == [10, 10, 1, 1, 1, 1]
    assert reprocess_times(topology).tolist() == [1] * 6
    with pytest.raises(BadInput):
        reprocess_times(topology, 0.0)


def test_the_paper_s_example_of_lines() -> None:
    """FTC, Fig. 3: 16 tasks in lines, T = 1, R = 2: every second task of a line keeps a backup."""
    problem = BackupProblem(named_topology("lines"), 2)
    assert line_backups(problem).sum() == 6
    assert (line_backups(problem) == tree_backups(problem)).all()


def test_shapes_are_refused_where_they_do_not_fit() -> None:
    with pytest.raises(BadInput, match="not made of lines"):
        line_backups(BackupProblem(named_topology("tree"), 3))
    with pytest.raises(BadInput, match="not a tree"):
        tree_backups(BackupProblem(named_topology("signal-guru"), 3))


def test_exhaustive_takes_up_to_25_partitions() -> None:
    assert exhaustive_backups(BackupProblem(line(*[1] * 25), 20)).sum() == 1
    with pytest.raises(Undecided) as met:
        exhaustive_backups(BackupProblem(line(*[1] * 26), 20))
    assert met.value.status == 4

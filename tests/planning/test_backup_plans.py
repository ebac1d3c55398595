"""Backup plans against each other, against brute force, and against eq. 3 and 5 given to CP-SAT as they are printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from ortools.sat.python import cp_model

from holdfast.errors import BadInput
from holdfast.planning.backups.algorithms import BackupAlgorithm, plan_backups
from holdfast.planning.backups.dag import dag_backups
from holdfast.planning.backups.domains import repaired
from holdfast.planning.backups.exact import exact_backups, quick_bound
from holdfast.planning.backups.exhaustive import exhaustive_backups
from holdfast.planning.backups.line_tree import line_backups, tree_backups
from holdfast.planning.backups.model import BackupProblem, Mask, check_backups, require_feasible
from holdfast.planning.backups.replan import carried_over
from holdfast.planning.backups.share import resource_shares, share_backups
from holdfast.topology import Topology
from holdfast.topology.draws import Draws
from holdfast_lab.random_topologies import generate
from holdfast_lab.topologies import named_topology
from sizes import share

CLOCK = time.perf_counter
PAPER_GRAPHS = ("signal-guru", "sentiment-50-20-20", "sentiment-30-30-30")


def latency_for(topology: Topology, draws: Draws) -> float:
    """A latency between the largest T and the longest path: where there is something to decide."""
    problem = BackupProblem(topology, 1e6)
    longest = float(problem.in_seconds(problem.latencies(problem.mask([]))).max())
    return float(draws.whole(int(topology.reprocess_seconds.max()), max(1, int(longest))))


def random_problems(recipe: str, count: int, settings: dict[str, object], first: int = 0) -> Iterator[BackupProblem]:
    for seed in range(first, first + count):
        times = {"times": ("uniform", "unequal")[seed % 2]}
        topology = generate(recipe, seed, {**settings, **times})
        yield BackupProblem(topology, latency_for(topology, Draws(seed).branch("latency")))


def by_cp_sat(problem: BackupProblem) -> int:
    """Eq. 3 and 5 as printed: an oracle that shares nothing with `exact` but the solver."""
    model = cp_model.CpModel()
    count, unit = len(problem), int(np.gcd.reduce(problem.ticks)) or 1
    limit = problem.limit // unit
    backed = [model.new_bool_var("") for _ in range(count)]
    latency = [model.new_int_var(0, limit, "") for _ in range(count)]
    for v in range(count):
        model.add(latency[v] >= int(problem.ticks[v]) // unit)
        for u in problem.topology.upstream(v).tolist():
            model.add(latency[v] >= latency[u] + int(problem.ticks[v]) // unit).only_enforce_if(~backed[u])
    model.minimize(sum(backed))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return round(solver.objective_value)


def racked(topology: Topology, draws: Draws, racks: int) -> Topology:
    """The same topology with some of its partitions in racks."""
    named = [
        replace(one, domain=tuple(f"rack-{draws.whole(1, racks)}" for _ in range(one.parallelism)))
        if draws.chance(0.8)
        else one
        for one in topology.operators
    ]
    return Topology(topology.name, named)


def test_line_uses_as_many_as_exact_on_random_lines() -> None:
    for problem in random_problems("lines", share(1000), {"lines": 2, "shortest": 2, "longest": 9}):
        found = line_backups(problem)
        assert check_backups(problem, found).meets, problem.topology.name
        assert (found == tree_backups(problem)).all()
        # Costs switch off the rules that solve trees while reducing: LP and CP-SAT then prove it on their own.
        alone = np.ones(len(problem), np.int64)
        best = exact_backups(problem, CLOCK, 60, cost=alone)
        assert best.optimal
        assert found.sum() == best.cost == exact_backups(problem, CLOCK, 60).cost, problem.topology.name


def test_tree_uses_as_many_as_exact_on_random_trees() -> None:
    for problem in random_problems("tree", share(1000), {"tasks": 18}):
        found = tree_backups(problem)
        assert check_backups(problem, found).meets, problem.topology.name
        best = exact_backups(problem, CLOCK, 60, cost=np.ones(len(problem), np.int64))
        assert best.optimal
        assert found.sum() == best.cost == exact_backups(problem, CLOCK, 60).cost, problem.topology.name


@pytest.mark.parametrize("recipe", ["lines", "tree"])
def test_lines_and_trees_against_the_printed_model(recipe: str) -> None:
    for problem in random_problems(recipe, 60, {}, first=5000):
        assert tree_backups(problem).sum() == by_cp_sat(problem), problem.topology.name


def test_random_dags_every_answer_holds_and_exact_is_never_beaten() -> None:
    totals = {"exact": 0, "dag": 0, "share": 0}
    for problem in random_problems("dag", 150, {"steps": 7, "most_parallelism": 6}):
        best = exact_backups(problem, CLOCK, 60)
        heuristic, baseline = dag_backups(problem), share_backups(problem)
        for found in (best.backups, heuristic, baseline):
            assert check_backups(problem, found).meets, problem.topology.name
            assert not (found & problem.sinks).any()
        assert best.optimal
        assert best.cost == best.backups.sum()
        assert quick_bound(problem) <= best.cost <= heuristic.sum(), problem.topology.name
        for name, found in (("exact", best.backups), ("dag", heuristic), ("share", baseline)):
            totals[name] += int(found.sum())
    assert totals["exact"] < totals["dag"] <= totals["share"]


def test_exact_against_the_printed_model_on_random_dags() -> None:
    settings = {"steps": 6, "most_parallelism": 5, "full_share": 0.4}
    for problem in random_problems("dag", 40, settings, first=300):
        assert exact_backups(problem, CLOCK, 60).cost == by_cp_sat(problem), problem.topology.name


def test_exact_against_every_set_on_small_dags() -> None:
    settings = {"steps": 5, "most_parallelism": 3, "skips": 0.5}
    tried = 0
    for problem in random_problems("dag", 120, settings, first=900):
        if len(problem) <= 16:
            tried += 1
            fewest = exhaustive_backups(problem)
            assert check_backups(problem, fewest).meets
            assert exact_backups(problem, CLOCK, 60).cost == fewest.sum(), problem.topology.name
    assert tried > 30


def test_times_that_are_no_whole_numbers() -> None:
    for seed in range(40):
        graph = generate("dag", seed, {"steps": 6, "most_parallelism": 5})
        draws = Draws(seed).branch("real times")
        operators = [
            replace(one, reprocess_seconds=tuple(draws.real(0.1, 3.0) for _ in range(one.parallelism)))
            for one in graph.operators
        ]
        problem = BackupProblem(Topology("real", operators), draws.real(3.0, 9.0))
        best = exact_backups(problem, CLOCK, 60)
        assert best.optimal
        assert check_backups(problem, best.backups).meets
        assert best.cost == by_cp_sat(problem), seed


def test_domains_against_every_set() -> None:
    tried = changed = 0
    for problem in random_problems("dag", 160, {"steps": 5, "most_parallelism": 3}, first=2000):
        draws = Draws(tried).branch("racks")
        together = BackupProblem(racked(problem.topology, draws, 4), problem.latency + 2)
        together_worst = together.guaranteed(np.ones(len(together), bool)).max()
        if len(problem) > 15 or together_worst > together.limit:
            continue
        tried += 1
        fewest = exhaustive_backups(together)
        plan = plan_backups(together, BackupAlgorithm.EXACT, clock=CLOCK, seconds=60)
        assert plan.optimal
        assert plan.count == fewest.sum(), problem.topology.name
        assert check_backups(together, together.mask(plan.backups)).meets
        changed += plan.count > exact_backups(together, CLOCK, 60).cost
    assert tried > 30
    assert changed > 5, "domains never mattered: the test shows nothing"


@pytest.mark.parametrize("algorithm", ["dag", "share", "tree", "auto", "exact"])
def test_every_algorithm_holds_when_a_domain_fails(algorithm: str) -> None:
    for seed in range(12):
        graph = generate("tree" if algorithm == "tree" else "dag", seed, {"times": "unequal"})
        graph = racked(graph, Draws(seed).branch("racks"), 6)
        least = BackupProblem(graph, 1e6)
        needed = least.in_seconds(least.guaranteed(np.ones(len(least), bool))).max()
        problem = BackupProblem(graph, float(needed) + 5)
        plan = plan_backups(problem, BackupAlgorithm(algorithm), clock=CLOCK, seconds=5)
        assert check_backups(problem, problem.mask(plan.backups)).meets
        assert plan.bound <= plan.count
        assert plan.worst <= problem.latency


def test_repaired_leaves_a_set_that_holds_but_for_what_is_redundant() -> None:
    graph = racked(named_topology("signal-guru"), Draws(5), 7)
    least = BackupProblem(graph, 1e6)
    problem = BackupProblem(graph, float(least.in_seconds(least.guaranteed(np.ones(len(least), bool))).max()))
    everything = ~problem.sinks
    found = repaired(problem, everything, CLOCK, 30)
    assert check_backups(problem, found).meets
    assert found.sum() < everything.sum()
    for v in np.flatnonzero(found).tolist():
        fewer = found.copy()
        fewer[v] = False
        # One of several partitions of equal T and neighbours may go only with the others.
        if check_backups(problem, fewer).meets:
            same = (problem.ticks == problem.ticks[v]) & (graph.operator_of == graph.operator_of[v])
            assert (found & same).sum() > 1


def nearest_of_all_fewest(problem: BackupProblem, previous: Mask) -> tuple[int, int]:
    """The size of a fewest set, and the most of a previous set that one of them keeps, by trying all."""
    useful = np.flatnonzero(~problem.sinks).tolist()
    for size in range(len(useful) + 1):
        kept = [
            int(previous[list(some)].sum())
            for some in combinations(useful, size)
            if check_backups(problem, problem.mask(list(some))).meets
        ]
        if kept:
            return size, max(kept)
    raise AssertionError("nothing holds")


def test_planning_again_changes_as_little_as_any_fewest_set() -> None:
    tried = better = 0
    settings = {"steps": 5, "most_operators": 1, "most_parallelism": 3, "full_share": 0.2}
    for number, problem in enumerate(random_problems("dag", 80, settings, first=4000)):
        draws = Draws(number).branch("previous")
        previous = np.array([draws.chance(0.4) for _ in range(len(problem))]) & ~problem.sinks
        if len(problem) > 10 or not previous.any():
            continue
        tried += 1
        size, kept = nearest_of_all_fewest(problem, previous)
        plan = plan_backups(problem, clock=CLOCK, seconds=60, previous=previous)
        assert plan.optimal
        assert plan.changes is not None
        assert plan.changes.fewest_changes
        assert (plan.count, len(plan.changes.kept)) == (size, kept), problem.topology.name
        assert len(plan.changes.added) + len(plan.changes.kept) == plan.count
        assert len(plan.changes.removed) + len(plan.changes.kept) == previous.sum()
        better += kept > previous[np.flatnonzero(exact_backups(problem, CLOCK, 60).backups)].sum()
    assert tried > 30
    assert better > 3, "looking at the previous plan never helped: the test shows nothing"


def test_planning_again_on_trees_and_with_domains() -> None:
    for seed in range(10):
        graph = racked(generate("tree", seed, {"tasks": 12}), Draws(seed).branch("racks"), 5)
        least = BackupProblem(graph, 1e6)
        problem = BackupProblem(
            graph, max(2.0, float(least.in_seconds(least.guaranteed(np.ones(len(least), bool))).max()))
        )
        first = plan_backups(problem, clock=CLOCK, seconds=30)
        again = plan_backups(problem, clock=CLOCK, seconds=30, previous=problem.mask(first.backups))
        assert first.optimal
        assert again.changes is not None
        assert again.backups.tolist() == first.backups.tolist(), seed


def test_a_previous_plan_of_a_topology_that_has_scaled() -> None:
    small, large = named_topology("sentiment-30-30-30"), named_topology("sentiment-50-20-20")
    previous, gone = carried_over(small, ["source[0]", "hot-topics[49]", "merger[0]"])
    assert gone == ["hot-topics[49]"]
    assert small.partitions(np.flatnonzero(previous)) == [
        small.partition(small.index("source[0]")),
        small.partition(small.index("merger[0]")),
    ]
    with pytest.raises(BadInput):
        carried_over(large, ["nonsense"])
    with pytest.raises(BadInput, match="previous plan"):
        plan_backups(BackupProblem(small, 3), BackupAlgorithm.DAG, clock=CLOCK, previous=previous)


@pytest.mark.parametrize("name", [f"{graph}{times}" for graph in PAPER_GRAPHS for times in ("", "-unequal")])
def test_exact_proves_the_optimum_on_the_paper_s_graphs_for_every_latency(name: str) -> None:
    topology = named_topology(name)
    longest = int(BackupProblem(topology, 1e6).seconds.max())
    free = BackupProblem(topology, 1e6)
    for latency in range(longest, int(free.in_seconds(free.latencies(free.mask([]))).max()) + 1):
        problem = BackupProblem(topology, latency)
        plan = plan_backups(problem, BackupAlgorithm.EXACT, clock=CLOCK, seconds=60)
        assert plan.optimal, (name, latency)
        assert plan.count <= min(dag_backups(problem).sum(), share_backups(problem).sum())


def test_without_time_there_is_still_a_plan_and_a_bound() -> None:
    topology = generate("dag", 7, {"steps": 12, "most_operators": 4, "most_parallelism": 12, "times": "unequal"})
    problem = BackupProblem(topology, 25)
    ticking = iter(range(10**9))
    plan = plan_backups(problem, BackupAlgorithm.EXACT, clock=lambda: float(next(ticking)), seconds=0.5)
    full = plan_backups(problem, BackupAlgorithm.EXACT, clock=CLOCK, seconds=60)
    assert check_backups(problem, problem.mask(plan.backups)).meets
    assert full.optimal
    assert plan.bound <= full.count <= plan.count


def test_auto_takes_the_linear_algorithm_where_the_shape_allows() -> None:
    def algorithm(topology: Topology, latency: float) -> str:
        return str(plan_backups(BackupProblem(topology, latency), clock=CLOCK).algorithm)

    assert algorithm(named_topology("line"), 3) == "line"
    assert algorithm(named_topology("lines"), 3) == "line"
    assert algorithm(named_topology("tree"), 3) == "tree"
    assert algorithm(named_topology("signal-guru"), 3) == "exact"
    racks = Topology("racks", [replace(one, domain="a") for one in named_topology("line").operators[:2]])
    assert algorithm(racks, 3) == "exact"


def test_shares_of_the_resources_add_to_one() -> None:
    shares = resource_shares(BackupProblem(named_topology("signal-guru-unequal"), 30))
    assert shares.sum() == pytest.approx(1.0)
    assert (shares >= 0).all()


def test_feasible_latencies_always_have_a_plan() -> None:
    for problem in random_problems("dag", 30, {"steps": 6}, first=7000):
        tight = BackupProblem(problem.topology, float(problem.seconds.max()))
        require_feasible(tight)
        for algorithm in ("dag", "share", "exact", "auto"):
            plan = plan_backups(tight, BackupAlgorithm(algorithm), clock=CLOCK)
            assert plan.worst <= tight.latency

"""The provably best recovery plan, or the best found with a bound (past incremental recovery). Pure.

The problem is a knapsack whose items share parts. As a program: x of a query is at most y of each group it needs, the
groups' costs fit the capacity, the priorities of the x are to be most. Its linear relaxation is tight (a few per cent
above the best plan, where the share bound is 50 % above) and takes milliseconds, so it goes first: it gives the bound,
and the queries it takes whole are a seed that best-density grows. The better of that and of plain best-density starts
CP-SAT, which keeps the relaxation in its search (`linearization_level` 2: without it 50 shared queries do not close in
20 s, with it 200 do) and may not look above the bound.

With nodes the placement is part of the program: which partition on which node, none above its room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.planning.recovery.best_density import exchanged, grow_candidates, grow_from
from holdfast.planning.recovery.leftover import use_leftover
from holdfast.planning.recovery.problem import Mask, RecoveryPlan, RecoveryProblem, share_bound
from holdfast.topology import Ints

TIME_LIMIT = 30.0
LARGEST_RELAXATION = 200_000
"""Pairs of a query and a group it needs up to which the relaxation is solved; beyond, the share bound has to do."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The linear relaxation's answer."""

    bound: int
    """No plan restores more priority."""
    whole: Mask
    """The failed queries it takes whole; together they fit."""


@dataclass(frozen=True, slots=True)
class Proven:
    """What the solver found."""

    restored: Mask
    bound: int
    node_of: Ints | None = None
    """With nodes: the node of each failed partition, -1 for those that stay down."""


def recovery_exact(problem: RecoveryProblem, *, time_limit: float = TIME_LIMIT, workers: int = 1) -> RecoveryPlan:
    """Return the best plan; when time runs out, the best found, with a bound and `optimal` false."""
    proven = solve_exactly(problem, time_limit=time_limit, workers=workers)
    taken = use_leftover(problem, problem.partitions_of(problem.groups_of(proven.restored)))
    return problem.plan("exact", taken, bound=proven.bound)


def relaxed(problem: RecoveryProblem) -> Relaxation:
    """Solve the linear relaxation."""
    from ortools.linear_solver import pywraplp

    queries, groups = problem.member.shape
    if not queries:
        return Relaxation(0, np.zeros(0, bool))
    if np.count_nonzero(problem.member) > LARGEST_RELAXATION:
        return Relaxation(share_bound(problem), np.zeros(queries, bool))
    solver = pywraplp.Solver.CreateSolver("GLOP")
    x = [solver.NumVar(0, 1, "") for _ in range(queries)]
    y = [solver.NumVar(0, 1, "") for _ in range(groups)]
    for query in np.flatnonzero(problem.query_cost > problem.capacity).tolist():
        x[query].SetUb(0)
    for query, group in zip(*(places.tolist() for places in np.nonzero(problem.member)), strict=True):
        row = solver.Constraint(-solver.infinity(), 0)
        row.SetCoefficient(x[query], 1)
        row.SetCoefficient(y[group], -1)
    # Scaled so that the solver's tolerance is relative to the capacity.
    scale = max(1, problem.capacity)
    row = solver.Constraint(-solver.infinity(), problem.capacity / scale)
    for group, cost in enumerate(problem.group_cost.tolist()):
        row.SetCoefficient(y[group], cost / scale)
    objective = solver.Objective()
    objective.SetMaximization()
    for query, priority in enumerate(problem.priority.tolist()):
        objective.SetCoefficient(x[query], priority)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return Relaxation(share_bound(problem), np.zeros(queries, bool))
    value = np.array([one.solution_value() for one in x])
    bound = min(share_bound(problem), int(np.floor(objective.Value() * (1 + 1e-9) + 1e-6)))
    whole = value > 1 - 1e-6
    if problem.group_cost[problem.groups_of(whole)].sum() > problem.capacity:
        whole = np.zeros(queries, bool)
    return Relaxation(bound, whole)


def solve_exactly(
    problem: RecoveryProblem,
    *,
    rooms: Sequence[int] | None = None,
    hint: Proven | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int = 1,
) -> Proven:
    """Return the best set of queries (with nodes: that can be placed), or the best found and a bound."""
    relaxation = relaxed(problem)
    if rooms is None:
        found = _warm_start(problem, relaxation)
        if int(problem.priority[found].sum()) >= relaxation.bound:
            return Proven(found, relaxation.bound)
        hint = Proven(found, relaxation.bound)
    return _solve(problem, rooms, hint, relaxation.bound, time_limit, workers)


def _warm_start(problem: RecoveryProblem, relaxation: Relaxation) -> Mask:
    candidates = [*grow_candidates(problem).restored, grow_from(problem, relaxation.whole)]
    return exchanged(problem, max(candidates, key=lambda restored: int(problem.priority[restored].sum())))


def _solve(
    problem: RecoveryProblem,
    rooms: Sequence[int] | None,
    hint: Proven | None,
    bound: int,
    time_limit: float,
    workers: int,
) -> Proven:
    from ortools.sat.python import cp_model

    queries, groups = problem.member.shape
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(queries)]
    y = [model.new_bool_var("") for _ in range(groups)]
    for query, group in zip(*(places.tolist() for places in np.nonzero(problem.member)), strict=True):
        model.add_implication(x[query], y[group])
    for query in np.flatnonzero(problem.query_cost > problem.capacity).tolist():
        model.add(x[query] == 0)
    costs = problem.group_cost.tolist()
    model.add(cp_model.LinearExpr.weighted_sum(y, costs) <= problem.capacity)
    gained = cp_model.LinearExpr.weighted_sum(x, problem.priority.tolist())
    model.add(gained <= bound)
    model.maximize(gained)
    on_node = {} if rooms is None else _add_nodes(model, problem, y, rooms)
    if hint is not None:
        needed = problem.groups_of(hint.restored)
        for query in range(queries):
            model.add_hint(x[query], bool(hint.restored[query]))
        for group in range(groups):
            model.add_hint(y[group], bool(needed[group]))
        if hint.node_of is not None:
            for (number, node), variable in on_node.items():
                model.add_hint(variable, bool(hint.node_of[number] == node))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.num_workers = workers
    solver.parameters.linearization_level = 2
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    known = 0 if hint is None else int(problem.priority[hint.restored].sum())
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        nothing = Proven(
            problem.query_cost == 0, bound, None if rooms is None else np.full(len(problem.partitions), -1)
        )
        return nothing if hint is None else Proven(hint.restored, bound, hint.node_of)
    least_bound = min(bound, int(np.floor(solver.best_objective_bound + 1e-6)))
    if round(solver.objective_value) < known:
        assert hint is not None
        return Proven(hint.restored, least_bound, hint.node_of)
    restored = np.array([bool(solver.value(one)) for one in x])
    node_of = None
    if rooms is not None:
        node_of = np.full(len(problem.partitions), -1)
        needed = problem.partitions_of(problem.groups_of(restored))
        for (number, node), variable in on_node.items():
            if needed[number] and solver.value(variable):
                node_of[number] = node
    return Proven(restored, least_bound, node_of)


def _add_nodes(model, problem: RecoveryProblem, y, rooms: Sequence[int]):  # type: ignore[no-untyped-def]  # solver types
    """Every partition of a chosen group sits on one node, and no node is fuller than its room."""
    on_node = {}
    for number, group in enumerate(problem.group_of.tolist()):
        if group < 0:
            continue
        for node, room in enumerate(rooms):
            if problem.cost[number] <= room:
                on_node[number, node] = model.new_bool_var("")
        model.add(sum(on_node[number, node] for node in range(len(rooms)) if (number, node) in on_node) == y[group])
    for node, room in enumerate(rooms):
        here = [(variable, number) for (number, where), variable in on_node.items() if where == node]
        model.add(sum(int(problem.cost[number]) * variable for variable, number in here) <= int(room))
    return on_node

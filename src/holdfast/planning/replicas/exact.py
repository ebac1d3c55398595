"""Provably best replica plans, and upper bounds for any plan (PPA, Definition 2). Runs anywhere.

Few possible plans are simply all tried. Otherwise a mixed-integer program: x is 1 where a partition has a replica, k
what it keeps. For an independent-input partition k = x * (mean of its inputs) is k <= x and k <= mean, because the mean
is at most 1: linear and exact. A join's product is expanded into one term per MC-tree that ends at it, each at most
every x in it. Where those are too many, the product is replaced by its factors, each an upper bound: then the solution
is a plan and a bound, and may or may not be proven best.

Partitions of one operator with the same neighbours differ only in their rates, so one with a greater rate is replicated
before one with a smaller: these orders are added, for without them the solver tries all permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations, islice, pairwise
from math import comb
from typing import Any

import numpy as np

from holdfast.planning.replicas.fidelity import LossModel
from holdfast.topology import Floats

MOST_TRIED = 100_000
"""Up to so many plans are all tried."""
MOST_TERMS = 20_000
"""Up to so many terms of joins are written out."""
MOST_RELAXED = 1_500
"""Up to so many partitions the relaxed program is solved: beyond, it takes longer than most plans."""
TOLERANCE = 1e-6
"""What the solver proves, it proves up to this much of the metric."""
_CHUNK = 8_192

Term = tuple[int, float]
"""Partitions as bits, and what the metric of a join gains when all of them work."""


@dataclass(frozen=True, slots=True)
class ExactResult:
    """A plan, a value no plan exceeds, and whether they meet."""

    replicas: tuple[int, ...]
    bound: float
    optimal: bool


def exact(model: LossModel, budget: int, seconds: float, start: Sequence[int]) -> ExactResult:
    """Return the best plan that could be found in time, with its bound; never worse than `start`."""
    count = len(model.topology)
    if budget >= count:
        return ExactResult(tuple(range(count)), 1.0, True)
    if comb(count, budget) <= MOST_TRIED:
        return _try_all(model, budget)
    return _solve(model, budget, seconds, start, whole=True)


def relaxed_bound(model: LossModel, budget: int, seconds: float) -> float:
    """Return a value that no plan exceeds.

    It is what the most valuable partitions are worth together, or where that is less the value of the program without
    the condition that replicas are whole.
    """
    count = len(model.topology)
    if budget >= count:
        return 1.0
    simple = min(1.0, float(np.sort(model.weight)[count - budget :].sum()))
    if count > MOST_RELAXED:
        return simple
    return min(simple, _solve(model, budget, seconds, (), whole=False).bound)


def _try_all(model: LossModel, budget: int) -> ExactResult:
    count = len(model.topology)
    plans = combinations(range(count), budget)
    best: tuple[int, ...] = ()
    value = 0.0
    while chunk := list(islice(plans, _CHUNK)):
        sets = np.zeros((len(chunk), count), bool)
        if budget:
            sets[np.arange(len(chunk))[:, None], np.array(chunk)] = True
        values = model.values(sets)
        first = int(np.argmax(values))
        if values[first] > value * (1 + 1e-12):
            best, value = chunk[first], float(values[first])
    return ExactResult(tuple(best), value, True)


def _solve(model: LossModel, budget: int, seconds: float, start: Sequence[int], *, whole: bool) -> ExactResult:
    from ortools.math_opt.python import mathopt

    program = mathopt.Model()
    count = len(model.topology)
    replicated = [program.add_variable(lb=0, ub=1, is_integer=whole, name=f"x{p}") for p in range(count)]
    kept = [program.add_variable(lb=0, ub=1, name=f"k{p}") for p in range(count)]
    program.add_linear_constraint(mathopt.fast_sum(replicated) <= budget)
    # The relaxed program is for speed: there the factors do.
    terms = expanded_joins(model) if whole else None
    groups = [_group_value(model, mathopt, kept, group) for group in range(len(model.group_level))]
    written: dict[int, Any] = {}
    for p in range(count):
        program.add_linear_constraint(kept[p] <= replicated[p])
        streams = range(int(model.topology.stream_start[p]), int(model.topology.stream_start[p + 1]))
        if not streams:
            continue
        if not model.joins[p] or len(streams) == 1:
            parts = (float(model.stream_weight[s]) * groups[model.stream_group[s]] for s in streams)
            program.add_linear_constraint(kept[p] <= mathopt.fast_sum(parts))
        elif terms is not None:
            parts = (factor * _term(program, replicated, written, bits) for bits, factor in terms[p])
            program.add_linear_constraint(kept[p] <= mathopt.fast_sum(parts))
        else:
            for s in streams:
                program.add_linear_constraint(kept[p] <= groups[model.stream_group[s]])
    for more, less in rate_orders(model):
        program.add_linear_constraint(replicated[more] >= replicated[less])
    program.maximize(mathopt.fast_sum(float(model.weight[p]) * kept[p] for p in range(count) if model.weight[p] > 0))

    parameters = mathopt.SolveParameters(
        time_limit=timedelta(seconds=seconds), relative_gap_tolerance=0.0, absolute_gap_tolerance=TOLERANCE / 10
    )
    if not whole:
        parameters = mathopt.SolveParameters(time_limit=timedelta(seconds=seconds))
    hints = mathopt.ModelSolveParameters()
    if start and whole:
        hints.solution_hints.append(
            mathopt.SolutionHint(variable_values=_as_solution(model, start, replicated, kept, written))
        )
    result = mathopt.solve(program, mathopt.SolverType.HIGHS, params=parameters, model_params=hints)
    bound = (
        min(1.0, max(0.0, float(result.best_objective_bound()))) if np.isfinite(result.best_objective_bound()) else 1.0
    )
    found = list(start)
    if whole and result.has_primal_feasible_solution():
        given = result.variable_values(replicated)
        other = [p for p in range(count) if given[p] > 0.5]
        if len(other) <= budget and model.value_of(other) > model.value_of(found):
            found = other
    value = model.value_of(found)
    bound = max(bound, value)
    return ExactResult(tuple(sorted(found)), bound, bool(whole and bound - value <= TOLERANCE))


def _as_solution(
    model: LossModel, replicas: Sequence[int], replicated: list[Any], kept: list[Any], written: dict[int, Any]
) -> dict[Any, float]:
    """Return the values of all variables for a plan."""
    alive = model.only(replicas)
    shares = model.sweep(alive)[0]
    bits = sum(1 << p for p in replicas)
    values = {variable: float(alive[p]) for p, variable in enumerate(replicated)}
    values |= {variable: float(shares[p]) for p, variable in enumerate(kept)}
    values |= {variable: float(term & bits == term) for term, variable in written.items()}
    return values


def _group_value(model: LossModel, mathopt: Any, kept: list[Any], group: int) -> Any:
    members = range(int(model.group_start[group]), int(model.group_start[group + 1]))
    return mathopt.fast_sum(float(model.member_weight[at]) * kept[model.member[at]] for at in members)


def _term(program: Any, replicated: list[Any], written: dict[int, Any], bits: int) -> Any:
    """Return the variable that is 1 when all these partitions have replicas."""
    if bits not in written:
        term = written[bits] = program.add_variable(lb=0, ub=1)
        left = bits
        while left:
            lowest = left & -left
            program.add_linear_constraint(term <= replicated[lowest.bit_length() - 1])
            left ^= lowest
    return written[bits]


def expanded_joins(model: LossModel) -> list[list[Term]] | None:
    """Return what each partition at or above a join keeps, as a sum over sets of partitions; None: too many."""
    topology = model.topology
    needed = model.joins.copy()
    for partitions in reversed(topology.partitions_by_level):
        for p in partitions.tolist():
            if needed[p]:
                needed[topology.edge_from[topology.up_start[p] : topology.up_start[p + 1]]] = True
    terms: list[list[Term]] = [[] for _ in range(len(topology))]
    total = 0
    for partitions in topology.partitions_by_level:
        for p in partitions.tolist():
            if not needed[p]:
                continue
            streams = range(int(topology.stream_start[p]), int(topology.stream_start[p + 1]))
            found: dict[int, float] = {1 << p: 1.0}
            if streams and model.joins[p]:
                for s in streams:
                    sizes = sum(len(terms[int(u)]) for u in _members(model, s)[0])
                    if len(found) * sizes > MOST_TERMS:
                        return None
                    found = _times(found, _stream_terms(model, terms, s))
            elif streams:
                found = {}
                for s in streams:
                    for bits, factor in _stream_terms(model, terms, s):
                        whole = bits | 1 << p
                        found[whole] = found.get(whole, 0.0) + float(model.stream_weight[s]) * factor
            terms[p] = [(bits, factor) for bits, factor in found.items() if factor > 0]
            total += len(terms[p])
            if total > MOST_TERMS:
                return None
    return terms


def _members(model: LossModel, stream: int) -> tuple[Any, Floats]:
    group = int(model.stream_group[stream])
    part = slice(int(model.group_start[group]), int(model.group_start[group + 1]))
    return model.member[part], model.member_weight[part]


def _stream_terms(model: LossModel, terms: list[list[Term]], stream: int) -> list[Term]:
    members, weights = _members(model, stream)
    return [
        (bits, factor * weight)
        for u, weight in zip(members.tolist(), weights.tolist(), strict=True)
        for bits, factor in terms[u]
    ]


def _times(left: dict[int, float], right: list[Term]) -> dict[int, float]:
    found: dict[int, float] = {}
    for bits, factor in left.items():
        for more, other in right:
            found[bits | more] = found.get(bits | more, 0.0) + factor * other
    return found


def rate_orders(model: LossModel) -> list[tuple[int, int]]:
    """Return pairs (a, b) of partitions with the same neighbours, of which b need not be replicated before a."""
    topology = model.topology
    groups_of: list[list[int]] = [[] for _ in range(len(topology))]
    weight_in: list[list[float]] = [[] for _ in range(len(topology))]
    for at, p in enumerate(model.member.tolist()):
        groups_of[p].append(int(model.member_group[at]))
        weight_in[p].append(float(model.member_weight[at]))
    alike: dict[tuple[object, ...], list[int]] = {}
    for p in range(len(topology)):
        reads = model.stream_group[topology.stream_start[p] : topology.stream_start[p + 1]].tolist()
        parts = np.round(model.stream_weight[topology.stream_start[p] : topology.stream_start[p + 1]], 12).tolist()
        key = (int(topology.operator_of[p]), tuple(reads), tuple(parts), tuple(groups_of[p]))
        alike.setdefault(key, []).append(p)
    pairs = []
    for members in alike.values():
        ranked = sorted(members, key=lambda p: (-model.weight[p], *(-one for one in weight_in[p]), p))
        for more, less in pairwise(ranked):
            if all(a >= b for a, b in zip(weight_in[more], weight_in[less], strict=True)):
                pairs.append((more, less))
    return pairs

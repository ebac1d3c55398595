"""Algorithms 1 and 2 of FastRecover, loop by loop as printed. Slow on purpose; pure.

They are what the bench measures the fast planners against, and oracles for tests: nothing else uses them. Corrected
only where the print is wrong: eq. 3.3 allows c' = c with DP(0, 0) = 0; a leaf's cost is times rho_i; overheads are
rounded up to increments. As the paper counts it, one step of the innermost loop takes constant time: sums over
operators are looked up, not added again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from holdfast.planning.segments.chain import chain_sums
from holdfast.planning.segments.grid import FrequencyGrid, operator_increments
from holdfast.planning.segments.model import MAX_FREQUENCY, SegmentModel


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the printed algorithms return: the anchors, one frequency per operator, and the expected recovery time."""

    anchors: tuple[bool, ...]
    frequency: tuple[float, ...]
    recovery_time: float


def algorithm_1(
    model: SegmentModel, overhead: float, steps: int, max_frequency: float = MAX_FREQUENCY
) -> Configuration | None:
    """Find the best segments of a chain; None where there is no plan on the grid."""
    sums = chain_sums(model)
    alpha, beta, state, inputs = (
        sums.alpha.tolist(),
        sums.beta.tolist(),
        sums.state.tolist(),
        sums.inputs.tolist(),
    )
    increment = overhead / steps
    size = len(model)

    def c_to_eta(j: int, i: int, c: float) -> float:
        left: float = c - inputs[j - 1]
        if left < 0 or (left == 0 and state[j - 1][i - 1] > 0):
            return 0.0
        return min(left / state[j - 1][i - 1], max_frequency) if state[j - 1][i - 1] > 0 else max_frequency

    def eta_to_r(j: int, i: int, eta: float) -> float:
        return alpha[j - 1][i - 1] / eta + beta[j - 1][i - 1] if eta > 0 else inf

    def c_to_r(j: int, i: int, c: float) -> float:
        return eta_to_r(j, i, c_to_eta(j, i, c))

    dp_rt = [[inf] * (size + 1) for _ in range(steps + 1)]
    dp_head = [[0] * (size + 1) for _ in range(steps + 1)]
    dp_ch = [[0] * (size + 1) for _ in range(steps + 1)]
    for c in range(steps + 1):
        dp_rt[c][0] = 0.0
    for i in range(1, size + 1):
        for c in range(steps + 1):
            for k in range(1, i + 1):
                for taken in range(c + 1):
                    cost = dp_rt[c - taken][k - 1] + c_to_r(k, i, taken * increment)
                    if cost < dp_rt[c][i]:
                        dp_rt[c][i], dp_head[c][i], dp_ch[c][i] = cost, k, taken

    if dp_rt[steps][size] == inf:
        return None
    anchors = [False] * size
    frequency = [0.0] * size
    remaining, operator = steps, size
    while operator:
        head, taken = dp_head[remaining][operator], dp_ch[remaining][operator]
        eta = c_to_eta(head, operator, taken * increment)
        for number in range(head, operator + 1):
            frequency[model.order[number - 1]] = eta
        anchors[model.order[head - 1]] = True
        remaining, operator = remaining - taken, head - 1
    return Configuration(tuple(anchors), tuple(frequency), dp_rt[steps][size])


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """List every way to split a whole number into so many parts, in order."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in splits(total - first, parts - 1):
            yield (first, *rest)


def algorithm_2(model: SegmentModel, overhead: float, grid: FrequencyGrid) -> Configuration | None:
    """Find segments of a tree by eq. 3.5 and 3.6, listing every split of the overhead over the children.

    Not always the best plan: a child's plan is chosen without what its failures cost the operators above it.
    """
    steps = grid.steps
    frequencies = grid.frequencies.tolist()
    taken = operator_increments(model, overhead, grid).tolist()
    rho, work = model.failure_rate.tolist(), model.work_seconds.tolist()
    state, inputs = model.state_seconds.tolist(), model.input_seconds.tolist()

    def rt(i: int, f: int, inp: int) -> float:
        whole: float = (inp * inputs[i] + work[i]) / frequencies[f] + state[i]
        return whole

    # Per operator: [inp][f][c] -> (DP_rt, DP_fr, DP_oc), and [c] -> (DP_rt*, its f).
    dp: dict[int, list[list[list[tuple[float, float, tuple[tuple[int, int, int], ...]]]]]] = {}
    best: dict[int, list[tuple[float, int]]] = {}
    for i in reversed(model.order):
        children = model.consumers[i]
        dp[i] = [[[(inf, rho[i], ())] * (steps + 1) for _ in frequencies] for _ in (0, 1)]
        for inp in (0, 1):
            for f in range(len(frequencies)):
                own = rt(i, f, inp)
                for c in range(taken[inp][i][f], steps + 1):
                    left = c - taken[inp][i][f]
                    if not children:
                        dp[i][inp][f][c] = (own * rho[i], rho[i], ())
                        continue
                    for split in splits(left, len(children)):
                        cost, failures, chosen = own * rho[i], rho[i], []
                        for k, c_k in zip(children, split, strict=True):
                            alone = best[k][c_k][0]
                            inner = dp[k][0][f][c_k]
                            below = inner[1] * own + inner[0]
                            if alone <= below:
                                cost += alone
                                chosen.append((k, c_k, 1))
                            else:
                                cost += below
                                failures += inner[1]
                                chosen.append((k, c_k, 0))
                        if cost < dp[i][inp][f][c][0]:
                            dp[i][inp][f][c] = (cost, failures, tuple(chosen))
        best[i] = [min((dp[i][1][f][c][0], f) for f in range(len(frequencies))) for c in range(steps + 1)]

    root = model.order[0]
    if best[root][steps][0] == inf:
        return None
    anchors = [False] * len(model)
    frequency = [0.0] * len(model)
    waiting = [(root, steps, 1, best[root][steps][1])]
    while waiting:
        i, c, inp, f = waiting.pop()
        anchors[i] = bool(inp)
        frequency[i] = frequencies[f]
        for k, c_k, inp_k in dp[i][inp][f][c][2]:
            waiting.append((k, c_k, inp_k, best[k][c_k][1] if inp_k else f))
    return Configuration(tuple(anchors), tuple(frequency), best[root][steps][0])

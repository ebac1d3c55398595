"""The greedy planner (PPA, Alg. 2): replicate the partitions whose single failure costs most. Runs anywhere.

It does not ask whether its choice forms complete MC-trees, which is why it does badly with few replicas.
"""

from __future__ import annotations

import numpy as np

from holdfast.planning.replicas.fidelity import LossModel
from holdfast.planning.replicas.fidelity_gradient import values_if_one_fails


def greedy(model: LossModel, budget: int) -> list[int]:
    """Return the `budget` partitions with the lowest metric when they alone fail, worst first; ties by their number."""
    # Rounding must not decide ties: what differs by less than this does not differ.
    values = np.round(values_if_one_fails(model), 12)
    chosen: list[int] = np.argsort(values, kind="stable")[:budget].tolist()
    return chosen

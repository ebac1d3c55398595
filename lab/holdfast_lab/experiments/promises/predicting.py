"""What a kill is predicted to take, from the plan that a run executes and what another run measured. Pure.

A killed partition starts from its checkpoint. It and every sender that kept nothing for it, and their senders alike,
replay what came since. Two predictions of how long that takes, for n batches of b seconds and w seconds of work per
second:

- **summed**, as the papers have it (FastRecover, eq. 3.2; FTC, eq. 3): n b times the sum of w along what rolls back. A
  consumer begins when its sender is through.
- **pipelined**, as this runtime replays: a sender passes on each block as it makes it, so all replay at once and the
  slowest node sets the pace: (n - 1) b times the largest sum of w of the partitions on one node. One batch, the first
  that is new, goes all the way: b times the sum of w along the longest path from what rolls back to an output.

Both have the fixed costs on top: detection, plan, restore, publishing. These are measured in another run, by kills
right after a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was written down before a kill."""

    operator: str
    rolls_back: tuple[str, ...]
    """The operators that replay."""
    batches: int
    """From the checkpoint to the first batch that is logged after the kill."""
    summed: float
    """Seconds of replay, as the papers add them."""
    pipelined: float
    """Seconds of replay, by the slowest node."""
    fixed: float
    """Seconds, whatever is replayed; 0 in the run that measures them."""

    @property
    def total(self) -> float:
        """Seconds from the kill until every query that needs the operator has a new output."""
        return self.pipelined + self.fixed

    @property
    def total_summed(self) -> float:
        """The same, as the papers add the replay."""
        return self.summed + self.fixed

    def document(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "total": self.total, "total_summed": self.total_summed}


def rolling_back(
    operator: str, senders: Callable[[str], Iterable[str]], keeps: Callable[[str, str], bool]
) -> tuple[str, ...]:
    """Return what replays when an operator is lost: it, and every sender that kept nothing for what replays."""
    found = {operator: None}
    waiting = [operator]
    while waiting:
        consumer = waiting.pop()
        for sender in senders(consumer):
            if sender not in found and not keeps(sender, consumer):
                found[sender] = None
                waiting.append(sender)
    return tuple(found)


def longest_way(
    operator: str, back: Iterable[str], inputs: Mapping[str, Iterable[str]], work: Mapping[str, float]
) -> float:
    """Return the work of one second of input along the longest path through what rolls back, and on to an output.

    `inputs` has senders before consumers. Operators that neither roll back nor are fed by the lost one wait for none.
    """
    replaying, reached = set(back), {operator}
    length: dict[str, float] = {}
    for name, feeds in inputs.items():
        if any(feed in reached for feed in feeds):
            reached.add(name)
        if name in replaying or name in reached:
            length[name] = work[name] + max((length.get(feed, 0.0) for feed in feeds), default=0.0)
    return max(length[name] for name in reached)


def predict(
    operator: str,
    rolls_back: Iterable[str],
    batches: int,
    batch_seconds: float,
    inputs: Mapping[str, Iterable[str]],
    work: Mapping[str, float],
    node_of: Mapping[str, str],
    fixed: float,
) -> Prediction:
    """Predict one kill; `work`: seconds per second of input, `node_of`: where each operator will replay."""
    back = tuple(rolls_back)
    span = batches * batch_seconds
    one_batch = batch_seconds * longest_way(operator, back, inputs, work)
    by_node: dict[str, float] = {}
    for one in back:
        by_node[node_of[one]] = by_node.get(node_of[one], 0.0) + work[one]
    pipelined = (span - batch_seconds) * max(by_node.values()) + one_batch
    return Prediction(operator, back, batches, span * sum(work[one] for one in back), pipelined, fixed)


def fixed_cost(
    kills: Iterable[Mapping[str, Any]],
    batch_seconds: float,
    inputs: Mapping[str, Iterable[str]],
    work: Mapping[str, float],
) -> float:
    """Return what kills right after a checkpoint took beyond their replay, with the work that was measured: the median.

    Every operator is on a node of its own.
    """
    beyond = []
    for one in kills:
        kill = one["prediction"]
        nodes = {name: name for name in inputs}
        replay = predict(kill["operator"], kill["rolls_back"], kill["batches"], batch_seconds, inputs, work, nodes, 0.0)
        beyond.append(float(one["measured"]) - replay.pipelined)
    return max(0.0, median(beyond))

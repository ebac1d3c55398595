"""What stored edges cost: the bytes that snapshots hold of what segments send each other. Pure; runs anywhere.

FastRecover counts the rows that reach an anchor. A run stores them in the snapshots of their senders (decision 0182),
and so (decision 0360):

- it writes down more than rows: of each batch who got how many rows, and of each snapshot the schema. The planners
  count the first (`framing`), where it is known how many batches a second there are;
- it stores less than all rows: a snapshot holds what the consumer's checkpoint has not passed, after the sender's
  snapshot before. But every so often all segments save one durable batch, whole;
- a sender that has consumers inside its segment too, or a sink, stores what goes to those as well: it has one outbox.

The planners' sums have the rows of anchors as an upper bound of the second, because intervals are not known when
anchors are chosen. `stored_edges` has all of it, for a plan that is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.topology.model import Floats, Ints, Topology
from holdfast.topology.operators import Partitioning
from holdfast.topology.rates import rates_of

BATCH_BYTES = 24.0
"""Of a batch in a stored outbox, beside its rows: its number and watermark."""
RECEIVER_BYTES = 6.0
"""Of each receiver of a batch: who it is, how many rows it got, and what Arrow's columns are padded with."""
SNAPSHOT_BYTES = 520.0
"""Of each edge in a snapshot: the header, and the schema of some columns."""
DURABLE_EVERY = 5
"""Every so many checkpoints of the segment with the longest interval, all segments save one batch, whole."""
_KINDS = list(Partitioning)


def pairs_of(topology: Topology) -> Ints:
    """Return how many pairs of partitions every link connects."""
    one, other = topology.parallelism[topology.link_from], topology.parallelism[topology.link_to]
    full = np.array([_KINDS[int(kind)] is Partitioning.FULL for kind in topology.link_kind], bool)
    return np.where(full, one * other, np.maximum(one, other))


def framing(topology: Topology, batches_per_second: float) -> Floats:
    """Return what is written down of every link beside its rows, in bytes per second."""
    senders = topology.parallelism[topology.link_from]
    return batches_per_second * (BATCH_BYTES * senders + RECEIVER_BYTES * pairs_of(topology))


def framing_by_operator(topology: Topology, batches_per_second: float) -> Floats:
    """Return the same for all that reaches each operator."""
    found = np.zeros(len(topology.operators))
    np.add.at(found, topology.link_to, framing(topology, batches_per_second))
    return found


def stored_edges(
    topology: Topology,
    segment: Sequence[int],
    interval: Sequence[float],
    batches_per_second: float,
    *,
    durable_every: int = DURABLE_EVERY,
) -> Floats:
    """Return what snapshots hold of sent rows, in bytes per second, per operator that sends.

    `segment` numbers the segment of each operator, `interval` has the seconds between two of its checkpoints.
    """
    size = len(topology.operators)
    rate = np.bincount(topology.operator_of, rates_of(topology).output, minlength=size)
    bytes_of = np.array([operator.tuple_bytes for operator in topology.operators], float)
    frames, found = framing(topology, batches_per_second), np.zeros(size)
    period = durable_every * max(float(one) for one in interval)
    consumers: list[list[int]] = [[] for _ in range(size)]
    for link, source in enumerate(topology.link_from.tolist()):
        consumers[source].append(link)
    for sender, links in enumerate(consumers):
        targets = [int(topology.link_to[link]) for link in links]
        if all(segment[one] == segment[sender] for one in targets):
            continue
        held, snapshots = _held(float(interval[sender]), [float(interval[one]) for one in targets], period)
        sent = sum(rate[sender] * bytes_of[target] + frames[link] for target, link in zip(targets, links, strict=True))
        edges = len(links)
        if topology.operators[sender].output:  # its sink's rows are in the same outbox
            sent += rate[sender] * max(bytes_of[one] for one in targets)
            sent += batches_per_second * topology.parallelism[sender] * (BATCH_BYTES + RECEIVER_BYTES)
            edges += 1
        found[sender] = held * sent + snapshots * SNAPSHOT_BYTES * edges * topology.parallelism[sender]
    return found


def _held(own: float, others: Sequence[float], period: float) -> tuple[float, float]:
    """Return the seconds of output that snapshots hold, per second, and the snapshots per second.

    From one durable checkpoint to the next: both begin level, and the last snapshot is whole.
    """
    marks = [own * number for number in range(1, round(period / own) + 2) if own * number < period * (1 - 1e-6)]
    held, before = 0.0, 0.0
    for at in [*marks, period]:
        # At the moment of a mark of both, the consumer has not saved yet.
        passed = min(other * (np.ceil(at / other * (1 - 1e-9)) - 1) for other in others)
        held += at - passed if at == period else at - max(passed, before)
        before = at
    return float(held) / period, (len(marks) + 1) / period

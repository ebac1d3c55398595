"""Which offsets of a topic its brokers may delete soon: by age, size, and how the beginning moves. Driver; pure.

Brokers delete whole segments, the oldest first, while at least `retention.bytes` are left behind them. So a record is
safe as long as fewer bytes than that come after it. Brokers tell no bytes of offsets: they are estimated from above.

- *By the size of records*: as they were sampled uncompressed, so that the brokers have fewer.
- *Once a beginning has moved on*: a topic partition then has about `retention.bytes` and one segment at most.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.runtime.io.offset_tracker import PartitionSeen

SAFE_BYTES = 0.5
"""Of the bytes that a topic keeps: where more come after a record, it is copied if it is still needed."""
MARGIN = 4
"""So many times as far as the beginning of a topic partition has moved on, it may move on next."""


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """What a topic's settings say about records that go."""

    seconds: float | None = None
    """After which records go; None: not by age."""
    bytes: int | None = None
    """That are kept of each topic partition; None: records do not go by size."""
    segment_bytes: int = 0
    """That one segment has at most."""
    compacted: bool = False


def first_kept_by_size(seen: PartitionSeen, kept: TopicRetention, record_bytes: float) -> int | None:
    """Return the first offset of a topic partition that does not go soon by its size; None: nothing goes by size.

    `record_bytes`: what a record has at most, about.
    """
    if kept.bytes is None:
        return None
    stay = SAFE_BYTES * kept.bytes / max(1.0, record_bytes)
    if seen.earliest > 0:
        most = max(1, kept.bytes + kept.segment_bytes)
        stay = min(stay, (seen.end - seen.earliest) * SAFE_BYTES * kept.bytes / most)
    return seen.end - int(stay)


def moves_to(earliest: int, before: int, known: int) -> int:
    """Return the offset up to which the beginning may move on next, as it did last.

    `before`: where the topic partition began at the look before. `known`: what this returned then. It holds until the
    beginning is there: that the beginning stands still for a while does not make the records behind it any safer.
    """
    moved = earliest - before
    return max(known, earliest + MARGIN * moved) if moved > 0 else known


def soon_gone(
    needed: int,
    earliest: int,
    *,
    reach: int = 0,
    aged: int | None = None,
    sized: int | None = None,
    compacted: bool = False,
) -> bool:
    """Whether the record at an offset that is still needed may go soon.

    `reach`: up to where the beginning may move on next. `aged`, `sized`: the first offsets that are young enough, and
    near enough to the end; None: nothing goes by age, or by size.
    """
    first_safe = max(earliest, reach, 0 if aged is None else aged, 0 if sized is None else sized)
    return compacted or needed < first_safe

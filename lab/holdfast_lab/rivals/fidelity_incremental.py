"""The metric of PPA kept up to date while partitions fail and come back one at a time. Runs anywhere.

A change is carried downstream level by level, to the groups that contain a changed partition and the partitions that
read such a group, and no further than values really change. A full fan is one group: whatever its number of task edges,
a change crosses it in one vector step over its targets. Once a change has spread widely, the levels below are swept
whole, which is then cheaper than looking for what changes. Group values are summed anew rather than corrected, so
errors do not add up over many changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from holdfast.planning.replicas.fidelity import LossModel, Mask
from holdfast.topology import Floats, Ints

WIDE = 48
"""From so many changed inputs in one level on, sweeping the levels below beats finding out what changes there."""
STEP_WORK = 12_000
"""Finding out what changes in one level takes about as long as sweeping so many inputs (measured)."""


class IncrementalFidelity:
    """One changing set of working partitions and its metric."""

    def __init__(self, model: LossModel, alive: Mask | None = None) -> None:
        """Start with these partitions working; with all by default."""
        self.model = model
        count = len(model.topology)
        self._alive = np.ones(count, bool) if alive is None else alive.copy()
        self._kept, self._brought, self._group_kept = model.sweep(self._alive)
        order = np.argsort(model.member, kind="stable")
        self._reads: Ints = model.member_group[order]
        """Groups that contain each partition; those of p begin at `_reads_start[p]`."""
        self._reads_start = _starts(model.member, count)
        self._targets: Ints = np.argsort(model.stream_group, kind="stable")
        """Streams that read each group; those of g begin at `_targets_start[g]`."""
        self._targets_start = _starts(model.stream_group, len(model.group_level))
        self._level = model.topology.level
        self._lost = count - int(self._alive.sum())
        work = [level.members.stop - level.members.start + len(level.streams) for level in model.levels]
        self._sweep_is_cheaper = [sum(work[at:]) <= STEP_WORK * (len(work) - at) for at in range(len(work) + 1)]

    @property
    def alive(self) -> Mask:
        """Which partitions work now; a copy."""
        return self._alive.copy()

    @property
    def value(self) -> float:
        """The metric now."""
        if self._lost == 0:
            return 1.0
        return min(1.0, max(0.0, float(self.model.weight @ self._kept)))

    @property
    def kept(self) -> Floats:
        """What each partition keeps now; a copy."""
        return self._kept.copy()

    def fail(self, partition: int) -> float:
        """Let a partition fail; return the metric after that."""
        return self.change((partition,), works=False)

    def restore(self, partition: int) -> float:
        """Let a partition work again; return the metric after that."""
        return self.change((partition,), works=True)

    def change(self, partitions: Iterable[int], *, works: bool) -> float:
        """Let partitions fail or work, all at once; return the metric after that."""
        given = np.unique(np.fromiter(partitions, np.int64))
        given = given[self._alive[given] != works]
        self._alive[given] = works
        self._lost += -len(given) if works else len(given)
        levels = self._level[given]
        pending: dict[int, list[Ints]] = {int(one): [given[levels == one]] for one in np.unique(levels)}
        while pending:
            level = min(pending)
            touched = np.unique(np.concatenate(pending.pop(level)))
            if len(touched) > WIDE or self._sweep_is_cheaper[level]:
                self.model.sweep_from(level, self._alive, self._kept, self._brought, self._group_kept)
                break
            kept = self._brought[touched] * self._alive[touched]
            changed = touched[kept != self._kept[touched]]
            self._kept[touched] = kept
            for reached in self._carry(changed):
                pending.setdefault(int(self._level[reached[0]]), []).append(reached)
        return self.value

    def _carry(self, changed: Ints) -> list[Ints]:
        """Bring the groups and inputs that depend on changed partitions up to date; return whose inputs changed."""
        model = self.model
        groups = np.unique(self._reads[_ranges(self._reads_start, changed)])
        if not len(groups):
            return []
        members = _ranges(model.group_start, groups)
        width = model.group_start[groups + 1] - model.group_start[groups]
        starts = np.cumsum(width) - width
        self._group_kept[groups] = np.add.reduceat(
            self._kept[model.member[members]] * model.member_weight[members], starts
        )
        streams = self._targets[_ranges(self._targets_start, groups)]
        readers = np.unique(model.topology.stream_to[streams])
        self._brought[readers] = self._combined(readers)
        levels = self._level[readers]
        return [readers[levels == one] for one in np.unique(levels)]

    def _combined(self, readers: Ints) -> Floats:
        model = self.model
        streams = _ranges(model.topology.stream_start, readers)
        width = model.topology.stream_start[readers + 1] - model.topology.stream_start[readers]
        starts = np.cumsum(width) - width
        values = self._group_kept[model.stream_group[streams]]
        union: Floats = np.add.reduceat(values * model.stream_weight[streams], starts)
        joins = model.joins[readers]
        single = width == 1
        union = np.where(single, values[starts], union)
        if (joins & ~single).any():
            union = np.where(joins, np.multiply.reduceat(values, starts), union)
        return union


def _starts(values: Ints, count: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(values, minlength=count))]).astype(np.int64)


def _ranges(start: Ints, chosen: Ints) -> Ints:
    """Return the numbers of several ranges `start[i] : start[i + 1]`, one after the other."""
    width = start[chosen + 1] - start[chosen]
    before = np.cumsum(width) - width
    found: Ints = np.arange(int(width.sum())) + np.repeat(start[chosen] - before, width)
    return found

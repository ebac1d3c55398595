"""What a plan must reach, in the words of users, and what is assumed where nothing was measured. Pure; runs anywhere.

`Targets` is what users say: how soon queries are back, what it may cost, which losses it must hold for. `Assumptions`
is what the model needs besides and nobody says: bandwidths, fixed times, nodes. A profile has most of it; `sources` of
an assumption says whether it was measured, given or assumed, and every explanation prints it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from holdfast.application.durations import seconds
from holdfast.errors import BadInput
from holdfast.planning.profiles.run_profile import profile_field
from holdfast.planning.replicas.budget import ReplicaBudget

DEFAULT_OVERHEAD = 0.05
"""The share of the bandwidth that checkpoints and kept outputs may take where nothing is said."""
NO_REPLICAS = ReplicaBudget(count=0)


@dataclass(frozen=True, slots=True)
class Targets:
    """Recovery times by priority, overhead, losses to survive, replicas. Made by `targets`."""

    recovery: tuple[tuple[int, float], ...] = ()
    """(priority, seconds): queries of this priority and above are back within so many seconds."""
    overhead: float | None = None
    """Share of the bandwidth for checkpoints, stored inputs and backups; None: 0.05."""
    survive: int = 0
    """Nodes that may be lost at once; 0: a partition that fails alone."""
    replicas: ReplicaBudget = NO_REPLICAS
    """Partitions that may run twice."""

    @property
    def overhead_limit(self) -> float:
        """The overhead that is allowed."""
        return DEFAULT_OVERHEAD if self.overhead is None else self.overhead

    def seconds_for(self, priority: int) -> float:
        """Return within how many seconds a query of a priority must be back; infinite: nothing is asked."""
        return min((within for least, within in self.recovery if priority >= least), default=math.inf)

    def document(self) -> dict[str, Any]:
        """Return the targets as a plan's document has them."""
        return {
            "recovery": {str(priority): within for priority, within in self.recovery},
            "overhead": self.overhead_limit,
            "survive": self.survive,
            "replicas": self.replicas.document(),
        }


def targets(
    *,
    recovery: Mapping[int, float | str] | None = None,
    overhead: float | None = None,
    survive: int = 0,
    replicas: float | str | ReplicaBudget = 0,
) -> Targets:
    """Say what a plan must reach: `hf.start(app, plan=hf.targets(…))`.

    `recovery` maps a priority to a time: queries of that priority and above are back within it. `overhead` is the
    share of the bandwidth that checkpoints, stored inputs and backups may take (0.05 by default), `survive` the nodes
    that may be lost at once, `replicas` the partitions that may run twice: `3` of them, a share (`0.2`; `1.0` is all),
    or `"4 cores"`, as `spark.holdfast.replicas.budget` has it.

    >>> import holdfast as hf
    >>> hf.targets(recovery={5: "20 seconds", 1: 60}, overhead=0.05, survive=2).recovery
    ((1, 60.0), (5, 20.0))
    """
    times = []
    for priority, given in sorted((recovery or {}).items()):
        if isinstance(priority, bool) or not isinstance(priority, int) or priority < 1:
            raise BadInput(
                f"{priority!r} is not a priority", field="targets.recovery", remedy='write {5: "20 seconds"}'
            )
        times.append((priority, _seconds(given, f"targets.recovery[{priority}]")))
    if overhead is not None and not (_is_number(overhead) and 0 < overhead <= 1):
        raise BadInput(f"{overhead!r} is not a share", field="targets.overhead", remedy="give above 0, up to 1")
    if isinstance(survive, bool) or not isinstance(survive, int) or survive < 0:
        raise BadInput(f"{survive!r} is not a number of nodes", field="targets.survive", remedy="give 0 or more")
    try:
        budget = ReplicaBudget.of(replicas)
    except ValueError:
        raise BadInput(
            f"{replicas!r} is not a budget of replicas",
            field="targets.replicas",
            remedy="give 0.2 for a fifth of the partitions (1.0: all), 3 for three, or '4 cores'",
        ) from None
    return Targets(tuple(times), overhead, survive, budget)


def recovery_times(words: Iterable[str]) -> dict[int, float | str]:
    """Read `5:20 1:60` as options give it: queries of priority 5 and above are back in 20 s."""
    times: dict[int, float | str] = {}
    for one in words:
        priority, colon, within = one.partition(":")
        try:
            times[int(priority)] = float(within)
        except ValueError:
            colon = ""
        if not colon:
            raise BadInput(
                f"{one!r} is not a priority and seconds",
                field="--recovery",
                remedy="write 5:20 for: priority 5 and above back in 20 s",
            )
    return times


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


def _seconds(given: float | str, field_name: str) -> float:
    length = seconds(given, field=field_name) if isinstance(given, str) else given
    if not _is_number(length) or length <= 0:
        raise BadInput(f"{given!r} is not a time", field=field_name, remedy='give seconds, or like "20 seconds"')
    return float(length)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the model needs besides a topology. Seconds, bytes, bytes per second."""

    bandwidth: float = 50e6
    """What checkpoints and stored inputs may be written with, all nodes together."""
    disk_bandwidth: float = 200e6
    """What backups are charged with: their bytes are appended to journals anyway, and stay longer."""
    restore_bandwidth: float = 50e6
    """Into the node that restores a partition."""
    code_rate: float = 500e6
    """Bytes of state recomputed from fragments per second."""
    snapshot_seconds: float = 0.005
    """What one snapshot of one partition takes besides its bytes."""
    fixed_seconds: float = 3.0
    """From a failure to the first restore: detection and plan."""
    takeover_seconds: float = 1.0
    """Until a replica's output takes the place of the failed partition's, after detection."""
    batches_per_second: float = 0.0
    """Each costs some bytes of every stored edge, beside its rows; 0: not known, and not counted."""
    nodes: int = 0
    """Nodes of the cluster; 0: not known."""
    cores: float = math.inf
    """Cores that partitions may use on a node, in the unit of their costs; infinite: not known."""
    bound: float = 0.8
    least_interval: float = 2.0
    greatest_interval: float = 600.0
    """Seconds between checkpoints, at least and at most."""
    base_interval: float | None = None
    """The checkpoint interval at which `reprocess_seconds` were measured; None: they hold for any."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where a value is from, if not assumed: `measured` or `given`."""

    def given(self, **values: float | None) -> Assumptions:
        """Return these with the values that are given; None: as it was."""
        known = {name: value for name, value in values.items() if value is not None}
        for name, value in known.items():
            if not (_is_number(value) and value > 0):
                raise BadInput(f"{value!r} must be above zero", field=name.replace("_", "-"), remedy="give a number")
        marks = {**self.sources, **dict.fromkeys(known, "given")}
        return replace(self, **known, sources=marks)  # type: ignore[arg-type]

    def document(self) -> dict[str, Any]:
        """Return every assumption with its value and where it is from."""
        found = {}
        for one in fields(self):
            if one.name != "sources":
                value = getattr(self, one.name)
                value = None if isinstance(value, float) and math.isinf(value) else value
                found[one.name] = {"value": value, "from": self.sources.get(one.name, "assumed")}
        return found

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Assumptions:
        """Read what `document` wrote."""
        names = {one.name for one in fields(cls)} - {"sources"}
        values, marks = {}, {}
        for name, entry in document.items():
            if name not in names or not isinstance(entry, Mapping):
                continue
            if entry.get("value") is not None:
                values[name] = entry["value"]
            marks[name] = str(entry.get("from", "assumed"))
        return cls(**values, sources={name: mark for name, mark in marks.items() if mark != "assumed"})


def assumptions_of(measured: Mapping[str, Any] | None) -> Assumptions:
    """Take from a profile what it has; the rest is assumed.

    Restores are charged once. Where a bandwidth was measured, it holds for whole restores. Else only small states were
    restored, and what that took comes to the fixed time, which stays an assumption: detection was not measured.
    """
    values: dict[str, Any] = {}
    restore = profile_field(measured, "restore_seconds")
    if (bandwidth := profile_field(measured, "restore_bandwidth")) is not None and bandwidth > 0:
        values["restore_bandwidth"], restore = bandwidth, None
    interval = profile_field(measured, "checkpoint_interval_seconds")
    if interval is not None and interval > 0:
        values["base_interval"] = interval
    if (batches := profile_field(measured, "batches_per_second")) is not None and batches > 0:
        values["batches_per_second"] = batches
    nodes = (measured or {}).get("nodes")
    if isinstance(nodes, Mapping) and nodes:
        values["nodes"] = len(nodes)
        sizes = [size for size in nodes.values() if isinstance(size, int | float)]
        if len(sizes) == len(nodes):
            values["cores"] = float(min(sizes))
    found = replace(Assumptions(), **values, sources=dict.fromkeys(values, "measured"))
    return found if restore is None else replace(found, fixed_seconds=found.fixed_seconds + restore)

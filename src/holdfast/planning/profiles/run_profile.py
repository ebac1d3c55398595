"""What a run measured, and the topology file that follows from it. Pure; runs anywhere.

A `RunProfile` has figures per partition over a sliding period, and of the run: checkpoints, restores, failures, nodes.
`profiled` writes them over the declared values of a topology. What was not measured stays as declared and is named, so
that nobody takes a default for a measurement. The document is a topology file with one more field, `measured`.

**T(v)**, the time in which a partition reprocesses what came since its checkpoint: a failure comes half-way between two
checkpoints on average (FTC), so T(v) is the processing time of half an interval's batches. Where the partition has
replayed batches, by the time these took (`replayed`); else by the time of its ordinary batches (`estimated`).

**Failure rates** have a prior, one failure in 30 days: a run of an hour without a failure says little, and a rate of
zero would plan for none. With n incidents of an operator in t seconds its rate is (1 + n) / (30 days + t).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.profiles.sliding import Sums
from holdfast.topology import Operator, Topology, fingerprint

PRIOR_SECONDS = 30 * 86400.0
"""How long an operator is taken to have run with one failure before anything was measured."""
DIGITS = 6
"""Of measured numbers in a file."""


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    """What one partition was measured to do. None: it was not measured."""

    work: Sums
    """All batches of the period, replayed ones too."""
    steady: Sums
    """Batches at the pace of the sources: these have rates."""
    replay: Sums
    """Batches that it replayed, or caught up with."""
    state_bytes: int = 0

    @property
    def cores(self) -> float | None:
        """The share of a core that it uses at the pace of its sources."""
        return None if self.steady.seconds <= 0 else self.steady.cpu_seconds / self.steady.seconds

    def reprocess_seconds(self, interval: float | None) -> tuple[float, str] | None:
        """Return T(v) for checkpoints so many seconds apart, and from what it was taken; None: not known."""
        steady, replay = self.steady, self.replay
        if interval is None or steady.seconds <= 0 or not steady.batches:
            return None
        batches = steady.batches / steady.seconds * interval / 2
        if replay.batches:
            return batches * replay.busy_seconds / replay.batches, "replayed"
        return batches * steady.busy_seconds / steady.batches, "estimated"


@dataclass(frozen=True, slots=True)
class FragmentProfile:
    """Where restored state came from, and what the model of fragments predicted of it."""

    bytes_from_peers: int = 0
    bytes_from_folder: int = 0
    bytes_from_node: int = 0
    restores: int = 0
    """Of partitions, from fragments, that the averages below are taken over."""
    predicted_seconds: float | None = None
    measured_seconds: float | None = None
    codes: tuple[Mapping[str, Any], ...] = ()
    """The codes that agents have chosen, by node and size of state; none where the run fixes the code."""

    def written(self) -> dict[str, Any]:
        """Return it as a profile has it."""
        return {
            "bytes_from_peers": self.bytes_from_peers,
            "bytes_from_folder": self.bytes_from_folder,
            "bytes_from_node": self.bytes_from_node,
            "restores": self.restores,
            "predicted_seconds": _short(self.predicted_seconds),
            "measured_seconds": _short(self.measured_seconds),
            "codes": [dict(one) for one in self.codes],
        }


@dataclass(frozen=True, slots=True)
class RunProfile:
    """What a run was measured to do."""

    at: float
    """When, in seconds since 1970."""
    period: float
    """The sliding period, in seconds."""
    partitions: Mapping[PartitionId, PartitionProfile]
    placement: Mapping[PartitionId, str] = field(default_factory=dict)
    nodes: Mapping[str, float | None] = field(default_factory=dict)
    """Capacity of every node in cores; None: no limit."""
    checkpoint_interval: float | None = None
    """Seconds between two complete checkpoints of the same segment."""
    checkpoint_seconds: float | None = None
    """From a mark to the complete checkpoint; the stream continues meanwhile."""
    checkpoint_bytes: float | None = None
    """Bytes of state written for one checkpoint."""
    snapshots: int = 0
    """Of single partitions, since the driver began, that the two averages below are taken over."""
    snapshot_bytes: float | None = None
    """With the sent blocks that it holds."""
    snapshot_cpu_seconds: float | None = None
    """To write one down; coding and sending are the agents'."""
    restores: int = 0
    restore_seconds: float | None = None
    """Of one partition: fetched and put in place, on average."""
    restore_bandwidth: float | None = None
    """Bytes of state per second that one partition's restore takes; None: no state was restored."""
    observed_seconds: float = 0.0
    """How long failures were counted."""
    incidents: Mapping[str, int] = field(default_factory=dict)
    """Failures that took partitions of an operator, by operator."""
    paced: bool = True
    """Whether rows came at the pace of their sources. If not, rates, cores and T(v) mean nothing, and nobody watched
    for failures."""
    fragments: FragmentProfile = field(default_factory=FragmentProfile)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How the run runs: what its plans are compared with."""

    @property
    def batches_per_second(self) -> float | None:
        """Batches at the pace of the sources; None: not measured."""
        known = [one.steady for one in self.partitions.values() if one.steady.seconds > 0 and one.steady.batches]
        if not self.paced or not known:
            return None
        return sum(one.batches for one in known) / sum(one.seconds for one in known)

    def failure_rate(self, operator: str) -> float:
        """Return failures per second of an operator, with the prior."""
        return (1 + self.incidents.get(operator, 0)) / (PRIOR_SECONDS + self.observed_seconds)


def profiled(topology: Topology, profile: RunProfile) -> tuple[Topology, dict[str, Any]]:
    """Return the topology with measured values, and what the file says of the measurement (`measured`)."""
    operators, missing, reprocessed = [], {}, {}
    for operator in topology.operators:
        found, kinds = _operator(operator, profile)
        operators.append(found)
        if kinds.missing:
            missing[str(operator.id)] = kinds.missing
        if kinds.reprocess is not None:
            reprocessed[str(operator.id)] = kinds.reprocess
    made = Topology(topology.name, operators)
    return made, {
        "identity": fingerprint(made),
        "at": round(profile.at, 3),
        "period_seconds": profile.period,
        "batches_per_second": _short(profile.batches_per_second),
        "checkpoint_interval_seconds": _short(profile.checkpoint_interval),
        "checkpoint_seconds": _short(profile.checkpoint_seconds),
        "checkpoint_bytes": _short(profile.checkpoint_bytes),
        "restores": profile.restores,
        "restore_seconds": _short(profile.restore_seconds),
        "restore_bandwidth": _short(profile.restore_bandwidth),
        "snapshots": profile.snapshots,
        "snapshot_bytes": _short(profile.snapshot_bytes),
        "snapshot_cpu_seconds": _short(profile.snapshot_cpu_seconds),
        "fragments": profile.fragments.written(),
        "observed_seconds": round(profile.observed_seconds, 3),
        "incidents": dict(profile.incidents),
        "reprocess": reprocessed,
        "not_measured": missing,
        "nodes": dict(profile.nodes),
        "placement": {str(p): node for p, node in profile.placement.items()},
        "settings": dict(profile.settings),
    }


@dataclass(slots=True)
class _Kinds:
    missing: list[str] = field(default_factory=list)
    reprocess: str | None = None


def _operator(operator: Operator, profile: RunProfile) -> tuple[Operator, _Kinds]:
    ids = [PartitionId(operator.id, index) for index in range(operator.parallelism)]
    known = [profile.partitions.get(p) for p in ids]
    kinds, values = _Kinds(), {}
    work, steady = Sums(), Sums()
    for one in known:
        if one is not None:
            work.add(one.work)
            if profile.paced:
                steady.add(one.steady)
    seconds = steady.seconds / max(1, sum(one is not None and one.steady.seconds > 0 for one in known))
    if work.rows_in:
        values["selectivity"] = _short(work.rows_out / work.rows_in)
        values["tuple_seconds"] = _short(work.busy_seconds / work.rows_in)
        if work.bytes_in:
            values["tuple_bytes"] = _short(work.bytes_in / work.rows_in)
        if operator.parallelism > 1:
            # A partition that got no rows in the period still gets some: a share of zero would say never.
            values["weights"] = tuple(float((0 if one is None else one.work.rows_in) + 1) for one in known)
    else:
        kinds.missing += ["selectivity", "tuple_seconds", "tuple_bytes"]
    if operator.is_source:
        if seconds > 0:
            values["rate"] = _short(steady.rows_in / seconds)
        else:
            kinds.missing.append("rate")
    if any(one is not None for one in known):
        values["state_bytes"] = float(sum(one.state_bytes for one in known if one is not None))
    cores = [None if one is None or not profile.paced else one.cores for one in known]
    if all(one is not None for one in cores):
        values["cost"] = tuple(max(1e-6, _short(one)) for one in cores if one is not None)
    else:
        kinds.missing.append("cost")
    interval = profile.checkpoint_interval if profile.paced else None
    times = [None if one is None else one.reprocess_seconds(interval) for one in known]
    measured = [one for one in times if one is not None]
    if len(measured) == len(times):
        values["reprocess_seconds"] = tuple(_short(one[0]) for one in measured)
        kinds.reprocess = "replayed" if any(one[1] == "replayed" for one in measured) else "estimated"
    else:
        kinds.missing.append("reprocess_seconds")
    if profile.paced or not operator.failure_rate:  # without a run, the prior stands where nothing is declared
        values["failure_rate"] = _short(profile.failure_rate(str(operator.id)))
    else:
        kinds.missing.append("failure_rate")
    return replace(operator, **values), kinds


def _short(value: Any) -> Any:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def profile_field(measured: Mapping[str, Any] | None, name: str) -> float | None:
    """Return a number that a run measured; None where it did not, or where the file is a declaration."""
    value = None if measured is None else measured.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise BadInput(
            f"must be a number of zero or more, not {value!r}",
            field=f"measured.{name}",
            remedy="write the profile again with `holdfast profile`",
        )
    return float(value)

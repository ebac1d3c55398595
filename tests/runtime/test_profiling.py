"""What the coordinator measures for planners: over a sliding period, at the pace of the sources, with moved clocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.drill import chain
from holdfast.errors import BadInput
from holdfast.ids import BatchId, NodeId, PartitionId, SegmentId
from holdfast.planning.profiles.run_profile import PRIOR_SECONDS, profiled
from holdfast.planning.profiles.sliding import SlidingSums, Sums
from holdfast.recovery.effects import Changed, GlobalCheckpoint
from holdfast.recovery.states import Cause, PartitionState
from holdfast.runtime.coordinator.profile_records import EVERY_SECONDS, ProfileRecords, last_profile
from holdfast.runtime.coordinator.profiling import ENOUGH_SECONDS, LEAST_COST, Profiler
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.messages import Measures
from holdfast.storage.memory import MemoryStorage
from holdfast.topology import Input, Operator, Partitioning, Topology, from_document, to_document

S, A = PartitionId.parse("s[0]"), PartitionId.parse("a[0]")
N1, N2 = NodeId("n1"), NodeId("n2")
TOPOLOGY = Topology("t", [Operator("s"), Operator("a", inputs=(Input("s", Partitioning.ONE_TO_ONE),))])  # type: ignore[arg-type]


def changed(partition: PartitionId, before: PartitionState, after: PartitionState) -> Changed:
    return Changed(partition, before, after, Cause.NODE_LOST, N1)


def measured(rows: int, *, cpu: float = 0.0, seconds: float = 0.0, state: int = 0) -> Measures:
    return Measures(rows, rows // 2, 0, seconds, state, state, cpu, rows * 10)


def run(profiler: Profiler, begin: int, end: int, rows: int, cpu: float = 0.1, *, steady: bool = True) -> None:
    """A batch a second, in both partitions."""
    for second in range(begin, end):
        for partition in (S, A):
            one = measured(rows, cpu=cpu, seconds=cpu, state=1000)
            profiler.reported(float(second), partition, one, 1, steady=steady)


@given(st.lists(st.tuples(st.floats(0.01, 50), st.integers(0, 100)), min_size=1, max_size=60))
def test_a_sliding_sum_has_the_last_period_and_at_most_a_bucket_more(steps: list[tuple[float, int]]) -> None:
    sliding = SlidingSums(100.0)
    for seconds, rows in steps:
        sliding.add(Sums(seconds=seconds, rows_in=rows))
    total = sliding.total
    assert total.seconds >= min(100.0, sum(seconds for seconds, _ in steps)) - 1e-9
    assert total.seconds <= 100.0 + 10.0 + 2 * max(seconds for seconds, _ in steps)
    tail, count = 0.0, 0
    for seconds, rows in reversed(steps):
        tail, count = tail + seconds, count + rows
        if tail >= total.seconds - 1e-9:
            break
    assert total.rows_in == count, "whole steps, the newest"


def test_rates_follow_the_period_and_not_the_whole_run() -> None:
    profiler = Profiler([S, A], 0.0, period=60.0)
    run(profiler, 0, 600, 100)
    run(profiler, 600, 700, 900)
    found, about = profiled(TOPOLOGY, profiler.profile(700.0, 0.0, {}, {}))
    assert found.operators[0].rate == pytest.approx(900, rel=0.01)
    assert found.operators[1].selectivity == 0.5
    assert found.operators[1].tuple_bytes == 10
    assert found.operators[0].state_bytes == 1000
    assert about["not_measured"] == {"s": ["reprocess_seconds"], "a": ["reprocess_seconds"]}, "no checkpoint yet"


def test_a_partition_that_is_down_is_described_by_the_time_before() -> None:
    profiler = Profiler([S, A], 0.0, period=60.0)
    run(profiler, 0, 100, 100, cpu=0.5)
    profiler.took_effect(100.0, [changed(A, PartitionState.RUNNING, PartitionState.LOST)])
    for second in range(100, 1000):
        profiler.reported(float(second), S, measured(100, cpu=0.5), 1, steady=True)
    costs = profiler.costs({S: N1}, {N1: 8.0}, 0.8)
    assert costs == {S: pytest.approx(0.5, rel=0.02), A: LEAST_COST}, "never placed while it was measured"
    profiler = Profiler([S, A], 0.0, period=60.0)
    run(profiler, 0, 100, 100, cpu=0.5)
    profiler.costs({S: N1, A: N1}, {N1: 8.0}, 0.8)
    profiler.took_effect(100.0, [changed(A, PartitionState.RUNNING, PartitionState.LOST)])
    assert profiler.costs({S: N1}, {N1: 8.0}, 0.8)[A] == pytest.approx(0.5, rel=0.02)


def test_costs_wait_for_enough_and_a_backlog_does_not_count() -> None:
    profiler = Profiler([S, A], 0.0)
    run(profiler, 0, int(ENOUGH_SECONDS) - 5, 100)
    assert set(profiler.costs({S: N1, A: N1}, {N1: 1.0}, 0.8).values()) == {LEAST_COST}
    run(profiler, int(ENOUGH_SECONDS) - 5, 200, 100, cpu=1.0, steady=False)
    assert set(profiler.costs({S: N1, A: N1}, {N1: 1.0}, 0.8).values()) == {LEAST_COST}
    run(profiler, 200, 300, 100, cpu=0.25)
    assert profiler.costs({S: N1, A: N1}, {N1: 1.0}, 0.8)[S] == pytest.approx(0.25, rel=0.3)


@given(
    st.lists(st.floats(0.0, 3.0), min_size=2, max_size=8),
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
    st.sampled_from([0.5, 1.0, 4.0]),
)
def test_what_a_node_has_been_carrying_fits_on_a_node_like_it(
    cores: list[float], homes: list[int], capacity: float
) -> None:
    partitions = [PartitionId.parse(f"p[{number}]") for number in range(len(cores))]
    placement = {p: NodeId(f"n{home}") for p, home in zip(partitions, homes, strict=False)}
    profiler = Profiler(partitions, 0.0)
    for second in range(40):
        for p, share in zip(partitions, cores, strict=True):
            profiler.reported(float(second), p, Measures(cpu_seconds=share), 1, steady=True)
    nodes = {NodeId(f"n{home}"): capacity for home in range(3)}
    for _ in range(2):  # scaling twice must not scale further
        costs = profiler.costs(placement, nodes, 0.8)
        load: dict[NodeId, float] = {}
        for p, node in placement.items():
            load[node] = load.get(node, 0.0) + costs[p] - LEAST_COST
        assert all(sum_ <= 0.8 * capacity + 1e-9 for sum_ in load.values())
    for p, share in zip(partitions, cores, strict=True):
        busy = sum(c for q, c in zip(partitions, cores, strict=True) if placement[q] == placement[p]) * 40 / 39
        if busy < 0.8 * capacity:
            assert costs[p] == pytest.approx(max(LEAST_COST, share * 40 / 39), abs=2e-6), "room enough: as measured"


def test_t_is_half_an_interval_of_replayed_batches_or_else_of_ordinary_ones() -> None:
    profiler = Profiler([S, A], 0.0)
    for second in range(100):
        for p in (S, A):
            profiler.reported(float(second), p, measured(100, cpu=0.1, seconds=0.1), 1, steady=True)
        if second % 10 == 9:
            profiler.marked(float(second), BatchId(second))
            profiler.took_effect(second + 2.0, [GlobalCheckpoint(BatchId(second), BatchId(0), BatchId(0))])
    found, about = profiled(TOPOLOGY, profiler.profile(100.0, 0.0, {}, {}))
    assert found.operators[1].reprocess_seconds == pytest.approx((0.5,), rel=0.03), "5 batches of 0.1 s"
    assert about["reprocess"] == {"s": "estimated", "a": "estimated"}
    assert about["checkpoint_interval_seconds"] == 10
    assert about["checkpoint_seconds"] == 2
    profiler.took_effect(100.0, [changed(A, PartitionState.RUNNING, PartitionState.LOST)])
    profiler.took_effect(101.0, [changed(A, PartitionState.LOST, PartitionState.RESTORING)])
    profiler.took_effect(103.0, [changed(A, PartitionState.RESTORING, PartitionState.CATCHING_UP)])
    profiler.reported(104.0, A, measured(1000, seconds=0.4, state=4000), 10, steady=False)
    found, about = profiled(TOPOLOGY, profiler.profile(104.0, 0.0, {}, {}))
    assert found.operators[1].reprocess_seconds == pytest.approx((0.2,), rel=0.03), "5 batches of 0.04 s"
    assert about["reprocess"] == {"s": "estimated", "a": "replayed"}
    assert (about["restores"], about["restore_seconds"]) == (1, 2)


def test_intervals_are_those_of_each_segment() -> None:
    """Two segments, each every ten seconds, complete at one moment at first: neither 0 s nor 5 s are an interval."""
    profiler = Profiler([S, A], 0.0)
    for second in range(100):
        for p in (S, A):
            profiler.reported(float(second), p, measured(100, cpu=0.1, seconds=0.1), 1, steady=True)
        for name, moment in (("s", 9), ("a", 9 if second < 20 else 4)):
            if second % 10 == moment:
                effect = GlobalCheckpoint(BatchId(second), BatchId(0), BatchId(0), (), (SegmentId(name),))
                profiler.took_effect(float(second), [effect])
        if second == 15:
            assert profiler.profile(15.0, 0.0, {}, {}).checkpoint_interval is None, "each was complete once"
    found, about = profiled(TOPOLOGY, profiler.profile(100.0, 0.0, {}, {}))
    assert about["checkpoint_interval_seconds"] == pytest.approx(10.0, rel=0.1)
    assert found.operators[1].reprocess_seconds == pytest.approx((0.5,), rel=0.1), "5 batches of 0.1 s"
    # Another plan, with one segment: its intervals begin anew.
    for second in (400, 430):
        profiler.took_effect(float(second), [GlobalCheckpoint(BatchId(second), BatchId(0), BatchId(0))])
    assert profiler._apart[-1] == 30.0
    assert len(profiler._apart) <= 32


def test_failures_are_counted_by_incident_and_outlive_the_driver() -> None:
    profiler = Profiler([S, A], 0.0)
    lost = [changed(p, PartitionState.RUNNING, PartitionState.LOST) for p in (S, A)]
    profiler.took_effect(10.0, lost)
    profiler.took_effect(20.0, lost[:1])
    _, about = profiled(TOPOLOGY, profiler.profile(1000.0, 0.0, {}, {}))
    assert about["incidents"] == {"s": 2, "a": 1}
    again = Profiler([S, A], 0.0, before=about)
    again.took_effect(1.0, lost[:1])
    found, about = profiled(TOPOLOGY, again.profile(500.0, 0.0, {}, {}))
    assert about["observed_seconds"] == 1500
    assert found.operators[0].failure_rate == pytest.approx(4 / (PRIOR_SECONDS + 1500), rel=1e-5)


def test_a_profile_is_a_topology_file_that_reads_back() -> None:
    profiler = Profiler([S, A], 0.0)
    run(profiler, 0, 100, 100)
    found, about = profiled(TOPOLOGY, profiler.profile(100.0, 12.0, {S: N1, A: N2}, {N1: math.inf, N2: 2.0}))
    document = to_document(found, about)
    assert from_document(document) == found
    assert document["measured"]["placement"] == {"s[0]": "n1", "a[0]": "n2"}
    assert document["measured"]["nodes"] == {"n1": None, "n2": 2.0}
    with pytest.raises(BadInput, match="measured: must be an object, not 3"):
        from_document(to_document(found) | {"measured": 3})


class FullStorage(MemoryStorage):
    """Takes nothing."""

    def create(self, name: str, data: object) -> bool:
        raise OSError(28, "No space left on device")


def test_records_stay_few_and_two_drivers_do_not_hinder_each_other() -> None:
    storage = MemoryStorage()
    document: Mapping[str, object] = {"holdfast": 1, "measured": {"incidents": {"s": 3}}}
    first, second = ProfileRecords(storage, 1), ProfileRecords(storage, 2)
    assert (first.before, first.due(0.0)) == (None, True)
    for number in range(20):
        (first if number % 3 else second).write(float(number), document | {"n": number})
    assert not first.due(19.0)
    assert first.due(19.0 + EVERY_SECONDS)
    assert (last_profile(storage) or {})["n"] == 19
    assert len(storage.list("profile/")) <= 3
    assert ProfileRecords(storage, 3).before == {"incidents": {"s": 3}}
    newest = storage.list("profile/")[-1]
    storage.delete([newest])
    storage.create(newest, b"torn")
    assert (last_profile(storage) or {})["n"] == 18, "a damaged record is passed over"
    with pytest.raises(OSError, match="No space"):
        ProfileRecords(FullStorage(), 1).write(0.0, document)


def test_what_snapshots_took_is_counted(tmp_path: Path) -> None:
    running = InProcess(chain.application(), directory=tmp_path, nodes=2, checkpoint_every=2)
    for batch in chain.batches(1, 2, 30):
        running.feed(batch)
    first = replace(running._coordinator.measuring.profiler.saved)
    for batch in islice(chain.batches(1, 4, 30), 2, None):
        running.feed(batch)
    saved = running._coordinator.measuring.profiler.saved
    assert first.snapshots >= len(running.program.partitions)
    assert saved.snapshots >= first.snapshots + len(running.program.partitions)
    assert saved.bytes > first.bytes > 0

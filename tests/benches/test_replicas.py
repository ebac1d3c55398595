"""What `bench replicas` makes of its turns and kills, without a cluster."""

from __future__ import annotations

from click.testing import CliRunner

from holdfast.cli.main import cli
from holdfast_lab.benches.streaming.cluster import Machine
from holdfast_lab.benches.streaming.replicas import Cost, Gap, Replicas, Turn
from holdfast_lab.benches.streaming.spread import median_with_interval
from holdfast_lab.commands.bench_replicas import print_replicas, replicas_document

MACHINE = Machine(2, 24.0, "4.3.0", 0.5)


def found() -> Replicas:
    one = median_with_interval([1.0])
    costs = (
        Cost(0.0, 0, median_with_interval([100.0]), one, one),
        Cost(1.0, 8, median_with_interval([80.0]), one, one),
    )
    gaps = [
        Gap(0.0, 0, "a[0]", True, False, 4.0),
        Gap(0.0, 0, "b[0]", False, False, 0.6),
        Gap(0.0, 1, "a[0]", True, False, 6.0),
        Gap(1.0, 0, "a[0]", True, True, 0.7),
        Gap(1.0, 0, "b[0]", False, False, 0.5),
    ]
    return Replicas("traffic", 8, 0.5, costs, (Turn(0.0, 0, 100, 2.0, 3.0),), tuple(gaps))


def test_gaps_are_told_apart_by_whether_the_query_was_hit_and_replicated() -> None:
    bench = found()
    without = bench.gap(0.0, hit=True, replicated=False)
    assert without is not None
    assert (without.median, without.low, without.high, without.count) == (5.0, 4.0, 6.0, 2)
    assert bench.gap(0.0, hit=True, replicated=True) is None, "nobody had a replica"
    replicated = bench.gap(1.0, hit=True, replicated=True)
    assert replicated is not None
    assert replicated.median == 0.7
    assert bench.turns[0].rows_per_second == 50.0


def test_rows_of_the_contract() -> None:
    written = replicas_document(found(), MACHINE, {"nodes": 4, "turns": 1, "kills": 2})
    assert [(one["workload"], one["side"], one["rows_per_second"]) for one in written["rows"]] == [
        ("traffic", "replicas-0", 100.0),
        ("traffic", "replicas-1", 80.0),
    ]
    assert written["rows"][0]["gap_seconds"]["replicated"] is None
    print_replicas(written, MACHINE)


def test_it_is_a_bench() -> None:
    told = CliRunner().invoke(cli, ["bench", "replicas", "--help"])
    assert told.exit_code == 0
    assert "gap" in told.output

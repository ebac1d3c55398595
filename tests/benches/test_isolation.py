"""What `bench isolation` makes of its turns, without a cluster."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.runtime.in_process import InProcess
from holdfast_lab.benches.streaming.cluster import Machine
from holdfast_lab.benches.streaming.isolation import Isolation, Turn, harmful, two_queries
from holdfast_lab.commands.bench_isolation import isolation_document, print_isolation


def measured(calm: tuple[float, ...], harmed: tuple[float, ...]) -> Isolation:
    turns = [Turn(False, (one,) * 100) for one in calm] + [Turn(True, (one,) * 100) for one in harmed]
    return Isolation("poison", tuple(turns), True, True, True, 3, 0, 0)


@pytest.mark.parametrize(
    ("harmed", "within"), [((0.2, 0.3, 0.4), True), ((0.3, 0.9, 2.0), True), ((0.4, 0.9, 2.0), False)]
)
def test_the_ranges_of_both_kinds_of_turns_are_compared(harmed: tuple[float, ...], within: bool) -> None:
    found = measured((0.1, 0.2, 0.3), harmed)
    assert found.within is within
    written = isolation_document([found], Machine(2, 16.0, "4.3.0", 1.0), {"turns": 3})
    (case,) = written["cases"]
    assert case["within_spread"] is within
    assert case["without"] == {"p50_ms": 200.0, "p99_ms": 200.0, "p99_range_ms": [100.0, 300.0]}


def test_it_is_printed_with_its_range(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(2, 16.0, "4.3.0", 1.0)
    given = {"nodes": 2, "turns": 3, "seconds": 20.0, "batches": 10.0, "rows": 100, "hold": 10.0}
    print_isolation(isolation_document([measured((0.1, 0.2), (0.15, 0.2))], machine, given), machine)
    printed = capsys.readouterr().out
    assert "150 (100 to 200)" in printed
    assert "exact" in printed


def test_the_poison_row_of_the_bench_is_quarantined() -> None:
    run = InProcess(two_queries("poison", 0.0))
    run.feed({"s": pa.table({"n": pa.array([0, 1, -3, 3], pa.int64())})})
    assert run.rows("high")["n"].to_pylist() == [0, 1, -3, 3]
    assert run.rows("low")["n"].to_pylist() == [0, 1, 3]
    letters = run.dead_letters("low")
    assert letters is not None
    assert letters["row"].to_pylist() == ['{"n": -3}']
    rows = pa.table({"n": [-1]})
    assert harmful("gil", 0.0, rows) is rows

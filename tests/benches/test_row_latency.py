"""Rows on a schedule, and the phases from their creation to the sink."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CheckFailed
from holdfast_lab.benches.streaming.cluster import this_machine
from holdfast_lab.benches.streaming.memory import Phase, Sample
from holdfast_lab.benches.streaming.row_latency import PHASES, RowLatency, RowTimes, Schedule, _Found, _Turn
from holdfast_lab.commands.bench_latency import rows_document


@given(st.integers(1, 100_000), st.integers(1, 500), st.integers(-(10**9), 10**10))
def test_a_row_exists_from_its_creation_on(rate: int, rows: int, later: int) -> None:
    schedule = Schedule(5 * 10**9, rate, rows)
    created, now = schedule.created(0, rows), schedule.start + later
    due = schedule.due(now)
    assert abs(due - int(np.count_nonzero(created <= now))) <= 1, "one row's rounding at most"
    assert np.array_equal(created[7:], schedule.created(7, max(0, rows - 7)))


def found_of(schedule: Schedule, *, lost: int = 0) -> _Found:
    found, created = _Found(), schedule.created(0, schedule.rows - lost)
    for first, part in enumerate(np.array_split(created, 2)):
        taken = int(part.max()) + 10
        rows = pa.table({"created": part, "processed": np.full(len(part), taken + 20 + first)})
        found.add(rows, taken, taken + 5, taken + 50)
    return found


def test_phases_add_up_to_the_whole_for_every_row() -> None:
    schedule = Schedule(1000, 1e6, 9)
    times = found_of(schedule).times(_Turn(schedule, 0, 1, 0.5))
    assert times.rows == 9
    created = np.concatenate(np.array_split(schedule.created(0, 9), 2))
    taken = np.concatenate([np.full(len(part), part.max() + 10) for part in np.array_split(created, 2)])
    assert np.array_equal(times.total, taken + 50 - created)
    assert np.array_equal(times.after_logging, np.full(9, 45))
    assert set(times.phases["logging"]) == {5}
    with pytest.raises(CheckFailed, match="9 rows were created and 8 came out"):
        found_of(schedule, lost=1).times(_Turn(schedule, 0, 1, 0.5))


def test_the_document_has_what_the_contract_says() -> None:
    def side(exchange: str, scale: int) -> RowLatency:
        phases = {name: np.full(4, scale * 1_000_000, np.int64) for name in PHASES}
        return RowLatency(exchange, 2, 1000.0, (RowTimes(phases, 2, 0.5, 0.1),) * 3)

    written = rows_document([side("resident", 1), side("shuffle", 3)], this_machine(), 4)
    first, second = written["rows"]
    assert (first["side"], first["p50_ms"], first["p99_ms"], first["ratio"]) == ("holdfast", 4.0, 4.0, 3.0)
    assert (second["side"], second["ratio"]) == ("shuffle", pytest.approx(1 / 3))
    assert sum(one["mean_ms"] for one in first["phases"].values()) == first["p50_ms"]
    assert (first["rows_per_second"], first["cpu_seconds_per_million_rows"]) == (8.0, pytest.approx(25_000))


def test_a_phase_of_memory_has_the_peaks_of_its_halves() -> None:
    samples = tuple(Sample(float(at), {"a": size}) for at, size in enumerate((3, 9, 4, 5)))
    phase = Phase("slow sink", 10, 4.0, samples)
    assert (phase.peak("a"), phase.halves("a"), phase.kinds) == (9, (9, 5), ("a",))

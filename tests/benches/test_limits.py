"""`bench limits` in tiny sizes: every side does the same work, and ratios are within a turn."""

from __future__ import annotations

import pytest

from holdfast_lab.benches.limits.exchange import measure_exchange
from holdfast_lab.benches.limits.operators import measure_operators
from holdfast_lab.benches.limits.sides import Measured, take_turns
from holdfast_lab.benches.limits.state import measure_state
from holdfast_lab.benches.streaming.cluster import this_machine
from holdfast_lab.commands.bench_limits import limits_document


def test_operators_give_the_rows_of_the_query_by_hand() -> None:
    """The measurement itself compares the rows, and fails where they differ."""
    found = measure_operators(300, 14, 1)
    assert set(found.seconds) == {"plain", "kernels", "host", "host in files"}
    assert found.ratio("plain").median == 1.0


def test_blocks_come_over_every_connection() -> None:
    found = measure_exchange(1, 0, 2)
    assert set(found.seconds) == {"copy", "encoding", "socket", "link"}
    assert all(len(turns) == 2 for turns in found.seconds.values())


def test_commits_are_measured_on_every_store_and_written_as_the_contract_says() -> None:
    found = measure_state(5, 2, 8, 1)
    written = limits_document([found], this_machine(), 1)
    assert [one["side"] for one in written["rows"]] == [
        "plain write",
        "encoding alone",
        "memory",
        "journal",
        "directory",
    ]
    assert {"workload", "side", "rows_per_second", "cpu_seconds_per_million_rows", "ratio"} <= set(written["rows"][0])


def test_turns_change_their_order_and_the_first_does_not_count() -> None:
    called: list[str] = []

    def side(name: str, seconds: float) -> float:
        called.append(name)
        return seconds * len(called)

    found = take_turns({"a": lambda: side("a", 1.0), "b": lambda: side("b", 10.0)}, 2)
    assert called == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": (4.0, 5.0), "b": (30.0, 60.0)}
    one = Measured("state", "w", "a", "commit", found)
    assert one.ratio("b").median == pytest.approx((30 / 4 + 60 / 5) / 2)

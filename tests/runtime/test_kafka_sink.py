"""Writing to Kafka without a broker: an attempt that does not come back, and how far queries are as metadata."""

from __future__ import annotations

from threading import Event

import pytest

import holdfast as hf
from holdfast.errors import BadInput, CheckFailed
from holdfast.runtime.coordinator.outputs import name_sinks
from holdfast.runtime.io.kafka_sink import MOST_METADATA, Committed, KafkaSink, _in_time, read_committed
from holdfast.runtime.program import Program


def test_an_attempt_that_does_not_come_back_is_a_failure_that_names_the_topic() -> None:
    answered = Event()

    def wait() -> int:
        answered.wait()
        return 1

    with pytest.raises(CheckFailed, match=r"topic pages: the brokers have not answered for 0\.05 s"):
        _in_time(0.05, wait, "pages")
    answered.set()


def test_what_an_attempt_returns_or_raises_comes_through() -> None:
    assert _in_time(60, lambda: 3, "pages") == 3

    def fail() -> int:
        raise BadInput("has no column 'page'")

    with pytest.raises(BadInput, match="no column"):
        _in_time(60, fail, "pages")


@pytest.mark.parametrize("tentative", [False, True])
def test_how_far_queries_are_never_outgrows_what_brokers_take(tentative: bool) -> None:
    """It grew with the numbers of batches: a query was parked, and stayed so, when they had one digit more."""
    sink = KafkaSink("broker:9092", "pages", tentative=tentative)
    assert sink.most_partitions is not None
    assert sink.most_partitions >= 200
    queries = dict.fromkeys(range(sink.most_partitions), (999, 10**12, 1))
    old = Committed(10**9, queries, dict.fromkeys(queries, 10**12) if tentative else {})
    assert len(old.encode()) <= MOST_METADATA
    assert read_committed(old.encode()) == old
    some = Committed(3, {2: (0, 4, 0), 7: (1, 0, 2)}, {5: 9})
    assert read_committed(some.encode()) == some, "queries that have nothing out yet are not there"
    assert read_committed(Committed().encode()) == Committed()


def test_what_earlier_versions_have_committed_is_read() -> None:
    text = '{"format":1,"claim":4,"queries":[[0,0,12,0],[3,1,9,1]],"tentative":[[3,11]]}'
    assert read_committed(text) == Committed(4, {0: (0, 12, 0), 3: (1, 9, 1)}, {3: 11})


def test_an_output_with_too_many_partitions_is_refused_before_anything_is_published() -> None:
    app = hf.Application("wide")
    pages = app.source("s", schema="page string").filter(
        lambda rows: rows["page"].is_valid(), parallelism=400, id="some"
    )
    pages.output("pages")
    refused = "output pages: has 400 partitions, and KafkaSink takes 375; give the output fewer partitions"
    with pytest.raises(BadInput, match=refused):
        name_sinks(Program(app), {"some": KafkaSink("broker:9092", "pages")})

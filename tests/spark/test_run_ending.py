"""How a run lets go of what it holds; Spark is a stub."""

from __future__ import annotations

import os
from unittest.mock import Mock

import pytest

from holdfast.ids import OperatorId
from holdfast.spark.ingest import Ingestion
from holdfast.spark.reader_checkpoint import ReaderCheckpoint
from holdfast.spark.run import SparkRun
from holdfast.storage.memory import MemoryStorage


def test_a_run_whose_spark_is_gone_gives_its_claim_up_and_shows_no_more_signs_of_life() -> None:
    """Otherwise the next start, in this process or elsewhere, is refused because a driver is alive."""
    run = object.__new__(SparkRun)
    run.coordinator, run.backend, run._keep_alive, run._signs = Mock(), Mock(), Mock(), Mock()
    run._progress, run._staged, run._log = Mock(), (), Mock()
    run.coordinator.outputs.publishing.unreturned.return_value = []
    run.backend.stop.side_effect = ConnectionError("the gateway to the JVM is closed")
    with pytest.raises(ConnectionError):
        run.close()
    run._keep_alive.close.assert_called_once_with()
    run._signs.stop.assert_called_once_with()
    run._progress.end.assert_called_once_with()


def test_a_source_that_cannot_be_stopped_keeps_no_other_from_being_stopped() -> None:
    """With `spark.sql.streaming.stopTimeout`, stop raises; the session may go on after the run, and read for good."""
    ingestion, queries, places = object.__new__(Ingestion), [Mock(), Mock()], [Mock(), Mock()]
    names = [OperatorId("a"), OperatorId("b")]
    ingestion._watches = {OperatorId("c"): Mock()}
    ingestion._queries = dict(zip(names, queries, strict=True))
    ingestion._checkpoints = dict(zip(names, places, strict=True))
    for query in queries:
        query.stop.side_effect = TimeoutError("the query has not stopped")
    with pytest.raises(TimeoutError):
        ingestion.stop()
    for one in (*queries, ingestion._watches[OperatorId("c")]):
        one.stop.assert_called_once_with()
    for place in places:
        place.remove.assert_called_once_with()


def test_a_reader_that_is_stopped_twice_closes_no_file_of_others() -> None:
    """Each run stops its sources when it stops reading, and again in the end: numbers of files are used again."""
    place = ReaderCheckpoint(MemoryStorage(), OperatorId("a"), 1, {})
    number = place._lock
    place.remove()
    other = os.open(os.devnull, os.O_RDONLY)
    if other != number:
        os.dup2(other, number)
        os.close(other)
    place.remove()
    os.close(number)  # an OSError where it is closed
    assert not place.folder.exists()

"""The store's client inside Spark's Python workers: saved there, read there, and read back on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.client import ClientSettings, PeerStore
from holdfast_lab.testing.ring_of_peers import RingOfPeers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster


def test_workers_save_and_read(spark: SparkSession, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("known on every node, sent to none")
    secret.chmod(0o600)
    with RingOfPeers(4, tmp_path / "ring", secret_file=str(secret)) as ring:
        store = PeerStore(ClientSettings(tuple(ring.addresses), str(secret), coding=Coding(2, 2)))

        def work(numbers: Iterable[int]) -> Iterator[tuple[int, bool]]:
            for number in numbers:
                state, data = StateId("workers", f"O1[{number}]"), Random(number).randbytes(200_000)
                store.save(state, BatchId(1), Epoch(1), data)
                yield number, bytes(store.load(state).joined()) == data

        found = spark.sparkContext.parallelize(range(6), 6).mapPartitions(work).collect()
        assert sorted(found) == [(number, True) for number in range(6)]
        ring.kill([1, 2])
        for number in range(6):
            loaded = store.load(StateId("workers", f"O1[{number}]"))
            assert bytes(loaded.joined()) == Random(number).randbytes(200_000)
        store.close()

"""A peer that acknowledges fragments and forgets them, on real sockets: reads survive it, and repair rebuilds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.client import connect
from holdfast_lab.testing.ring_of_peers import RingOfPeers


def test_a_peer_that_acknowledges_and_forgets_loses_only_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RingOfPeers(4, tmp_path / "ring", ["--memory", "0", "--repair-after", "3600"]) as ring:
        store = connect(ring.addresses)
        state = StateId("default", "x")
        saved = store.save(state, BatchId(0), Epoch(0), bytes(200_000), coding=Coding(2, 2))
        assert sorted(saved.holders) == sorted(ring.addresses), "all four have acknowledged"
        forgotten = [path for path in ring.data(1).rglob("*") if path.is_file() and path.stat().st_size > 50_000]
        assert forgotten, "its fragment is on its disk"
        for path in forgotten:
            path.unlink()
        ring.kill([2])
        assert bytes(store.load(state).joined()) == bytes(200_000), "one forgot, one is gone: two are enough"
        ring.start([2])
        ring.wait_until_joined(range(4))
        capsys.readouterr()
        assert run(["store", "repair", "--scrub", "--json", "--peer", ring.address(0)]) == 0
        assert [one["redundancy"] for one in json.loads(capsys.readouterr().out)["states"]] == [2], "it is whole again"
        store.close()

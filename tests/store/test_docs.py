"""The numbers on the store's page are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.store.client.saving import STALL_SECONDS
from holdfast.store.peer.limits import Limits
from holdfast.store.peer.peer import RING
from holdfast.store.peer.repair import RepairSettings
from holdfast.store.wire.messages import LARGEST_BODY, LARGEST_HEADER

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "store.md").read_text()
LIMITS = Limits()


@pytest.mark.parametrize(
    ("limit", "default"),
    [
        ("trusted connections", f"{LIMITS.connections}"),
        ("strangers in the handshake", f"{LIMITS.strangers}, for {LIMITS.greeting_seconds:g} s each"),
        ("idle connection", f"{LIMITS.idle_seconds:g} s"),
        ("requests of one connection", f"{LIMITS.requests_per_second:,.0f} per second, then delayed"),
        ("ring messages", f"{LIMITS.notes_per_second:,.0f} per second, then dropped"),
        ("frame", f"header {LARGEST_HEADER >> 10} KB, body {LARGEST_BODY >> 20} MB"),
        ("fragment", f"{LIMITS.fragment_bytes >> 30} GB"),
        ("disk for fragments", f"{LIMITS.quota_bytes >> 40} TB"),
        ("disk for one namespace", f"{LIMITS.namespace_quota_bytes >> 40} TB"),
        ("disk left free", f"{LIMITS.reserve_bytes >> 20} MB"),
        ("memory tier", f"{LIMITS.memory_bytes >> 20} MB"),
        ("repair bandwidth", f"{int(LIMITS.repair_bandwidth) >> 20} MB/s"),
        ("restores at once", f"{LIMITS.restores}"),
    ],
)
def test_limits(limit: str, default: str) -> None:
    assert f"| {limit} | {default} |" in PAGE


def test_times_and_sizes_in_the_text() -> None:
    assert RepairSettings().after == 10
    assert "ten\nseconds after a peer is lost" in PAGE or "ten seconds after a peer is lost" in PAGE
    assert f"no progress for {STALL_SECONDS:g} s" in PAGE
    assert f"| keep-alive | {RING.keep_alive:g} s;" in PAGE

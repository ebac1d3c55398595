"""Save plus restore on a ring of real peers, against the same bytes at one remote file peer over the same transport.

Two tables (A-FP4S, Fig. 9a): each peer limited to 100 Mbit/s and the client not, where a node uploads to many; and
the client limited too, beside what eq. 4 predicts. The file peer is one peer that keeps states uncoded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.erasure.layout import Coding
from holdfast.errors import CheckFailed
from holdfast.store.client.client import PeerStore, connect
from holdfast.store.wire.address import Address
from holdfast_lab.testing.ring_of_peers import RingOfPeers

FILE = Coding(1, 0)
"""One fragment on one peer: a remote file."""


@dataclass(frozen=True, slots=True)
class Side:
    """What a save or a restore took, on both sides."""

    seconds: float
    client_cpu_seconds: float
    peers_cpu_seconds: float
    client_memory_bytes: int
    network_bytes: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """One state saved and restored."""

    state_bytes: int
    coding: Coding
    client_limited: bool
    save: Side
    restore: Side
    decode_seconds: float
    peers_memory_bytes: int
    """Of all peers together, after it."""

    @property
    def seconds(self) -> float:
        """Save plus restore."""
        return self.save.seconds + self.restore.seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """A coding against the file: parts of the file's time that were saved; negative where the file was faster."""

    transfer: Transfer
    file: Transfer
    predicted_save: float
    """Less to save by the model: n / m of the bytes over the narrower of the client's and the peers' bandwidth."""
    predicted_restore: float
    """Less to restore by eq. 1, 2 and 4: 1 - (s / eta + s / c) / (s / h)."""

    @property
    def less_to_save(self) -> float:
        """How much less time a save took."""
        return 1 - self.transfer.save.seconds / self.file.save.seconds

    @property
    def less_to_restore(self) -> float:
        """How much less time a restore took."""
        return 1 - self.transfer.restore.seconds / self.file.restore.seconds

    @property
    def less_in_all(self) -> float:
        """How much less time both took."""
        return 1 - self.transfer.seconds / self.file.seconds


@contextmanager
def limited_ring(count: int, folder: Path, megabits: float | None) -> Iterator[RingOfPeers]:
    """Run peers that keep within a bandwidth; repair stays out of the way."""
    limit = () if megabits is None else ("--bandwidth", str(megabits))
    with RingOfPeers(count, folder, ["--repair-after", "3600", *limit]) as ring:
        yield ring


def measure_transfer(
    ring: RingOfPeers, coding: Coding, file: Path, version: int, client_bandwidth: float | None
) -> Transfer:
    """Save and restore one file in a client process of its own; wrong bytes end the bench."""
    with connect(ring.addresses) as store:
        peers = [one.address for one in store.members()]
        before = _peers_cpu(store, peers)
        order = {
            "name": f"{file.name}-{coding.data}-{coding.parity}",
            "data": coding.data,
            "parity": coding.parity,
            "file": str(file),
            "peers": ring.addresses[:3],
            "version": version,
            "bandwidth": client_bandwidth,
        }
        done = subprocess.run(
            [sys.executable, "-m", "holdfast_lab.benches.store.client_process"],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
        )
        if done.returncode:
            raise CheckFailed(f"the client failed: {done.stderr.strip().splitlines()[-1:]}")
        answer = json.loads(done.stdout)
        if not answer["exact"]:
            raise CheckFailed(f"{coding}: the restored state differs from the saved state")
        cpu = _peers_cpu(store, peers) - before
        memory = sum(int(_status(store, peer)["memory_bytes"]) for peer in peers)
    moved = answer["save"]["network_bytes"] + answer["restore"]["network_bytes"]

    def side(name: str) -> Side:
        part = answer[name]
        return Side(
            seconds=part["seconds"],
            client_cpu_seconds=part["cpu_seconds"],
            peers_cpu_seconds=cpu * part["network_bytes"] / moved,
            client_memory_bytes=int(part["memory_bytes"]),
            network_bytes=int(part["network_bytes"]),
        )

    return Transfer(
        state_bytes=file.stat().st_size,
        coding=coding,
        client_limited=client_bandwidth is not None,
        save=side("save"),
        restore=side("restore"),
        decode_seconds=answer["restore"]["decode_seconds"],
        peers_memory_bytes=memory,
    )


def compare(transfer: Transfer, file: Transfer, peer_rate: float, client_rate: float | None) -> Comparison:
    """Put a coding beside the file, measured and predicted by the model."""
    size, coding = transfer.state_bytes, transfer.coding
    file_rate = min(peer_rate, client_rate or peer_rate)
    all_peers = coding.total * peer_rate
    narrow = all_peers if client_rate is None else min(all_peers, client_rate)
    save = size * coding.total / coding.data / narrow
    restore = size / narrow + transfer.decode_seconds
    return Comparison(transfer, file, 1 - save / (size / file_rate), 1 - restore / (size / file_rate))


def run_table(
    folder: Path,
    sizes: Sequence[int],
    codings: Sequence[Coding],
    *,
    megabits: float,
    client_limited: bool,
    progress: Any = None,
) -> Iterator[Comparison]:
    """Measure every size and coding against the file; sizes in bytes."""
    rate = megabits * 1e6 / 8
    client = rate if client_limited else None
    most = max(coding.total for coding in codings)
    with limited_ring(most, folder / "ring", megabits) as ring, limited_ring(1, folder / "file", megabits) as remote:
        for version, size in enumerate(sizes):
            source = folder / f"state{size}"
            make_file(source, size)
            file = measure_transfer(remote, FILE, source, version, client)
            if progress is not None:
                progress()
            for coding in codings:
                yield compare(measure_transfer(ring, coding, source, version, client), file, rate, client)
                if progress is not None:
                    progress()
            source.unlink()


def make_file(path: Path, size: int) -> None:
    """Write a file of random bytes."""
    import os

    with path.open("wb") as file:
        left = size
        while left:
            part = min(left, 1 << 24)
            file.write(os.urandom(part))
            left -= part


def _status(store: PeerStore, peer: str) -> dict[str, Any]:
    return store.pool.request(Address.parse(peer), "status", {}).header


def _peers_cpu(store: PeerStore, peers: Sequence[str]) -> float:
    return sum(float(_status(store, peer)["cpu_seconds"]) for peer in peers)

"""A ring of real peer processes on loopback that can be killed, frozen and started again. For tests, drills, benches.

with RingOfPeers(30, folder) as ring:
    ring.kill([3, 4, 5])
    store = connect(ring.address(0))
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from holdfast.errors import CheckFailed
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import StoreError
from holdfast.store.wire.secret_files import keys_from_file

COMMAND = "holdfast.cli.main:run"
PRELOADED = ("holdfast.cli.store_serve", "holdfast.store.peer.operations", "holdfast.store.peer.peer")


class RingOfPeers:
    """Peers 0 to count - 1, each a process with a folder of its own; peer 0 begins the ring."""

    def __init__(
        self,
        count: int,
        folder: Path,
        options: Sequence[str] = (),
        *,
        options_of: dict[int, Sequence[str]] | None = None,
        secret_file: str | None = None,
        ready_seconds: float = 120.0,
        joined: bool = True,
    ) -> None:
        """Prepare; `options` go to every `holdfast store serve`, `options_of` to single ones.

        Entering waits until all know each other, unless `joined` is false.
        """
        self._joined = joined
        self.count = count
        self.folder = folder
        self.secret_file = secret_file
        secret = () if secret_file is None else ("--secret-file", secret_file)
        self._options = (*options, *secret)
        self._options_of = options_of or {}
        self._ready_seconds = ready_seconds
        self._ports: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._nursery: subprocess.Popen[str] | None = None

    def __enter__(self) -> RingOfPeers:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "holdfast_lab.testing.peer_nursery", COMMAND, *PRELOADED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            self.start([0])
            self.start(range(1, self.count))
            if self._joined:
                self.wait_until_joined(range(self.count))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(list(self._pids))
        if self._nursery is not None:
            assert self._nursery.stdin is not None
            assert self._nursery.stdout is not None
            self._nursery.stdin.close()
            try:
                self._nursery.wait(10)
            except subprocess.TimeoutExpired:  # A machine too busy to let it end by itself.
                self._nursery.kill()
                self._nursery.wait()
            self._nursery.stdout.close()

    def start(self, peers: Iterable[int], *, wait: bool = True) -> None:
        """Start peers, or start them again on the same folder and port; wait until each reports ready."""
        started = list(peers)
        for peer in started:
            self._start(peer)
        if wait:
            for peer in started:
                self._wait_ready(peer)

    def _start(self, peer: int) -> None:
        assert self._nursery is not None
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self.output(peer).unlink(missing_ok=True)
        join = [
            argument
            for other in sorted(self._ports)
            if other != peer and other in self._pids
            for argument in ("--join", self.address(other))
        ][:4]
        arguments = [
            str(self.output(peer)),
            str(self.log(peer)),
            "--data",
            str(self.data(peer)),
            "--port",
            str(self._ports.get(peer, 0)),
            "--join-seconds",
            str(self._ready_seconds),
            *join,
            *self._options,
            *self._options_of.get(peer, ()),
        ]
        self._nursery.stdin.write(json.dumps(arguments) + "\n")
        self._nursery.stdin.flush()
        self._pids[peer] = int(self._nursery.stdout.readline())

    def _wait_ready(self, peer: int) -> None:
        deadline = time.monotonic() + self._ready_seconds
        while time.monotonic() < deadline:
            if self.output(peer).exists():
                words = self.output(peer).read_text().split()
                if len(words) > 1 and words[0] == "ready":
                    self._ports[peer] = Address.parse(words[1]).port
                    return
            if not self.alive(peer):
                break
            time.sleep(0.01)
        log = self.log(peer).read_text()[-500:] if self.log(peer).exists() else ""
        raise CheckFailed(f"peer {peer} is not ready after {self._ready_seconds:g} s: {log}")

    def wait_until_joined(self, peers: Iterable[int]) -> None:
        """Wait until each of these peers knows all the others of them (a ring no larger than its leaf sets)."""
        wanted = list(peers)
        pool = ConnectionPool(keys_from_file(self.secret_file))
        deadline = time.monotonic() + self._ready_seconds
        left = set(wanted)
        while left and time.monotonic() < deadline:
            for peer in sorted(left):
                with contextlib.suppress(StoreError):
                    answer = pool.request(Address.parse(self.address(peer)), "members", {})
                    known = {str(one["address"]) for one in answer.header["members"]}
                    if all(self.address(other) in known for other in wanted):
                        left.discard(peer)
            if left:
                time.sleep(0.05)
        pool.close()
        if left:
            raise CheckFailed(f"peers {sorted(left)} do not know all others after {self._ready_seconds:g} s")

    def address(self, peer: int) -> str:
        """Return where a peer listens."""
        return f"127.0.0.1:{self._ports[peer]}"

    @property
    def addresses(self) -> list[str]:
        """Return where the living peers listen."""
        return [self.address(peer) for peer in sorted(self._pids)]

    @property
    def living(self) -> list[int]:
        """Return the peers that were not killed or stopped."""
        return sorted(self._pids)

    def pid(self, peer: int) -> int:
        """Return a peer's process id."""
        return self._pids[peer]

    def data(self, peer: int) -> Path:
        """Return a peer's folder."""
        return self.folder / f"peer{peer}"

    def log(self, peer: int) -> Path:
        """Return a peer's log."""
        return self.folder / f"peer{peer}.log"

    def output(self, peer: int) -> Path:
        """Return what a peer printed."""
        return self.folder / f"peer{peer}.out"

    def alive(self, peer: int) -> bool:
        """Return whether a peer's process is there."""
        return peer in self._pids and Path(f"/proc/{self._pids[peer]}").exists()

    def kill(self, peers: Iterable[int]) -> None:
        """End peers with SIGKILL; returns when they are gone."""
        self._signal(peers, signal.SIGKILL, gone=True)

    def stop(self, peers: Iterable[int]) -> None:
        """End peers in good order."""
        self._signal(peers, signal.SIGTERM, gone=True)

    def freeze(self, peers: Iterable[int]) -> None:
        """Stop peers without ending them: a machine that hangs."""
        self._signal(peers, signal.SIGSTOP, gone=False)

    def thaw(self, peers: Iterable[int]) -> None:
        """Let frozen peers go on."""
        self._signal(peers, signal.SIGCONT, gone=False)

    def _signal(self, peers: Iterable[int], number: signal.Signals, *, gone: bool) -> None:
        pids = [(peer, self._pids[peer]) for peer in peers if peer in self._pids]
        for _, pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if not gone:
            return
        deadline = time.monotonic() + 30
        for peer, pid in pids:
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.002)
            del self._pids[peer]

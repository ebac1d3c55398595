"""Real agents of several nodes on loopback, each on an address of its own, that can be killed and started again.

with AgentsOnLoopback(4, folder) as agents:
    agents.spools[0].save("run/O1-0/5.1", data, epoch=1, durable=False)
    agents.kill([0, 1])
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.errors import CheckFailed
from holdfast.store.agent.agent_files import AgentSettings, enter_ring, write_settings
from holdfast.store.agent.spool import Spool, agent_address
from holdfast.store.wire.address import Address

READY_SECONDS = 120.0


class AgentsOnLoopback:
    """Agents 0 to count - 1 on 127.0.0.2, 127.0.0.3, …; they form one ring unless the settings differ."""

    def __init__(self, count: int, folder: Path, settings: AgentSettings | None = None) -> None:
        """Prepare; what the settings leave open (host, secret, durable folder) is filled in."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(24).hex())
        given = settings or AgentSettings(
            wait_for_ring=True, durable=str(folder / "durable"), fewest_peers=2, settle=2.0
        )
        self.settings = replace(given, secret_file=str(secret))
        self.spools = [Spool(folder / f"node{number}") for number in range(count)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for number, spool in enumerate(self.spools):
                write_settings(spool.folder, replace(self.settings, host=f"127.0.0.{number + 2}"))
            self.start(range(len(self.spools)), wait=False)
            addresses = [str(self.address(number)) for number in range(len(self.spools))]
            for spool in self.spools:
                enter_ring(spool.folder, addresses)
            self.await_ready(range(len(self.spools)))
        except BaseException:
            self.kill(list(self._processes))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(list(self._processes))

    def start(self, numbers: Iterable[int], *, wait: bool = True) -> None:
        """Start agents, or start them again on what they left."""
        started = list(numbers)
        for number in started:
            with self.log(number).open("ab") as log:
                self._processes[number] = subprocess.Popen(
                    [sys.executable, "-m", "holdfast.store.agent.agent", str(self.spools[number].folder)],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
        if wait:
            self.await_ready(started)

    def kill(self, numbers: Iterable[int]) -> None:
        """End agents with SIGKILL; a frozen one as well."""
        gone = [self._processes.pop(number) for number in numbers]
        for process in gone:
            process.kill()
        for process in gone:
            process.wait()

    def stop(self, number: int) -> int:
        """End an agent in good order; return its exit status."""
        process = self._processes.pop(number)
        process.terminate()
        return process.wait()

    def freeze(self, numbers: Iterable[int]) -> None:
        """Stop agents without ending them."""
        for number in numbers:
            self._processes[number].send_signal(signal.SIGSTOP)

    def thaw(self, numbers: Iterable[int]) -> None:
        """Let frozen agents go on."""
        for number in numbers:
            self._processes[number].send_signal(signal.SIGCONT)

    def pid(self, number: int) -> int:
        """Return an agent's process id."""
        return self._processes[number].pid

    def log(self, number: int) -> Path:
        """Return an agent's log."""
        return self.folder / f"node{number}.log"

    def address(self, number: int) -> Address:
        """Return where an agent listens; waits until it does."""
        deadline = time.monotonic() + READY_SECONDS
        while (found := agent_address(self.spools[number].folder)) is None:
            self._check(number, deadline)
            time.sleep(0.01)
        return found

    def await_ready(self, numbers: Iterable[int]) -> None:
        """Wait until these agents report that they have joined the ring."""
        deadline = time.monotonic() + READY_SECONDS
        for number in numbers:
            about = self.spools[number].folder / "agent.json"
            while True:
                status = json.loads(about.read_bytes()) if about.exists() else {}
                if status.get("ready") and status["pid"] == self.pid(number):
                    break
                self._check(number, deadline)
                time.sleep(0.01)

    def _check(self, number: int, deadline: float) -> None:
        ended = self._processes[number].poll() is not None
        if ended or time.monotonic() > deadline:
            log = self.log(number).read_text()[-500:]
            raise CheckFailed(f"agent {number} {'ended' if ended else 'is not ready'}: {log}")

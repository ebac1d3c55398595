"""An agent told to lose messages loses them, and states get through all the same; told to stop, it loses no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from holdfast.store.agent.agent_files import lose_messages
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import Unreachable
from holdfast.store.wire.secret_files import keys_from_file
from holdfast_lab.testing.agents_on_loopback import AgentsOnLoopback


def wait(look: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def test_lost_messages_lose_no_state(tmp_path: Path) -> None:
    with AgentsOnLoopback(3, tmp_path) as agents:
        pool = ConnectionPool(keys_from_file(agents.settings.secret_file), connect_seconds=5.0, answer_seconds=5.0)

        def answers() -> bool:
            try:
                pool.request(agents.address(1), "ping", {})
            except Unreachable:
                return False
            return True

        wait(answers)
        lose_messages(agents.spools[1].folder, 1.0)
        wait(lambda: not answers())
        lose_messages(agents.spools[1].folder, 0.3, seed=2)
        lose_messages(agents.spools[2].folder, 0.3, seed=3)
        wait(answers)
        data = {f"lossy/O1-0/{batch}.1": Random(batch).randbytes(20_000) for batch in range(5)}
        for name, snapshot in data.items():
            agents.spools[0].save(name, snapshot, epoch=1, durable=False)
        for name in data:
            wait(lambda name=name: (found := agents.spools[0].saved(name)) is not None and found.ok)
        for name, snapshot in data.items():
            agents.spools[2].fetch(name)
            wait(lambda name=name: agents.spools[2].fetched(name) is not None)
            assert bytes(memoryview(agents.spools[2].fetched(name))) == snapshot
        lose_messages(agents.spools[1].folder, 0.0)
        wait(lambda: all(answers() for _ in range(20)))
        pool.close()

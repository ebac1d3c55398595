"""Measure restores of durable snapshots: bytes from peers and from the durable folder, seconds beside the prediction.

    python tools/measure_restores.py --agents 6 --snapshots 8 --megabytes 8 --kill 2

Real agents on loopback save snapshots as a run's nodes do, with a durable copy in a folder. Then some agents are
killed, and another node restores everything: once by the old rule (durable snapshots come from the folder), once from
the ring first, and once from the ring with the folder renamed away. Prints one JSON document; every byte is compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "lab")]

from holdfast.runtime.fetches import Fetched  # noqa: E402
from holdfast.spark.snapshot_store import NodeSnapshotStore  # noqa: E402
from holdfast.storage.files import FileStorage  # noqa: E402
from holdfast.store.agent.agent_files import agent_codes, enter_ring  # noqa: E402
from holdfast_lab.testing.agents_on_loopback import AgentsOnLoopback  # noqa: E402


def wait(done: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    """Wait until `done()` is true."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise SystemExit(f"{what}: nothing came of it in {seconds:g} s")
        time.sleep(0.01)


def is_saved(store: NodeSnapshotStore, name: str) -> bool:
    """Say whether a snapshot is acknowledged."""
    answer = store.saved(name)
    return answer is not None and answer.problem is None


def restore(store: NodeSnapshotStore, names: list[str], contents: dict[str, bytes]) -> dict[str, object]:
    """Restore snapshots as a worker does, all at once; compare them, and count where they came from."""
    began, left, total = time.monotonic(), set(names), Fetched()
    ratios = []
    while left:
        for name in sorted(left):
            found = store.fetched(name)
            if found is None:
                store.fetch(name)
                if (reason := store.lost(name)) is not None:
                    raise SystemExit(f"{name} is lost: {reason}")
                continue
            if bytes(found) != contents[name]:
                raise SystemExit(f"{name} came back with other bytes")
            left.discard(name)
            origin = store.origin(name)
            total = total.plus(origin)
            if origin.predicted_seconds:
                ratios.append(origin.seconds / origin.predicted_seconds)
        time.sleep(0.005)
    return {
        "bytes_from_peers": total.peer_bytes,
        "bytes_from_folder": total.folder_bytes,
        "wall_seconds": round(time.monotonic() - began, 3),
        "fetch_seconds": round(total.seconds, 3),
        "predicted_seconds": None if total.predicted_seconds is None else round(total.predicted_seconds, 3),
        "measured_over_predicted": [round(ratio, 2) for ratio in sorted(ratios)],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--snapshots", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--kill", type=int, default=2)
    given = parser.parse_args()
    names = [f"run/O1-{number}/c1.0-3.1-d" for number in range(given.snapshots)]
    contents = {name: Random(name).randbytes(int(given.megabytes * 1e6)) for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "checkpoints"
        folder.mkdir()
        with AgentsOnLoopback(given.agents, Path(scratch) / "agents") as agents:
            # Every node has saved snapshots, as in a run: its agent has measured coding and sending.
            writers = [NodeSnapshotStore(FileStorage(folder), spool) for spool in agents.spools]
            writer_of = {name: writers[number % len(writers)] for number, name in enumerate(names)}
            for name, writer in writer_of.items():
                writer.save(name, contents[name], epoch=1, durable=True)
            wait(lambda: all(is_saved(writer, name) for name, writer in writer_of.items()), "save")
            codes = [f"{one['data']}+{one['parity']}" for one in agent_codes(agents.spools[0].folder)]
            dead = list(range(given.agents - given.kill, given.agents))
            left = [str(agents.address(number)) for number in range(given.agents - given.kill)]
            agents.kill(dead)
            for spool in agents.spools[: -given.kill or None]:
                enter_ring(spool.folder, left)
            result: dict[str, object] = {
                "agents": given.agents,
                "killed": given.kill,
                "state_bytes": sum(map(len, contents.values())),
                "codes": codes,
                "before: folder only": restore(NodeSnapshotStore(FileStorage(folder), None), names, contents),
            }
            result["after: ring first"] = restore(
                NodeSnapshotStore(FileStorage(folder), agents.spools[1]), names, contents
            )
            folder.rename(Path(scratch) / "away")
            folder.mkdir()
            result["after: folder renamed away"] = restore(
                NodeSnapshotStore(FileStorage(folder), agents.spools[2]), names, contents
            )
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

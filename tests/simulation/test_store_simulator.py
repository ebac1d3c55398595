"""The simulator of the fragment store: it finds nothing, finds deliberate bugs, and a seed gives one run."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast_lab.simulation.store.run import StoreFault, simulate_store
from simulation.bugs import Bug
from simulation.store_bugs import SHOWN_BY, STORE_BUGS
from sizes import LONG

pytestmark = pytest.mark.timeout(1800)
"""A busy machine is not a failure."""

SEEDS = range(100 if LONG else 12)
FAILED = (1, 2, 8, 14, 18, 19, 51213)
"""Seeds that showed a fault: 1 crowded peers, 2 a folder that stayed locked, the others faults of the simulator."""


def test_some_seeds_find_nothing_and_meet_every_fault() -> None:
    faults, counts = Counter[StoreFault](), Counter[str]()
    for seed in dict.fromkeys((*SEEDS, *FAILED)):
        outcome = simulate_store(seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
        faults += outcome.faults
        counts += outcome.counts
    assert not [fault for fault in StoreFault if not faults[fault]]
    for what in ("saved", "read", "released", "forgotten", "failed", "rebuilt", "removed", "spread"):
        assert counts[what] > 5, what


@pytest.mark.parametrize("bug", STORE_BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.put_in(monkeypatch)
    seeds = dict.fromkeys((SHOWN_BY[bug.name], *range(40)))
    assert any(simulate_store(seed).violation for seed in seeds), bug.what


def test_a_seed_gives_the_same_run_in_any_process() -> None:
    code = (
        "from holdfast_lab.simulation.store.run import simulate_store\n"
        "outcome = simulate_store(6, record=True)\n"
        "print(outcome.counts['switches'], *outcome.journal, sep='\\n')\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_nothing_of_the_store_that_is_simulated_has_a_thread_or_a_clock_of_its_own() -> None:
    """A module of the simulated path that imports threads or time has to be given simulated ones."""
    source = Path(__file__).resolve().parents[2] / "src" / "holdfast"
    given = {"client", "saving", "sending", "retrieving", "scatter", "survey", "repair", "connection", "fragment_files"}
    elsewhere = {"peer", "restores", "peer_speeds", "tuning", "local", "overview"}
    """Not run, or with locks that are never held while anything waits."""
    for path in (*source.glob("store/client/*.py"), *source.glob("store/peer/*.py")):
        tree = ast.parse(path.read_text())
        imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        if imported & {"threading", "time", "queue"}:
            assert path.stem in given | elsewhere, f"{path.name}: name it in simulated_modules"

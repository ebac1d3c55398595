"""Find a seed that shows each deliberate bug of the simulator, and write tests/simulation/shown_by.json anew.

    python tools/find_planted_bugs.py --jobs 2

The seed that showed a bug last is tried first, then the first five hundred in which it can show. A seed that takes too
long with a bug inside is passed over. Prints the bugs that no seed shows, and ends with status 1 where there are any.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "lab"), str(ROOT / "tests")]


class TooLong(BaseException):
    """A seed takes too long."""


def _stop(*_: object) -> None:
    raise TooLong


def _seed_of(given: tuple[str, int | None, float]) -> tuple[str, int | None, int, float]:
    """Return a bug's name, a seed that shows it (None: none does), how many were tried, and the seconds it took."""
    import pytest

    from holdfast_lab.simulation.recovery.run import simulate_recovery
    from simulation.planted import PLANTED, shows

    name, known, most_seconds = given
    planted = next(one for one in PLANTED if one.bug.name == name)
    seeds = dict.fromkeys([*([] if known is None else [known]), *planted.seeds()])
    began = time.monotonic()
    signal.signal(signal.SIGALRM, _stop)
    with pytest.MonkeyPatch.context() as patch:
        planted.bug.put_in(patch)
        for tried, seed in enumerate(seeds, 1):
            signal.setitimer(signal.ITIMER_REAL, most_seconds)
            try:
                if shows(simulate_recovery(seed)):
                    return name, seed, tried, time.monotonic() - began
            except TooLong:
                continue
            except AssertionError as wrong:
                print(f"{name}: {wrong}", flush=True)
                break
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    return name, None, len(seeds), time.monotonic() - began


def main() -> None:
    """Search and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long one seed may take")
    parser.add_argument("--only", default="", help="bugs whose name contains this")
    given = parser.parse_args()
    from simulation.planted import PLANTED, SHOWN_BY_FILE, shown_by

    names = [planted.bug.name for planted in PLANTED]
    known = {name: seed for name, seed in shown_by().items() if name in names}
    missing = []
    wanted = [(name, known.get(name), given.seconds) for name in names if given.only in name]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for name, seed, tried, seconds in pool.imap_unordered(_seed_of, wanted):
            print(
                f"{name}: {'not found' if seed is None else f'seed {seed}'}, {tried} tried, {seconds:.0f} s", flush=True
            )
            if seed is None:
                missing.append(name)
            else:
                known[name] = seed
                SHOWN_BY_FILE.write_text(
                    json.dumps({one: known[one] for one in names if one in known}, indent=1) + "\n"
                )
    print(f"{len(wanted) - len(missing)} of {len(wanted)} bugs are found; not found: {', '.join(missing) or 'none'}")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()

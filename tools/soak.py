"""Hours of kills, freezes, poison and rescales against one run; memory, descriptors, disk and latency over time.

Run: `python tools/soak.py --hours 8 --place soak/`. It can be stopped (Ctrl-C, SIGTERM, also `kill -9`) and started
again with the same `--place`: the run goes on, and so do the actions, which come from the seed. Writes `samples.jsonl`
(one object every few seconds), `actions.jsonl`, `soak.html` (plots) and `verdict.json`. When the hours are over, the
run reads what is left, and every row must have come out once. Status 0: exactly once and everything flat; 1: not; 3: it
was stopped before the hours were over.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta
from html import escape
from pathlib import Path
from random import Random
from typing import Any

from holdfast.drill.resuming import parked_queries, resume_queries
from holdfast.reports import svg
from holdfast.reports.model import Mark
from holdfast.runtime import ParquetSink
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.storage.storage import open_storage
from holdfast_lab.driver_processes import Driver
from holdfast_lab.soak_measures import Action, draw_action, expected_counts, series_of, slope_of
from holdfast_lab.soak_samples import Sampler

APPLICATION = """
import json
from pathlib import Path

import holdfast as hf

PLACE = Path({place!r})
LAYOUT = json.loads((PLACE / "layout.json").read_text())
SCHEMA = "id long, key string, at timestamp"


def checked(table):
    if (PLACE / "poison").exists():
        raise ValueError("poisoned by the soak")
    return table


app = hf.Application("soak")
rows = app.source(
    "rows",
    lambda spark: spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 4).json(str(PLACE / "in")),
    schema=SCHEMA, event_time="at", lateness="1 second", key="key", parallelism=LAYOUT["rows"],
)
rows.output("all", priority=5)
rows.map(checked, schema=SCHEMA, id="checked", parallelism=LAYOUT["rows"]).output("checked", priority=1)
rows.key_by("key").window(hf.tumbling("10 seconds")).count(id="counts", parallelism=LAYOUT["counts"]).output(
    "counts", priority=3
)
"""
BEGAN = datetime(2026, 1, 1)
KEYS, WINDOW = 7, 10
KEPT = 600
"""Input files that stay; older ones are deleted, for a folder that grows makes every listing slower."""
WAIT = 300.0
STUCK = 1800.0
"""A driver that has not begun after so many seconds is taken for stuck; a busy machine takes minutes."""


class Soak:
    """One soak in its place: everything that a later start needs is in files."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._place = options, options.place.absolute()
        self._input, self._directory = self._place / "in", self._place / "run1"
        self._input.mkdir(parents=True, exist_ok=True)
        known = self._place / "state.json"
        self._state: dict[str, Any] = (
            json.loads(known.read_text())
            if known.exists()
            else {"hours": 0.0, "files": 0, "actions": 0, "starts": 0, "unexpected": [], "layout": {}}
        )
        self._state["layout"] = self._state["layout"] or {"rows": 2, "counts": 2}
        self._state["starts"] += 1
        # A start that was killed may have written files after it last saved.
        there = [int(path.stem) for path in self._input.glob("*.json") if not path.name.startswith(".")]
        self._state["files"] = max([self._state["files"], *(number + 1 for number in there)])
        self._written: dict[int, float] = {}
        self._logged_files = 0
        self._write_layout()
        (self._place / "poison").unlink(missing_ok=True)
        (self._place / "soak_app.py").write_text(APPLICATION.format(place=str(self._place)))
        self._storage = open_storage(str(self._directory / "run"))
        self._stop, self._input_over = threading.Event(), threading.Event()
        self._driver: Driver | None = None
        self._lock = threading.Lock()

    # -- the whole -----------------------------------------------------------------------------------------------------

    def go(self) -> int:
        """Soak until the hours are over or somebody stops it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop.set())
        with ExitStack() as held:
            self._cluster = held.enter_context(EmbeddedCluster(self._options.nodes))
            held.callback(self._end_driver)
            self._start_driver()
            threads = [threading.Thread(target=work, daemon=True) for work in (self._feed, self._sample)]
            for thread in threads:
                thread.start()
            self._act()
            self._input_over.set()
            for thread in threads:
                thread.join()
            if self._state["hours"] < self._options.hours:
                self._stop_driver()
                self._save()
                print(f"stopped after {self._state['hours']:.2f} h; the same command goes on", flush=True)
                return 3
            self._stop_driver()
            ended = self._finish()
        return self._conclude(ended)

    def _act(self) -> None:
        """Do one action after the other, with a pause between."""
        while not self._stop.wait(self._options.every) and self._state["hours"] < self._options.hours:
            action, draw = draw_action(self._options.seed, self._state["actions"])
            began = time.time()
            problem: str | None = None
            try:
                problem = self._check_driver()
                what = self._do(action, draw)
            except SystemExit as error:  # a driver that does nothing
                what, problem = {}, problem or str(error).splitlines()[0]
                self._end_driver()
                self._start_driver()
            self._state["actions"] += 1
            line = {
                "at": began,
                "hours": round(self._state["hours"], 4),
                "action": str(action),
                "seconds": round(time.time() - began, 1),
                **what,
                **({"problem": problem} if problem else {}),
            }
            with (self._place / "actions.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
            self._save()

    def _do(self, action: Action, draw: Random) -> dict[str, Any]:
        nodes = sorted(self._cluster.nodes)
        match action:
            case Action.KILL_NODE:
                node = draw.choice(nodes)
                self._cluster.kill_node(node)
                self._cluster.add_node()
                return {"node": str(node)}
            case Action.FREEZE_NODE:
                node, seconds = draw.choice(nodes), round(draw.uniform(1.0, 8.0), 1)
                self._cluster.freeze_node(node)
                self._stop.wait(seconds)
                self._cluster.thaw_node(node)
                return {"node": str(node), "frozen": seconds}
            case Action.KILL_DRIVER:
                self._end_driver()
                self._start_driver()
                return {}
            case Action.POISON:
                return self._poison()
            case Action.RESCALE:
                self._stop_driver()
                self._state["layout"] = {"rows": draw.choice([1, 2, 3]), "counts": draw.choice([1, 2, 3])}
                self._write_layout()
                self._start_driver()
                return {"layout": dict(self._state["layout"])}

    def _poison(self) -> dict[str, Any]:
        """Let an operator raise until its queries are parked, remove the cause, resume them."""
        (self._place / "poison").touch()
        parked = self._until(lambda: bool(parked_queries(self._storage)))
        queries = parked_queries(self._storage)
        (self._place / "poison").unlink(missing_ok=True)
        while self._until(lambda: bool(parked_queries(self._storage)), 3.0) and not self._stop.is_set():
            resume_queries(self._storage)
            self._until(lambda: not parked_queries(self._storage), 15.0)
        return {"parked": list(queries), "was_parked": parked}

    def _until(self, holds: Any, seconds: float = WAIT) -> bool:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline or self._stop.wait(0.5):
                return bool(holds())
        return True

    # -- driver --------------------------------------------------------------------------------------------------------

    def _words(self, *more: str) -> list[str]:
        words = ["holdfast.cli.main", "run", str(self._place / "soak_app.py"), "--master", self._cluster.master_url]
        words += ["--directory", str(self._directory), "--json", "--take-over", *more]
        return [*words, "--conf", f"spark.holdfast.store.secretFile={self._cluster.secret_file}"]

    def _start_driver(self) -> None:
        driver = Driver(self._words(), str(self._directory), self._place / "driver.log", stuck_after=STUCK)
        with self._lock:
            self._driver = driver
        try:
            began, lines = driver.await_claim(), driver.last_lines()
        except SystemExit as stuck:  # the next action starts another one
            self._end_driver()
            began, lines = False, str(stuck)
        if not began:
            self._unexpected(f"a driver did not start: {lines[-300:]}")

    def _check_driver(self) -> str | None:
        """Start a driver again that has ended by itself, and remember that it did."""
        if self._driver is not None and not self._driver.ended:
            return None
        lines = "" if self._driver is None else self._driver.last_lines()
        why = (lines.strip().splitlines() or ["it logged nothing"])[-1]
        self._unexpected(why)
        self._start_driver()
        return f"the driver had ended by itself: {why}"

    def _unexpected(self, why: str) -> None:
        self._state["unexpected"].append(why)
        print(f"unexpected: {why}", flush=True)

    def _end_driver(self) -> None:
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None and not driver.ended:
            driver.kill(driver.tree)

    def _stop_driver(self) -> None:
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None and not driver.ended and (status := driver.stop()):
            self._unexpected(f"a driver that was stopped ended with status {status}: {driver.last_lines()[-300:]}")

    # -- input and samples ---------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Write a file every so often: its rows are of one second of event time."""
        due = time.monotonic()
        while not self._input_over.is_set():
            self._write_file(self._state["files"])
            self._state["files"] += 1
            self._drop_old()
            due = max(due + self._options.interval, time.monotonic())
            self._input_over.wait(max(0.0, due - time.monotonic()))
            if self._state["files"] % 20 == 0:
                self._save()  # a later start must not write a file again that was read

    def _drop_old(self) -> None:
        """Delete the files that are in batches for long; their number grows with the soak, and listing with it."""
        for path in sorted(self._input.glob("0*.json"))[:20]:
            if int(path.stem) < self._logged_files - KEPT:
                path.unlink(missing_ok=True)
        for number in [number for number in self._written if number < self._logged_files - KEPT]:
            del self._written[number]

    def _arrived(self, row: int) -> float | None:
        return self._written.get(row // self._options.rows)

    def _write_file(self, number: int) -> None:
        rows = self._options.rows
        lines = []
        for one in range(rows):
            at = BEGAN + timedelta(seconds=number + one / rows)
            lines.append(json.dumps({"id": number * rows + one, "key": f"k{one % KEYS}", "at": at.isoformat()}))
        hidden = self._input / f".{number:08d}.json"
        hidden.write_text("\n".join(lines) + "\n")
        hidden.rename(self._input / f"{number:08d}.json")
        self._written[number] = time.time()

    def _sample(self) -> None:
        sampler, last = Sampler(self._directory, self._arrived), time.monotonic()
        sampler.counted, sampler.rows = self._state.get("counted", (-1, 0))
        while not self._input_over.wait(self._options.sample):
            with self._lock:
                processes = [] if self._driver is None or self._driver.ended else self._driver.tree
            now = time.monotonic()
            self._state["hours"] += (now - last) / 3600
            last = now
            found = {"hours": round(self._state["hours"], 5), "at": time.time(), "load": os.getloadavg()[0]}
            found |= sampler.sample(self._cluster, processes)
            self._state["counted"] = [sampler.counted, sampler.rows]
            self._logged_files = sampler.rows // self._options.rows
            found["behind"] = self._state["files"] - self._logged_files
            with (self._place / "samples.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")

    def _write_layout(self) -> None:
        (self._place / "layout.json").write_text(json.dumps(self._state["layout"]))

    def _save(self) -> None:
        beside = self._place / ".state.json"
        beside.write_text(json.dumps(self._state))
        beside.replace(self._place / "state.json")

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish(self) -> int:
        """Let the run read all that is left, close its windows and end."""
        driver = Driver(self._words("--available-now", "--close"), str(self._directory), self._place / "driver.log")
        return driver.end(3600.0)

    def _conclude(self, status: int) -> int:
        wrong = self._wrong_rows()
        samples = [json.loads(line) for line in (self._place / "samples.jsonl").read_text().splitlines()]
        series = series_of([{k: v for k, v in one.items() if k not in ("at", "load", "nodes")} for one in samples])
        slopes = [slope_of(name, points) for name, points in series.items() if name not in ("published",)]
        actions = [json.loads(line) for line in self._lines("actions.jsonl")]
        verdict = {
            "hours": round(self._state["hours"], 3),
            "starts": self._state["starts"],
            "files": self._state["files"],
            "rows": self._state["files"] * self._options.rows,
            "actions": dict(Counter(one["action"] for one in actions)),
            "exactly_once": not wrong and status == 0,
            "wrong": wrong,
            "last_status": status,
            "unexpected_ends": self._state["unexpected"],
            "load": [round(min(one["load"] for one in samples), 1), round(max(one["load"] for one in samples), 1)],
            "flat": {
                one.name: {
                    "flat": one.flat,
                    "median": round(one.median, 3),
                    "per_hour": round(one.per_hour, 3),
                    "spread": [round(one.low, 3), round(one.high, 3)],
                    "samples": one.samples,
                }
                for one in slopes
            },
        }
        (self._place / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n")
        (self._place / "soak.html").write_text(_page(verdict, series, actions))
        print(json.dumps(verdict, indent=2), flush=True)
        flat = all(one.flat is not False for one in slopes)
        return 0 if verdict["exactly_once"] and flat and not self._state["unexpected"] else 1

    def _lines(self, name: str) -> list[str]:
        path = self._place / name
        return path.read_text().splitlines() if path.exists() else []

    def _wrong_rows(self) -> list[str]:
        """Compare all outputs with what the files held."""
        count, wrong = self._state["files"] * self._options.rows, []
        for name in ("all", "checked"):
            found = ParquetSink(f"{self._directory}/out/{name}").rows()
            ids = [] if found is None else sorted(found["id"].to_pylist())
            if ids != list(range(count)):
                wrong.append(f"{name}: {len(ids)} rows, {len(set(ids))} different, {count} expected")
        found = ParquetSink(f"{self._directory}/out/counts").rows()
        have: Counter[tuple[str, int]] = Counter()
        for row in [] if found is None else found.to_pylist():
            window = int((row["window_start"].replace(tzinfo=None) - BEGAN).total_seconds()) // WINDOW
            have[row["key"], window] += row["count"]
        want = expected_counts(self._state["files"], self._options.rows, KEYS, WINDOW)
        if dict(have) != want:
            different = sum(have.get(place, 0) != number for place, number in want.items())
            more = len(set(have) - set(want))
            wrong.append(f"counts: {different} of {len(want)} windows differ, {more} are too many")
        return wrong


def _page(verdict: dict[str, Any], series: dict[str, list[tuple[float, float]]], actions: list[dict[str, Any]]) -> str:
    """Draw every series over time in one page that opens without a network."""
    marks = [Mark(one["hours"] * 3600, one["action"], "bad") for one in actions]
    parts = []
    for name, points in series.items():
        end = max(hours for hours, _ in points) * 3600
        frame = svg.Frame(end, 0, max(value for _, value in points) * 1.1 or 1.0, 220)
        drawn = [
            *svg.lines(frame, marks),
            *svg.axes(frame, name),
            svg.line(frame, [(h * 3600, v) for h, v in points], 0, name),
        ]
        parts.append(f"<h2>{escape(name)}</h2>{svg.drawing(220, name, drawn)}")
    style = (
        "body{font:14px sans-serif;margin:2em auto;max-width:960px}svg{width:100%}.series{fill:none;stroke:#2563eb}"
        ".grid{stroke:#ddd}.axis{stroke:#888}.mark{stroke:#dc2626;opacity:.5}.tick,.label{font-size:11px;fill:#555}"
    )
    summary = escape(json.dumps(verdict, indent=1))
    return (
        f"<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Soak</title><style>{style}</style></head>"
        f"<body><h1>Soak of {verdict['hours']} h</h1>{''.join(parts)}<pre>{summary}</pre></body></html>\n"
    )


def main() -> int:
    """Read what was asked for, and soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0, help="of soaking in all, over all starts")
    parser.add_argument("--place", type=Path, default=Path("soak"), help="where everything is written")
    parser.add_argument("--nodes", type=int, default=4, help="of the embedded cluster")
    parser.add_argument("--every", type=float, default=45.0, help="seconds between two actions")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two files of the input")
    parser.add_argument("--rows", type=int, default=50, help="rows of a file")
    parser.add_argument("--sample", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--seed", type=int, default=1, help="of the actions")
    return Soak(parser.parse_args()).go()


if __name__ == "__main__":
    sys.exit(main())

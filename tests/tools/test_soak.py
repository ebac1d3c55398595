"""The soak's own handling of drivers: a slow one is no fault of the run, and one that is stuck ends no soak."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast_lab import driver_processes
from holdfast_lab.driver_processes import Driver
from tools.loading import load_tool

SOAK = load_tool("soak")


def soak(place: Path) -> Any:
    found = SOAK.Soak(argparse.Namespace(place=place, hours=1.0, every=0.0, seed=1, nodes=1, rows=5))
    found._cluster = SimpleNamespace(master_url="none", secret_file="none", nodes=["n0"])
    return found


class Stuck:
    """A driver that never takes its claim."""

    ended = False
    tree = ()

    def __init__(self, *_: object, **__: object) -> None:
        self.ended = False

    def await_claim(self) -> bool:
        raise SystemExit("the driver does nothing:\nno line")

    def kill(self, processes: object = None) -> int:
        self.ended = True
        return -9

    def last_lines(self) -> str:
        return "no line"


def test_a_driver_that_does_not_start_ends_no_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is started before the next action; the verdict names it."""
    monkeypatch.setattr(SOAK, "Driver", Stuck)
    one = soak(tmp_path)
    done: list[object] = []

    def do(action: object, draw: object) -> dict[str, object]:
        done.append(action)
        if len(done) == 2:
            one._stop.set()
        return {}

    monkeypatch.setattr(one, "_do", do)
    one._act()
    assert len(done) == 2
    assert any("a driver did not start" in why for why in one._state["unexpected"])
    lines = [json.loads(line) for line in (tmp_path / "actions.jsonl").read_text().splitlines()]
    assert all("the driver had ended by itself" in line["problem"] for line in lines)


def test_a_stop_waits_as_long_as_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the last checkpoint takes minutes, too."""
    waited: list[float] = []

    class Process(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                waited.append(timeout)
            return super().wait()

    monkeypatch.setattr(driver_processes.subprocess, "Popen", Process)
    words = ["holdfast.not_there"]
    assert Driver(words, str(tmp_path), tmp_path / "log", stuck_after=1800.0).stop() != 0
    assert Driver(words, str(tmp_path), tmp_path / "log").end(7.0) != 0
    assert waited == [1800.0, 7.0]

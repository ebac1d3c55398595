"""The process dies at any file operation and leaves litter and half-written files; a new one goes on; nothing shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import Application, count, durable_files, session, sliding, tumbling
from holdfast.runtime import InProcess, ParquetSink
from holdfast.runtime.state import directory_store
from runtime.generated import SCHEMA, batches, table

OUTPUTS = ("windows", "sessions", "join")
COUNT = 6


class Killed(BaseException):
    """What a dead process looks like from inside: nothing runs after it, not even clean-up."""


def application(directory: Path) -> Application:
    app = Application("crashes")
    left = app.source("l", schema=SCHEMA, event_time="at", lateness=1, parallelism=2)
    right = app.source("r", schema=SCHEMA, event_time="at", lateness=1)
    windows = left.key_by("word").window(sliding(2, every=1)).agg(n=count(), x=hf.avg("x"), id="windows")
    windows.output(sink=ParquetSink(directory / "windows"))
    sessions = right.key_by("word").window(session(gap=0.5)).count(id="sessions", parallelism=2)
    sessions.output(sink=ParquetSink(directory / "sessions"))
    windows.join(sessions, on="word", window=tumbling(1), id="join").output(sink=ParquetSink(directory / "join"))
    return app


def run(directory: Path, made: list[dict[str, pa.Table]]) -> InProcess:
    """Run from wherever the directory stands to the end."""
    running = InProcess(application(directory), directory=directory / "state", nodes=2, checkpoint_every=2)
    for batch in made[running.frontier + 1 :]:
        running.feed(batch)
    if running.frontier < len(made):
        running.close()
    return running


@contextmanager
def dying_at(operation: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Die at the n-th file operation: a file being written is left half-written. Yields what was done so far."""
    done: list[str] = []

    def watched(name: str, real: Callable[..., Any], half: Callable[..., Any] | None = None) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if len(done) >= operation:
                if len(done) == operation and half is not None:
                    half(*args)
                done.append("killed")
                raise Killed
            done.append(name)
            return real(*args, **options)

        return call

    def write_half(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", watched("link", os.link))
        patch.setattr(os, "fsync", watched("fsync", os.fsync))
        patch.setattr(os, "replace", watched("replace", os.replace))
        patch.setattr(os, "unlink", watched("unlink", os.unlink))
        patch.setattr(directory_store, "_write_new", watched("write", directory_store._write_new, write_half))
        durably = watched("write", durable_files.write_durably, lambda path, parts: write_half(path, b"".join(parts)))
        patch.setattr(durable_files, "write_durably", durably)
        yield done


def outputs(running: InProcess) -> dict[str, list[dict[str, Any]]]:
    found = {name: running.rows(name).to_pylist() for name in OUTPUTS}
    late = running.late("windows")
    return {**found, "late": [] if late is None else late.to_pylist()}


def test_a_process_may_die_at_any_file_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [{"l": table(a), "r": table(b)} for a, b in zip(batches(11, COUNT, 12), batches(12, COUNT, 12), strict=True)]
    with dying_at(10**9, monkeypatch) as done:
        expected = outputs(run(tmp_path / "plain", made))
    assert len(done) > 200
    assert expected["join"]
    assert expected["late"]
    points, killed = range(0, len(done), 23), 0
    for number, point in enumerate(points):
        directory = tmp_path / str(number)
        died = True
        with dying_at(point, monkeypatch) as made_here, suppress(Killed):
            run(directory, made)
            died = False
        assert died == ("killed" in made_here), f"what killed the process at operation {point} was swallowed"
        killed += died
        # It dies a second time soon after it was started again.
        with dying_at(20 + 3 * number, monkeypatch), suppress(Killed):
            run(directory, made)
        assert outputs(run(directory, made)) == expected, (
            f"killed at operation {point} of {len(done)}, then at {20 + 3 * number}"
        )
    # How many operations a run takes depends on the clock a little: it may be over before the last points.
    assert killed > len(points) * 3 / 4

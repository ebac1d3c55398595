"""Outlives its parent by a moment, to end what the parent started. Runs beside the driver, as a process of its own.

The parent writes `+GROUP` for each process group it starts, `-GROUP` when one has ended, `@FOLDER` for a folder to go,
`!COMMAND` (a list of words, as JSON) for what undoes a mount or a network. When the pipe closes, however the parent
ended (also by `kill -9`), the process reaper kills the groups, runs the commands, removes the folders and ends. A
group's leader leads a session too: what has left the group (Spark's Python workers do) is still in the session and goes
with it, frozen or not. It imports nothing but the standard library, so it starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import IO


class ProcessReaper:
    """The parent's end: says what there is to end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._process.stdin is not None
        self._pipe: IO[str] = self._process.stdin

    def watch_group(self, group: int) -> None:
        """End this process group when the parent ends."""
        self._write(f"+{group}")

    def forget_group(self, group: int) -> None:
        """This process group has ended; its number may be given to others."""
        self._write(f"-{group}")

    def watch_folder(self, folder: str) -> None:
        """Remove this folder when the parent ends."""
        self._write(f"@{folder}")

    def undo(self, *words: str) -> None:
        """Run this command when the parent ends, after its process groups; one that has nothing to undo may fail."""
        self._write("!" + json.dumps(words))

    def close(self) -> None:
        """End everything watched now, and wait until it is done."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        self._pipe.write(line + "\n")
        self._pipe.flush()


def watch(lines: IO[str]) -> None:
    """Read what to watch until the parent is gone, then end it all."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: list[int] = []
    folders: list[str] = []
    commands: list[list[str]] = []
    for line in lines:
        kind, rest = line[0], line[1:].rstrip("\n")
        if kind == "+":
            groups.append(int(rest))
        elif kind == "-":
            groups.remove(int(rest))
        elif kind == "@":
            folders.append(rest)
        elif kind == "!":
            commands.append(json.loads(rest))
    for group in groups:
        kill_session(group)
    for words in commands:
        with contextlib.suppress(OSError):
            subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def session_of(leader: int) -> list[int]:
    """Return the processes of a session that run, are frozen or wait; not those that have ended."""
    return list(parents_of_session(leader))


def parents_of_session(leader: int) -> dict[int, int]:
    """Return the processes of a session that have not ended, each with its parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:
                state, parent, _, session = stat.read().rpartition(b")")[2].split()[:4]
                if int(session) == leader and state not in (b"Z", b"X"):
                    found[int(name)] = int(parent)
    return found


def signal_session(leader: int, number: signal.Signals, rounds: int = 10) -> None:
    """Send a signal to every process of a session, and to those that they start meanwhile."""
    known: set[int] = set()
    for _ in range(rounds):
        fresh = set(session_of(leader)) - known
        if not fresh:
            return
        for process in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        known |= fresh


def kill_session(leader: int) -> None:
    """End a session as a machine dies: the leader's group at once, then whatever had left it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    signal_session(leader, signal.SIGKILL)


if __name__ == "__main__":
    watch(sys.stdin)

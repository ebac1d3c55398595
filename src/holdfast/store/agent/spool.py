"""The spool: the folder through which tasks save and fetch snapshots without a socket or a secret. Runs in tasks.

A task must not wait for the network. It writes a snapshot into the spool, continues, and reads the answer in a later
cycle; the node's agent (`agent`, `spool_service`) saves and fetches in the background. Both sides see whole files
only: every file is written under `parts` and renamed. Several processes may use one spool; every call is idempotent.

    SPOOL/orders/KEY.save, KEY.durable              snapshots to save
    SPOOL/orders/KEY.fetch, *.forget                snapshots to fetch and to delete
    SPOOL/answers/KEY.saved, KEY.lost               results
    SPOOL/snapshots/KEY                             snapshots that were fetched
    SPOOL/durable/RUN                               the durable folder of a run, if it is not the agent's
    SPOOL/parts/                                    files being written
    SPOOL/heartbeat                                 touched by the agent while it runs
    SPOOL/agent.json                                the agent's address and process
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.store.agent.snapshot_files import mapped_data, write_snapshot
from holdfast.store.agent.snapshot_names import key_of
from holdfast.store.wire.address import Address
from holdfast.store.wire.failures import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("holdfast.store.agent.spool")
SPOOL_VARIABLE = "HOLDFAST_SPOOL"
"""Environment variable of tasks: the spool folder of their node."""
SILENCE_SECONDS = 10.0
"""Age of the heartbeat, in seconds, from which the agent counts as not responding."""
AGAIN_SECONDS = 5.0
"""Seconds after which a lost snapshot may be requested again: peers may have returned."""
FOLDERS = ("orders", "answers", "snapshots", "durable", "parts")


@dataclass(frozen=True, slots=True)
class SaveAnswer:
    """The result of a save: done, or the problem because of which it is tried again (unless `final`)."""

    bytes: int = 0
    seconds: float = 0.0
    """From the order to the answer."""
    fragments: int = 0
    """Fragments on peers; none where only a durable copy was made."""
    durable: bool = False
    """A copy is in the durable folder."""
    problem: str | None = None
    final: bool = False
    """The save is not tried again: its epoch is fenced. A newer epoch may save the same snapshot."""
    epoch: int = 0
    """The fenced epoch, where the answer is final."""

    @property
    def ok(self) -> bool:
        """The snapshot is safe."""
        return self.problem is None


class Spool:
    """A task's side of the spool. May be pickled: what travels is the folder's name."""

    def __init__(
        self,
        folder: Path | str,
        *,
        durable_folder: Path | str | None = None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """Use this folder of the node; the agent and the tasks name the same one.

        `durable_folder`: the folder for durable copies of these snapshots; None: the folder in the agent's settings.
        """
        self.folder = Path(folder)
        self.durable_folder = None if durable_folder is None else Path(durable_folder)
        self.silence_seconds = silence_seconds
        self._problems: dict[str, SaveAnswer] = {}
        self._unreachable: dict[str, str] = {}
        self._to_forget: list[tuple[list[str], int | None]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _spool, (str(self.folder), self.durable_folder, self.silence_seconds)

    # Saving

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """Start to save an immutable snapshot under this name; `saved` returns problems, a full disk included."""
        key = key_of(name)
        order = self._order(key, "durable" if durable else "save")
        # The agent writes the answer before it removes the order: one of the two exists from the first call on.
        if order.exists() or self._order(key, "durable").exists():
            return
        answer = self._answer(key)
        if answer is not None and answer.final and epoch <= answer.epoch:
            return
        if answer is not None and answer.ok and (answer.durable or not durable):
            return
        self._problems.pop(key, None)
        try:
            self._prepare(name)
            write_snapshot(self.folder / "parts", name, data, epoch=epoch, durable=durable).rename(order)
        except OSError as error:
            self._problems[key] = SaveAnswer(problem=f"cannot spool {name}: {error.strerror or error}")

    def saved(self, name: str) -> SaveAnswer | None:
        """Return the result of a save; None: it is not done yet."""
        key = key_of(name)
        pending = any(self._order(key, kind).exists() for kind in ("durable", "save"))
        answer = self._answer(key)
        if answer is not None and (not pending or not answer.ok):
            return answer
        if not pending:
            return self._problems.get(key)
        silence = self.silence()
        return None if silence is None else SaveAnswer(problem=silence)

    # Fetching

    def fetch(self, name: str) -> None:
        """Start to fetch a snapshot to this node."""
        key = key_of(name)
        snapshot, order, lost = self._snapshot(key), self._order(key, "fetch"), self._lost(key)
        with contextlib.suppress(FileNotFoundError):
            os.utime(snapshot)  # still wanted
            return
        if order.exists():
            return
        with contextlib.suppress(FileNotFoundError):
            if time.time() - lost.stat().st_mtime < AGAIN_SECONDS:
                return
            lost.unlink()
        self._unreachable.pop(key, None)
        try:
            self._prepare(name)
            publish(self.folder, order, json.dumps({"name": name}).encode())
        except OSError as error:
            self._unreachable[key] = f"{name} cannot be fetched to this node: {error.strerror or error}"

    def fetched(self, name: str) -> pa.Buffer | None:
        """Return a fetched snapshot, mapped; the agent that fetched it has compared its checksum."""
        snapshot = self._snapshot(key_of(name))
        try:
            os.utime(snapshot)
            return mapped_data(snapshot)
        except FileNotFoundError:
            return None
        except Corrupt:
            snapshot.unlink(missing_ok=True)  # truncated by a crash of the machine: the next fetch replaces it
            return None

    def lost(self, name: str) -> str | None:
        """Return why a snapshot cannot be fetched; None: it is here, being fetched, or was not requested."""
        key = key_of(name)
        try:
            return self._lost(key).read_text()
        except FileNotFoundError:
            return self._unreachable.get(key)

    # Forgetting

    def forget(self, names: Sequence[str], *, epoch: int | None = None) -> None:
        """Delete snapshots that are no longer needed: fragments, durable copies and local files.

        `epoch` is the caller's epoch (None: the highest that saved through this spool); a fenced epoch may not delete
        what a newer one may need.
        """
        for name in names:
            key_of(name)
        self._to_forget += [(list(names), epoch)] if names else []
        while self._to_forget:
            names_now, epoch_of_order = self._to_forget[0]
            order = self.folder / "orders" / f"{secrets.token_hex(8)}.forget"
            try:
                for run in {name.partition("/")[0] for name in names_now}:
                    self._prepare(run)
                publish(self.folder, order, json.dumps({"names": names_now, "epoch": epoch_of_order}).encode())
            except OSError as error:
                # The names stay in the list: the next call writes them.
                log.warning("snapshots are deleted later, the order could not be written: %s", error)
                return
            self._to_forget.pop(0)

    # The agent

    def _prepare(self, name: str) -> None:
        """Create the folders, and publish the durable folder of this run to the agent."""
        make_folders(self.folder)
        run = name.partition("/")[0]
        if self.durable_folder is not None and read_durable(self.folder, run) != self.durable_folder:
            publish(self.folder, self.folder / "durable" / run, str(self.durable_folder).encode())

    def silence(self) -> str | None:
        """Return a sentence if no agent runs on this node; None where one does."""
        try:
            age = time.time() - (self.folder / "heartbeat").stat().st_mtime
        except FileNotFoundError:
            return "no agent has started on this node"
        return f"this node's agent has not responded for {age:.0f} s" if age > self.silence_seconds else None

    def _answer(self, key: str) -> SaveAnswer | None:
        return read_answer(self.folder, key)

    def _order(self, key: str, kind: str) -> Path:
        return self.folder / "orders" / f"{key}.{kind}"

    def _snapshot(self, key: str) -> Path:
        return self.folder / "snapshots" / key

    def _lost(self, key: str) -> Path:
        return self.folder / "answers" / f"{key}.lost"


def agent_address(folder: Path | str) -> Address | None:
    """Return where the agent of a spool listens, once it does."""
    try:
        return Address.parse(json.loads((Path(folder) / "agent.json").read_bytes())["address"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def make_folders(spool: Path) -> None:
    """Create a spool's folders if they do not exist."""
    if not (spool / FOLDERS[-1]).is_dir():
        for name in FOLDERS:
            (spool / name).mkdir(parents=True, exist_ok=True, mode=0o700)


def publish(spool: Path, path: Path, contents: bytes) -> None:
    """Write a small file of the spool atomically."""
    part = spool / "parts" / f"{os.getpid()}-{secrets.token_hex(6)}.part"
    try:
        part.write_bytes(contents)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_durable(spool: Path, run: str) -> Path | None:
    """Return the durable folder that the tasks of a run have named; None: the agent's."""
    try:
        return Path((spool / "durable" / run).read_text())
    except FileNotFoundError:
        return None


def read_answer(spool: Path, key: str) -> SaveAnswer | None:
    """Return the result of a save, if there is one."""
    try:
        return SaveAnswer(**json.loads((spool / "answers" / f"{key}.saved").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):  # an answer that a crash of the machine has torn counts as none
        return None


def write_answer(spool: Path, key: str, answer: SaveAnswer) -> None:
    """Write the result of a save."""
    publish(spool, spool / "answers" / f"{key}.saved", json.dumps(asdict(answer)).encode())


def _spool(folder: str, durable_folder: Path | None, silence_seconds: float) -> Spool:
    return Spool(folder, durable_folder=durable_folder, silence_seconds=silence_seconds)

"""The spool: the folder through which tasks save and fetch snapshots without a socket or a secret. Runs in tasks.

A task must not wait for the network. It writes a snapshot into the spool, continues, and reads the answer in a later
cycle; the node's agent (`agent`, `spool_service`) saves and fetches in the background. Both sides see whole files
only: every file is written under `parts` and renamed. Several processes may use one spool; every call is idempotent.

    SPOOL/orders/KEY.save, KEY.durable              snapshots to save
    SPOOL/orders/KEY.fetch, *.forget                snapshots to fetch and to delete
    SPOOL/answers/KEY.saved, KEY.lost, KEY.fetched  results; where a snapshot was fetched from
    SPOOL/answers/KEY.fetching                      how far a fetch is that takes a while
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
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.store.agent.fetch_progress import read_progress
from holdfast.store.agent.snapshot_files import mapped_data, write_snapshot
from holdfast.store.agent.snapshot_names import key_of
from holdfast.store.agent.spool_files import FILES, SpoolFiles
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
ASKING_SECONDS = 300.0
"""Who asks for a snapshot at least so often gets every answer to it: a task may look seldom, once in a cycle."""
_MOST_ASKED = 256
_BEHIND_SECONDS = 0.1
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
    survives: int = 0
    """Peers that may be lost, whichever they are."""

    @property
    def ok(self) -> bool:
        """The snapshot is safe."""
        return self.problem is None

    @property
    def fenced(self) -> bool:
        """Whether the save was refused for its epoch: there may be a newer one."""
        return self.final


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Where a fetched snapshot came from."""

    source: str = "node"
    """`peers`, `folder`, or `node`: it was still in this node's spool."""
    bytes: int = 0
    """Read from there; of peers, those of doubled requests included."""
    seconds: float = 0.0
    """Retrieving and recomputing, where it came from peers."""
    predicted_seconds: float | None = None
    """The same by the model, before it began."""
    data: int = 0
    parity: int = 0
    """m and k of the code it was stored with, where it came from peers."""
    missing: int = 0
    """Fragments that were lost or damaged."""


class Spool:
    """A task's side of the spool. May be pickled: what travels is the folder's name."""

    def __init__(
        self,
        folder: Path | str,
        *,
        durable_folder: Path | str | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        files: SpoolFiles = FILES,
    ) -> None:
        """Use this folder of the node; the agent and the tasks name the same one.

        `durable_folder`: the folder for durable copies of these snapshots; None: the folder in the agent's settings.
        """
        self.folder = Path(folder)
        self._orders, self._answers = self.folder / "orders", self.folder / "answers"
        self.durable_folder = None if durable_folder is None else Path(durable_folder)
        self.silence_seconds = silence_seconds
        self._files = files
        self._problems: dict[str, SaveAnswer] = {}
        self._unreachable: dict[str, str] = {}
        self._asked_at: dict[str, float] = {}
        """When this process last asked for each snapshot."""
        self._to_forget: list[tuple[list[str], int | None]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _spool, (str(self.folder), self.durable_folder, self.silence_seconds)

    # Saving

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """Start to save an immutable snapshot under this name; `saved` returns problems, a full disk included."""
        key = key_of(name)
        order = self._order(key, "durable" if durable else "save")
        try:
            # The agent writes the answer before it removes the order: one of the two exists from the first call on.
            if self._files.exists(order) or self._files.exists(self._order(key, "durable")):
                return
            answer = self._answer(key)
            if answer is not None and answer.final and epoch <= answer.epoch:
                return
            if answer is not None and answer.ok and (answer.durable or not durable):
                return
            self._problems.pop(key, None)
            self._prepare(name)
            parts, files = self.folder / "parts", self._files
            files.rename(write_snapshot(parts, name, data, epoch=epoch, durable=durable, files=files), order)
        except OSError as error:
            self._problems[key] = SaveAnswer(problem=f"cannot spool {name}: {error.strerror or error}")

    def saved(self, name: str) -> SaveAnswer | None:
        """Return the result of a save; None: it is not done yet."""
        key = key_of(name)
        try:
            pending = any(self._files.exists(self._order(key, kind)) for kind in ("durable", "save"))
            answer = self._answer(key)
        except OSError as error:
            return SaveAnswer(problem=f"the answer about {name} cannot be read: {error.strerror or error}")
        if answer is not None and (not pending or not answer.ok):
            return answer
        if not pending:
            return self._problems.get(key)
        silence = self.silence()
        return None if silence is None else SaveAnswer(problem=silence)

    # Fetching

    def fetch(self, name: str, *, quick: bool = False, again: bool = False) -> None:
        """Start to fetch a snapshot to this node.

        `quick`: there is another place to read it from, so the agent says at the first look that the ring lacks it.
        `again`: request it anew, although it has just been found lost.
        """
        key = key_of(name)
        snapshot, order, lost = self._snapshot(key), self._order(key, "fetch"), self._lost(key)
        self._unreachable.pop(key, None)
        try:
            with contextlib.suppress(FileNotFoundError):
                self._files.touch(snapshot)  # still wanted
                return
            if self._files.exists(order):
                return
            now, before = self._files.now(), self._asked(key)
            with contextlib.suppress(FileNotFoundError):
                at = self._files.changed_at(lost)
                set_back = at > now + AGAIN_SECONDS  # the clock: an answer from the future would be new for as long
                if not (again or set_back) and (at > now - AGAIN_SECONDS or at >= before):
                    return  # an answer that has come since this process last asked has not been seen
                self._files.remove(lost)
            self._prepare(name)
            publish(self.folder, order, json.dumps({"name": name, "quick": quick}).encode(), self._files)
        except OSError as error:
            self._unreachable[key] = f"{name} cannot be fetched to this node: {error.strerror or error}"

    def _asked(self, key: str) -> float:
        """Note that a snapshot is asked for; return when it was last, infinity: not for long."""
        now = self._files.now()
        before = self._asked_at.pop(key, -math.inf)
        while len(self._asked_at) >= _MOST_ASKED:
            del self._asked_at[next(iter(self._asked_at))]
        self._asked_at[key] = now
        # Times of files may lie a little behind the clock.
        return before - _BEHIND_SECONDS if now - before < ASKING_SECONDS else math.inf

    def fetched(self, name: str) -> pa.Buffer | None:
        """Return a fetched snapshot, mapped; the agent that fetched it has compared its checksum."""
        snapshot = self._snapshot(key_of(name))
        try:
            self._files.touch(snapshot)
            return mapped_data(snapshot, self._files)
        except FileNotFoundError:
            return None
        except (Corrupt, OSError):
            # Truncated by a crash of the machine, or on a bad sector: the next fetch replaces it.
            with contextlib.suppress(OSError):
                self._files.remove(snapshot)
            return None

    def lost(self, name: str) -> str | None:
        """Return why a snapshot cannot be fetched; None: it is here, being fetched, or was not requested."""
        return self.not_found(name) or self._unreachable.get(key_of(name))

    def not_found(self, name: str) -> str | None:
        """Return the agent's answer that a snapshot cannot be found; None: it has given none."""
        try:
            return self._files.read(self._lost(key_of(name))).decode()
        except OSError:
            return None

    def origin(self, name: str) -> FetchAnswer | None:
        """Return where a fetched snapshot came from; None: nothing says so."""
        try:
            return FetchAnswer(**json.loads(self._files.read(self.folder / "answers" / f"{key_of(name)}.fetched")))
        except (OSError, ValueError, TypeError):
            return None

    def progress(self, name: str) -> tuple[int, int] | None:
        """Return how many of the fragments that a snapshot is rebuilt from have come, and how many it needs.

        None: it is not being fetched from peers, or has not been for long enough.
        """
        return read_progress(self.folder, key_of(name), self._files)

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
            order = self.folder / "orders" / f"{self._files.new_name()}.forget"
            try:
                for run in {name.partition("/")[0] for name in names_now}:
                    self._prepare(run)
                wanted = json.dumps({"names": names_now, "epoch": epoch_of_order}).encode()
                publish(self.folder, order, wanted, self._files)
            except OSError as error:
                # The names stay in the list: the next call writes them.
                log.warning("snapshots are deleted later, the order could not be written: %s", error)
                return
            self._to_forget.pop(0)

    # The agent

    def _prepare(self, name: str) -> None:
        """Create the folders, and publish the durable folder of this run to the agent."""
        make_folders(self.folder, self._files)
        run = name.partition("/")[0]
        if self.durable_folder is not None and read_durable(self.folder, run, self._files) != self.durable_folder:
            publish(self.folder, self.folder / "durable" / run, str(self.durable_folder).encode(), self._files)

    def silence(self) -> str | None:
        """Return a sentence if no agent runs on this node; None where one does."""
        try:
            age = self._files.now() - self._files.changed_at(self.folder / "heartbeat")
        except FileNotFoundError:
            return "no agent has started on this node"
        return f"this node's agent has not responded for {age:.0f} s" if age > self.silence_seconds else None

    def _answer(self, key: str) -> SaveAnswer | None:
        return read_answer(self.folder, key, self._files)

    def _order(self, key: str, kind: str) -> Path:
        return self._orders / f"{key}.{kind}"

    def _snapshot(self, key: str) -> Path:
        return self.folder / "snapshots" / key

    def _lost(self, key: str) -> Path:
        return self._answers / f"{key}.lost"


def agent_address(folder: Path | str) -> Address | None:
    """Return where the agent of a spool listens, once it does."""
    try:
        return Address.parse(json.loads((Path(folder) / "agent.json").read_bytes())["address"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def make_folders(spool: Path, files: SpoolFiles = FILES) -> None:
    """Create a spool's folders if they do not exist."""
    if not files.is_folder(spool / FOLDERS[-1]):
        for name in FOLDERS:
            files.make_folder(spool / name)


def publish(spool: Path, path: Path, contents: bytes, files: SpoolFiles = FILES) -> None:
    """Write a small file of the spool atomically."""
    part = spool / "parts" / f"{files.new_name()}.part"
    try:
        files.write(part, [contents])
        files.rename(part, path)
    except OSError:
        files.remove(part)
        raise


def read_durable(spool: Path, run: str, files: SpoolFiles = FILES) -> Path | None:
    """Return the durable folder that the tasks of a run have named; None: the agent's."""
    try:
        return Path(files.read(spool / "durable" / run).decode())
    except FileNotFoundError:
        return None


def read_answer(spool: Path, key: str, files: SpoolFiles = FILES) -> SaveAnswer | None:
    """Return the result of a save, if there is one."""
    try:
        return SaveAnswer(**json.loads(files.read(spool / "answers" / f"{key}.saved")))
    except (FileNotFoundError, ValueError, TypeError):  # an answer that a crash of the machine has torn counts as none
        return None


def write_answer(spool: Path, key: str, answer: SaveAnswer, files: SpoolFiles = FILES) -> None:
    """Write the result of a save."""
    publish(spool, spool / "answers" / f"{key}.saved", json.dumps(asdict(answer)).encode(), files)


def _spool(folder: str, durable_folder: Path | None, silence_seconds: float) -> Spool:
    return Spool(folder, durable_folder=durable_folder, silence_seconds=silence_seconds)

"""The agent's side of the spool: carries out orders in the background and writes answers. Runs in agents, in threads.

Saves are encoded and sent from the spooled file, a few at a time, so memory does not grow with the queue. Fetches have
threads of their own, so that a recovery does not wait behind checkpoints. An order is removed after its answer was
written: an agent that is killed resumes its orders when it restarts. A failed order is reported in one line and tried
again, except a write of a fenced epoch, which can never succeed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.erasure.fragment import StateId
from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, Epoch
from holdfast.store.agent.durable_folder import DurableFolder
from holdfast.store.agent.snapshot_files import check_snapshot, mapped
from holdfast.store.agent.snapshot_names import name_of, state_of
from holdfast.store.agent.spool import SaveAnswer, make_folders, publish, read_answer, read_durable, write_answer
from holdfast.store.client.states import Contents, LoadedFile, Saved
from holdfast.store.wire.failures import BadRequest, Corrupt, StaleEpoch, StateMissing

log = logging.getLogger("holdfast.store.agent.spool_service")
ONLY_VERSION = BatchId(0)
"""A snapshot is immutable: it is the only version of its state."""


class FragmentStore(Protocol):
    """The operations of the fragment store that the service uses; `PeerStore` implements them."""

    def save(self, state: StateId, version: BatchId, epoch: Epoch, contents: Contents) -> Saved:
        """Save a state; return when it is acknowledged."""
        ...

    def load_into(self, state: StateId, path: Path) -> LoadedFile:
        """Load a state into a file."""
        ...

    def forget(self, namespace: str, names: Sequence[str], epoch: Epoch) -> list[str]:
        """Delete states; return the peers that did not respond."""
        ...

    def standing_epoch(self, namespace: str) -> Epoch:
        """Return the highest epoch that wrote to the namespace."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


@dataclass(frozen=True, slots=True)
class SpoolServiceSettings:
    """Settings of the spool service; times in seconds."""

    saves_at_once: int = 2
    fetches_at_once: int = 4
    look_every: float = 0.03
    heartbeat_every: float = 0.5
    retry_most: float = 5.0
    """Longest delay before a failed order is tried again."""
    settle: float = 5.0
    """Time without enough fragments after which a snapshot counts as lost; the ring may be repairing before."""
    unreachable: float = 30.0
    """Time without any reachable peer after which a snapshot counts as lost."""
    keep: float = 3600.0
    """Age at which answers and partly written files are removed."""
    keep_snapshots: float = 600.0
    """Time since the last use at which fetched snapshots are removed; they can be fetched again."""
    forget_again: float = 20.0
    """Time between two attempts to delete states at peers that did not respond."""
    forget_for: float = 1800.0
    """Time after which these attempts end."""


@dataclass(slots=True)
class _Trouble:
    """An order that failed: since when, how many attempts, and when the next one is due."""

    since: float
    tries: int = 0
    due: float = 0.0


class SpoolService:
    """Serves one spool."""

    def __init__(
        self,
        spool: Path,
        open_store: Callable[[], FragmentStore] | None,
        durable: DurableFolder | None,
        settings: SpoolServiceSettings | None = None,
    ) -> None:
        """Serve this spool. The store is opened by the first order that needs it; None: only the durable folder."""
        self._spool, self._open_store, self._durable = spool, open_store, durable
        self._settings = settings or SpoolServiceSettings()
        self._store: FragmentStore | None = None
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._trouble: dict[str, _Trouble] = {}
        self._epochs: dict[str, Epoch] = {}
        self._changed = True
        self._stopping = threading.Event()
        self._saving = ThreadPoolExecutor(self._settings.saves_at_once, thread_name_prefix="holdfast-save")
        self._fetching = ThreadPoolExecutor(self._settings.fetches_at_once, thread_name_prefix="holdfast-fetch")
        self._thread = threading.Thread(target=self._run, name="holdfast-spool", daemon=True)
        make_folders(spool)

    def start(self) -> None:
        """Start; the heartbeat shows tasks that an agent runs."""
        _touch(self._spool / "heartbeat")
        self._thread.start()

    def stop(self) -> None:
        """Stop taking orders; those in progress stay in the spool, and the next agent carries them out again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        for threads in (self._saving, self._fetching):
            threads.shutdown(wait=False, cancel_futures=True)

    # Reading orders

    def _run(self) -> None:
        beat = tidied = 0.0
        copies_tidied = -math.inf
        seen = -1
        while not self._stopping.wait(self._settings.look_every):
            now = time.monotonic()
            try:
                if now - beat >= self._settings.heartbeat_every:
                    beat = now
                    _touch(self._spool / "heartbeat")
                if now - tidied >= 60.0:
                    tidied = now
                    self._tidy()
                if now - copies_tidied >= self._settings.keep and self._durable is not None:
                    copies_tidied = now
                    self._saving.submit(self._durable.tidy)  # remote storage may be slow
                changed = (self._spool / "orders").stat().st_mtime_ns
                due = any(one.due <= now for one in list(self._trouble.values()))
                # A folder's modification time is coarse: within one tick of it, the folder is read once more.
                if changed != seen or self._changed or due or time.time_ns() - changed < 100_000_000:
                    seen, self._changed = changed, False
                    self._look(now)
            except Exception:
                # The service must not stop while the process runs: it logs the error and reads the orders again.
                log.exception("reading the spool's orders failed; it is tried again")

    def _look(self, now: float) -> None:
        with os.scandir(self._spool / "orders") as entries:
            orders = sorted(entry.name for entry in entries)
        for order in orders:
            key, _, kind = order.rpartition(".")
            work = {"save": self._save, "durable": self._save, "fetch": self._fetch, "forget": self._forget}.get(kind)
            if work is None:
                continue
            with self._lock:
                trouble = self._trouble.get(order)
                if key in self._busy or (trouble is not None and trouble.due > now):
                    continue
                self._busy.add(key)
            threads = self._fetching if kind == "fetch" else self._saving
            threads.submit(self._work, work, order, key)
        with self._lock:
            for gone in set(self._trouble) - set(orders):
                del self._trouble[gone]

    def _work(self, work: Callable[[Path, str], float | None], order: str, key: str) -> None:
        """Carry out one order; `work` returns the seconds after which it is tried again, or None when it is done."""
        again: float | None
        try:
            again = None if self._stopping.is_set() else work(self._spool / "orders" / order, key)
        except Exception as error:
            log.exception("order %s failed", order)
            again = self._settings.retry_most
            if order.endswith((".save", ".durable")):
                self._report_problem(key, f"{type(error).__name__}: {error}")
        with self._lock:
            self._busy.discard(key)
            if again is None:
                self._trouble.pop(order, None)
            else:
                trouble = self._trouble.setdefault(order, _Trouble(time.monotonic()))
                trouble.tries += 1
                trouble.due = time.monotonic() + again
        self._changed = True

    def _pause(self, order: Path) -> float:
        trouble = self._trouble.get(order.name)
        tries = 0 if trouble is None else trouble.tries
        return float(min(self._settings.retry_most, 0.25 * 2**tries))

    def _failing_for(self, order: Path) -> float:
        trouble = self._trouble.get(order.name)
        return 0.0 if trouble is None else time.monotonic() - trouble.since

    # Saving

    def _save(self, order: Path, key: str) -> float | None:
        name = name_of(key)
        try:
            asked = order.stat().st_mtime
            head = check_snapshot(order, name)
        except FileNotFoundError:
            return None
        except Corrupt as corrupt:
            # A crash of the machine may leave a truncated file; the task that wrote it is gone too.
            self._report_problem(key, f"{corrupt.what}; save it again")
            order.unlink(missing_ok=True)
            return None
        run = state_of(name).namespace
        self._epochs[run] = max(head.epoch, self._epochs.get(run, Epoch(0)))
        fragments = 0
        try:
            if self._open_store is not None:
                fragments = self._opened().save(state_of(name), ONLY_VERSION, head.epoch, mapped(order)).stored
            if head.durable or self._open_store is None:
                durable_folder = self._folder_of(run)
                if durable_folder is None:
                    raise BadRequest("no durable folder is set", remedy="set a folder that every node can write to")
                durable_folder.save(name, order, head.epoch)
        except (StaleEpoch, BadRequest) as never:
            self._report_problem(key, str(never), refused=head.epoch)
            order.unlink(missing_ok=True)
            return None
        except (HoldfastError, OSError) as error:
            self._report_problem(key, str(error))
            return self._pause(order)
        before = read_answer(self._spool, key)
        durable = head.durable or self._open_store is None or (before is not None and before.durable)
        seconds = max(0.0, time.time() - asked)
        write_answer(self._spool, key, SaveAnswer(head.bytes, seconds, fragments, durable))
        order.unlink(missing_ok=True)
        return None

    def _report_problem(self, key: str, problem: str, *, refused: Epoch | None = None) -> None:
        """Write the problem as the answer; `refused`: the fenced epoch, for which the order is not tried again."""
        answer = SaveAnswer(problem=one_line(problem), final=refused is not None, epoch=refused or 0)
        try:
            write_answer(self._spool, key, answer)
        except OSError as error:  # the disk is full: the task sees no answer, the log has the problem
            log.warning("%s: %s; the answer could not be written either: %s", name_of(key), problem, error)

    # Fetching

    def _fetch(self, order: Path, key: str) -> float | None:
        name, snapshot = name_of(key), self._spool / "snapshots" / key
        if snapshot.exists():
            order.unlink(missing_ok=True)
            return None
        part = self._spool / "parts" / f"{os.getpid()}-{secrets.token_hex(6)}.part"
        why: list[str] = []
        certain = True
        for bring in (self._bring_from_spool, self._bring_from_peers, self._bring_from_folder):
            try:
                if bring(name, key, part):
                    part.rename(snapshot)
                    (self._spool / "answers" / f"{key}.lost").unlink(missing_ok=True)
                    order.unlink(missing_ok=True)
                    return None
            except StateMissing as missing:
                why.append(missing.what)
            except Corrupt as corrupt:
                why.append(str(corrupt))
            except (HoldfastError, OSError) as error:
                why.append(str(error))
                certain = False
            finally:
                part.unlink(missing_ok=True)
        failing = self._failing_for(order)
        if failing >= (self._settings.settle if certain else self._settings.unreachable):
            folder = self._folder_of(state_of(name).namespace)
            no_copy = "no durable folder" if folder is None else "no durable copy"
            reason = "; ".join([*why, *([] if folder is not None and folder.has(name) else [no_copy])])
            publish(self._spool, self._spool / "answers" / f"{key}.lost", one_line(f"{name}: {reason}").encode())
            order.unlink(missing_ok=True)
            return None
        return min(self._pause(order), 1.0)

    def _bring_from_spool(self, name: str, key: str, part: Path) -> bool:
        """Use a snapshot that is still queued here to be saved."""
        for kind in ("durable", "save"):
            with contextlib.suppress(FileNotFoundError):
                os.link(self._spool / "orders" / f"{key}.{kind}", part)
                check_snapshot(part, name)
                return True
        return False

    def _bring_from_peers(self, name: str, key: str, part: Path) -> bool:
        if self._open_store is None:
            return False
        self._opened().load_into(state_of(name), part)
        check_snapshot(part, name)
        return True

    def _bring_from_folder(self, name: str, key: str, part: Path) -> bool:
        folder = self._folder_of(state_of(name).namespace)
        return folder is not None and folder.fetch(name, part)

    # Deleting

    def _forget(self, order: Path, key: str) -> float | None:
        try:
            asked = json.loads(order.read_bytes())
            names = [str(name) for name in asked["names"]]
            states = {name: state_of(name) for name in names}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, HoldfastError) as error:
            log.warning("a deletion order cannot be read and is dropped: %s", error)
            order.unlink(missing_ok=True)
            return None
        keys = {f"{state.namespace}..{state.name}" for state in states.values()}
        with self._lock:
            if keys & self._busy:
                return self._settings.look_every  # a save in progress would restore what is being deleted
        for one in keys:
            for path in (
                *(self._spool / "orders" / f"{one}.{kind}" for kind in ("save", "durable", "fetch")),
                *(self._spool / "answers" / f"{one}.{kind}" for kind in ("saved", "lost")),
                self._spool / "snapshots" / one,
            ):
                path.unlink(missing_ok=True)
        silent: list[str] = []
        try:
            for run in {state.namespace for state in states.values()}:
                here = {name: state.name for name, state in states.items() if state.namespace == run}
                silent += self._forget_run(run, here, asked.get("epoch"))
        except StaleEpoch as stale:
            log.warning("snapshots are not deleted: %s", stale)
            order.unlink(missing_ok=True)
            return None
        except (HoldfastError, OSError) as error:
            log.info("snapshots are deleted later: %s", error)
            silent = ["all"]
        if silent and time.time() - order.stat().st_mtime < self._settings.forget_for:
            return self._settings.forget_again
        order.unlink(missing_ok=True)
        return None

    def _forget_run(self, run: str, names: dict[str, str], epoch: int | None) -> list[str]:
        epoch_of_order = Epoch(epoch) if epoch is not None else self._epochs.get(run)
        silent: list[str] = []
        if self._open_store is not None:
            store = self._opened()
            epoch_of_order = store.standing_epoch(run) if epoch_of_order is None else epoch_of_order
            silent = store.forget(run, sorted(names.values()), epoch_of_order)
        if (folder := self._folder_of(run)) is not None:
            for name in names:
                folder.forget(name, epoch_of_order)
        return silent

    # Everything else

    def _folder_of(self, run: str) -> DurableFolder | None:
        """Return the durable folder of a run: the one its tasks named, or else the one in the agent's settings."""
        named = read_durable(self._spool, run)
        return self._durable if named is None else DurableFolder(named)

    def _opened(self) -> FragmentStore:
        with self._opening:
            if self._store is None:
                assert self._open_store is not None
                self._store = self._open_store()
            return self._store

    def _tidy(self) -> None:
        """Remove answers, snapshots and partly written files that have not been used for long."""
        now, settings = time.time(), self._settings
        for folder, keep in (
            ("answers", settings.keep),
            ("snapshots", settings.keep_snapshots),
            ("parts", settings.keep),
        ):
            for path in (self._spool / folder).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if now - path.stat().st_mtime > keep:
                        path.unlink()


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except FileNotFoundError:
        path.touch(mode=0o600)

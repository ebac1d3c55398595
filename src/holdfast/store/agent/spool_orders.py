"""What an agent does about the orders in its spool, one order at a time. Runs in agents, and in the simulator.

Everything is decided from the files of the spool: an order is removed after its answer was written, so an agent that is
killed between any two calls finds the order again when it restarts. A failed order is reported in one line and tried
again, except a write of a fenced epoch, which can never succeed. Threads, and when to look, are `spool_service`'s.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.erasure.fragment import StateId
from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, Epoch
from holdfast.store.agent.acknowledging import judge, losses_survived
from holdfast.store.agent.durable_folder import DurableFolder
from holdfast.store.agent.fetch_progress import FetchProgress
from holdfast.store.agent.snapshot_files import check_snapshot
from holdfast.store.agent.snapshot_names import name_of, state_of
from holdfast.store.agent.spool import (
    FetchAnswer,
    SaveAnswer,
    make_folders,
    publish,
    read_answer,
    read_durable,
    write_answer,
)
from holdfast.store.agent.spool_files import FILES, SpoolFiles
from holdfast.store.client.states import Contents, LoadedFile, Saved
from holdfast.store.wire.failures import BadRequest, Corrupt, NotSaved, StaleEpoch, StateMissing

if TYPE_CHECKING:
    from holdfast.store.client.retrieving import Progress

log = logging.getLogger("holdfast.store.agent.spool_service")
ONLY_VERSION = BatchId(0)
"""A snapshot is immutable: it is the only version of its state."""


class FragmentStore(Protocol):
    """The operations of the fragment store that the service uses; `PeerStore` implements them."""

    def save(self, state: StateId, version: BatchId, epoch: Epoch, contents: Contents) -> Saved:
        """Save a state; return when it is acknowledged."""
        ...

    def load_into(self, state: StateId, path: Path, version: BatchId | None, progress: Progress) -> LoadedFile:
        """Load a state into a file; `progress` is told how many fragments have come."""
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
    quick_unreachable: float = 2.0
    """The same, where the task can read it elsewhere; there, too few fragments are an answer at the first look."""
    keep: float = 3600.0
    """Age at which answers and partly written files are removed."""
    keep_snapshots: float = 600.0
    """Time since the last use at which fetched snapshots are removed; they can be fetched again."""
    forget_again: float = 20.0
    """Time between two attempts to delete states at peers that did not respond."""
    forget_for: float = 1800.0
    """Time after which these attempts end."""
    wanted_losses: Callable[[Saved], int] = lambda saved: 0
    """Peers that may be lost after a save is acknowledged."""
    tolerant: Callable[[], bool] = lambda: False
    """Whether the run asks for losses to be survived at all."""
    on_degraded: Callable[[str | None], None] = lambda line: None
    """Takes what acknowledged saves lack from now on, or that they lack nothing any more."""


@dataclass(slots=True)
class _Trouble:
    """An order that failed: since when, how many attempts, and when the next one is due."""

    since: float
    tries: int = 0
    due: float = 0.0


class SpoolOrders:
    """Carries out the orders of one spool. Several threads may call, each with another order."""

    def __init__(
        self,
        spool: Path,
        open_store: Callable[[], FragmentStore] | None,
        durable: DurableFolder | None,
        settings: SpoolServiceSettings,
        clock: Callable[[], float],
        files: SpoolFiles = FILES,
    ) -> None:
        """Serve this spool. The store is opened by the first order that needs it; None: only the durable folder.

        `clock` says how long orders have been failing.
        """
        self._spool, self._open_store, self._durable = spool, open_store, durable
        self._orders = spool / "orders"
        self._settings, self._clock, self._files = settings, clock, files
        self._store: FragmentStore | None = None
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._trouble: dict[str, _Trouble] = {}
        self._epochs: dict[str, Epoch] = {}
        self._degraded: str | None = None
        self._progress = FetchProgress(spool, clock, files)
        make_folders(spool, files)

    def take(self) -> list[str]:
        """Return the orders that can be carried out now, each of which is taken: `carry_out` must follow."""
        now, orders = self._clock(), self._files.names(self._orders)
        found = []
        with self._lock:
            for gone in set(self._trouble) - set(orders):
                del self._trouble[gone]
            for order in orders:
                key, _, kind = order.rpartition(".")
                trouble = self._trouble.get(order)
                known = kind in ("save", "durable", "fetch", "forget")
                if known and key not in self._busy and (trouble is None or trouble.due <= now):
                    self._busy.add(key)
                    found.append(order)
        return found

    def any_due(self) -> bool:
        """Return whether an order that failed is to be tried again now."""
        now = self._clock()
        return any(one.due <= now for one in list(self._trouble.values()))

    def carry_out(self, order: str) -> None:
        """Carry out an order that was taken; nothing is raised."""
        key, _, kind = order.rpartition(".")
        work = {"save": self._save, "durable": self._save, "fetch": self._fetch, "forget": self._forget}[kind]
        again: float | None
        try:
            again = work(self._orders / order, key)
        except Exception as error:
            if isinstance(error, OSError):  # a full disk: one line, for it may last
                log.warning("order %s failed, and is tried again: %s", order, error)
            else:
                log.exception("order %s failed", order)
            again = self._settings.retry_most
            if kind in ("save", "durable"):
                self._report_problem(key, f"{type(error).__name__}: {error}")
        self.leave(order, again)

    def leave(self, order: str, again: float | None = None) -> None:
        """Let an order be taken again, after some seconds where it failed."""
        with self._lock:
            self._busy.discard(order.rpartition(".")[0])
            if again is None:
                self._trouble.pop(order, None)
            else:
                trouble = self._trouble.setdefault(order, _Trouble(self._clock()))
                trouble.tries += 1
                trouble.due = self._clock() + again

    def _pause(self, order: Path) -> float:
        trouble = self._trouble.get(order.name)
        tries = 0 if trouble is None else trouble.tries
        return float(min(self._settings.retry_most, 0.25 * 2 ** min(tries, 30)))  # a peer may be away for days

    def _failing_for(self, order: Path) -> float:
        trouble = self._trouble.get(order.name)
        return 0.0 if trouble is None else self._clock() - trouble.since

    # Saving

    def _save(self, order: Path, key: str) -> float | None:
        name = name_of(key)
        try:
            asked = self._files.changed_at(order)
            head = check_snapshot(order, name, self._files)
        except FileNotFoundError:
            return None
        except Corrupt as corrupt:
            # A crash of the machine may leave a truncated file; the task that wrote it is gone too.
            return self._refuse(order, key, f"{corrupt.what}; save it again")
        run = state_of(name).namespace
        self._epochs[run] = max(head.epoch, self._epochs.get(run, Epoch(0)))
        fragments = survives = 0
        try:
            if self._open_store is not None:
                saved = self._opened().save(state_of(name), ONLY_VERSION, head.epoch, self._files.mapped(order))
                fragments, survives = saved.stored, self._acknowledged(saved)
            if head.durable or self._open_store is None:
                durable_folder = self._folder_of(run)
                if durable_folder is None:
                    raise BadRequest("no durable folder is set", remedy="set a folder that every node can write to")
                durable_folder.save(name, order, head.epoch)
        except (StaleEpoch, BadRequest) as never:
            return self._refuse(order, key, str(never), refused=head.epoch)
        except (HoldfastError, OSError) as error:
            self._report_problem(key, str(error))
            return self._pause(order)
        before = read_answer(self._spool, key, self._files)
        durable = head.durable or self._open_store is None or (before is not None and before.durable)
        seconds = max(0.0, self._files.now() - asked)
        write_answer(
            self._spool, key, SaveAnswer(head.bytes, seconds, fragments, durable, survives=survives), self._files
        )
        self._files.remove(order)
        return None

    def _acknowledged(self, saved: Saved) -> int:
        """Return how many losses a save survives; one that survives too few is not acknowledged, and tried again."""
        wanted = self._settings.wanted_losses(saved)
        verdict = judge(losses_survived(saved.holders, saved.coding.data), wanted, tolerant=self._settings.tolerant())
        if not verdict.acknowledged:
            raise NotSaved(f"{saved.state} is not acknowledged: {verdict.line}")
        if verdict.line != self._degraded:
            self._degraded = verdict.line
            log.warning("%s", verdict.line or "saves survive the losses that are to be tolerated again")
            self._settings.on_degraded(verdict.line)
        return verdict.survives

    def _refuse(self, order: Path, key: str, problem: str, *, refused: Epoch | None = None) -> float | None:
        """Remove an order that cannot be carried out; not before its answer is there, for the task waits for one."""
        if not self._report_problem(key, problem, refused=refused):
            return self._pause(order)
        self._files.remove(order)
        return None

    def _report_problem(self, key: str, problem: str, *, refused: Epoch | None = None) -> bool:
        """Write the problem as the answer, and say whether it could be written.

        `refused`: the fenced epoch, for which the order is not tried again.
        """
        answer = SaveAnswer(problem=one_line(problem), final=refused is not None, epoch=refused or 0)
        try:
            write_answer(self._spool, key, answer, self._files)
        except OSError as error:  # the disk is full: the task sees no answer, the log has the problem
            log.warning("%s: %s; the answer could not be written either: %s", name_of(key), problem, error)
            return False
        return True

    # Fetching

    def _fetch(self, order: Path, key: str) -> float | None:
        name, snapshot = name_of(key), self._spool / "snapshots" / key
        if self._files.exists(snapshot):
            self._files.remove(order)
            return None
        part = self._spool / "parts" / f"{self._files.new_name()}.part"
        why: list[str] = []
        certain = True
        quick = self._is_quick(order)
        for bring in (self._bring_from_spool, self._bring_from_peers, self._bring_from_folder):
            try:
                if (origin := bring(name, key, part)) is not None:
                    answer = self._spool / "answers" / f"{key}.fetched"
                    publish(self._spool, answer, json.dumps(asdict(origin)).encode(), self._files)
                    self._files.rename(part, snapshot)
                    self._files.remove(self._spool / "answers" / f"{key}.lost")
                    self._files.remove(order)
                    return None
            except StateMissing as missing:
                why.append(missing.what)
            except Corrupt as corrupt:
                why.append(str(corrupt))
                # What was rebuilt is damaged: other fragments, or another try, may give it. Files stay as they are.
                certain = certain and bring != self._bring_from_peers
            except (HoldfastError, OSError) as error:
                why.append(str(error))
                certain = False
            finally:
                self._files.remove(part)
                self._progress.ended(key)
        failing = self._failing_for(order)
        settings = self._settings
        if quick:
            patience = 0.0 if certain else settings.quick_unreachable
        else:
            patience = settings.settle if certain else settings.unreachable
        if failing >= patience:
            folder = self._folder_of(state_of(name).namespace)
            no_copy = "no durable folder" if folder is None else "no durable copy"
            reason = "; ".join([*why, *([] if folder is not None and folder.has(name) else [no_copy])])
            lost = self._spool / "answers" / f"{key}.lost"
            publish(self._spool, lost, one_line(f"{name}: {reason}").encode(), self._files)
            self._files.remove(order)
            return None
        return min(self._pause(order), 1.0)

    def _is_quick(self, order: Path) -> bool:
        try:
            return bool(json.loads(self._files.read(order)).get("quick"))
        except (OSError, ValueError, AttributeError):
            return False

    def _bring_from_spool(self, name: str, key: str, part: Path) -> FetchAnswer | None:
        """Use a snapshot that is still queued here to be saved."""
        for kind in ("durable", "save"):
            with contextlib.suppress(FileNotFoundError):
                self._files.link(self._spool / "orders" / f"{key}.{kind}", part)
                return FetchAnswer("node", check_snapshot(part, name, self._files).bytes)
        return None

    def _bring_from_peers(self, name: str, key: str, part: Path) -> FetchAnswer | None:
        if self._open_store is None:
            return None
        loaded = self._opened().load_into(state_of(name), part, None, self._progress.of(key))
        check_snapshot(part, name, self._files)
        code = loaded.coding
        return FetchAnswer(
            "peers",
            loaded.received_bytes or loaded.bytes,
            loaded.retrieve_seconds,
            loaded.predicted_seconds,
            0 if code is None else code.data,
            0 if code is None else code.parity,
            len(loaded.lost),
        )

    def _bring_from_folder(self, name: str, key: str, part: Path) -> FetchAnswer | None:
        folder = self._folder_of(state_of(name).namespace)
        if folder is None or not folder.fetch(name, part):
            return None
        return FetchAnswer("folder", check_snapshot(part, name, self._files).bytes)

    # Deleting

    def _forget(self, order: Path, key: str) -> float | None:
        try:
            asked = json.loads(self._files.read(order))
            names = [str(name) for name in asked["names"]]
            states = {name: state_of(name) for name in names}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, HoldfastError) as error:
            log.warning("a deletion order cannot be read and is dropped: %s", error)
            self._files.remove(order)
            return None
        keys = {f"{state.namespace}..{state.name}" for state in states.values()}
        with self._lock:
            if keys & self._busy:
                return self._settings.look_every  # a save in progress would restore what is being deleted
        for one in keys:
            for path in (
                *(self._spool / "orders" / f"{one}.{kind}" for kind in ("save", "durable", "fetch")),
                *(self._spool / "answers" / f"{one}.{kind}" for kind in ("saved", "lost", "fetched", "fetching")),
                self._spool / "snapshots" / one,
            ):
                self._files.remove(path)
        silent: list[str] = []
        try:
            for run in {state.namespace for state in states.values()}:
                here = {name: state.name for name, state in states.items() if state.namespace == run}
                silent += self._forget_run(run, here, asked.get("epoch"))
        except StaleEpoch as stale:
            log.warning("snapshots are not deleted: %s", stale)
            self._files.remove(order)
            return None
        except (HoldfastError, OSError) as error:
            log.info("snapshots are deleted later: %s", error)
            silent = ["all"]
        if silent and self._files.now() - self._files.changed_at(order) < self._settings.forget_for:
            return self._settings.forget_again
        self._files.remove(order)
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
        named = read_durable(self._spool, run, self._files)
        return self._durable if named is None else DurableFolder(named)

    def _opened(self) -> FragmentStore:
        with self._opening:
            if self._store is None:
                assert self._open_store is not None
                self._store = self._open_store()
            return self._store

    def tidy(self) -> None:
        """Remove answers, snapshots and partly written files that have not been used for long."""
        now, settings = self._files.now(), self._settings
        for folder, keep in (
            ("answers", settings.keep),
            ("snapshots", settings.keep_snapshots),
            ("parts", settings.keep),
        ):
            for name in self._files.names(self._spool / folder):
                path = self._spool / folder / name
                with contextlib.suppress(FileNotFoundError):
                    if now - self._files.changed_at(path) > keep:
                        self._files.remove(path)

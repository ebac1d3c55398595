"""The agent's side of the spool: carries out orders in the background and writes answers. Runs in agents, in threads.

Saves are encoded and sent from the spooled file, a few at a time, so memory does not grow with the queue. Fetches have
threads of their own, so that a recovery does not wait behind checkpoints. What is done about orders: `SpoolOrders`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.store.agent.durable_folder import DurableFolder
from holdfast.store.agent.spool_orders import FragmentStore, SpoolOrders, SpoolServiceSettings

log = logging.getLogger("holdfast.store.agent.spool_service")


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
        self._spool, self._durable = spool, durable
        self._settings = settings or SpoolServiceSettings()
        self._orders = SpoolOrders(spool, open_store, durable, self._settings, time.monotonic)
        self._changed = True
        self._stopping = threading.Event()
        self._saving = ThreadPoolExecutor(self._settings.saves_at_once, thread_name_prefix="holdfast-save")
        self._fetching = ThreadPoolExecutor(self._settings.fetches_at_once, thread_name_prefix="holdfast-fetch")
        self._thread = threading.Thread(target=self._run, name="holdfast-spool", daemon=True)

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
                    self._orders.tidy()
                if now - copies_tidied >= self._settings.keep and self._durable is not None:
                    copies_tidied = now
                    self._saving.submit(self._durable.tidy)  # remote storage may be slow
                changed = (self._spool / "orders").stat().st_mtime_ns
                due = self._orders.any_due()
                # A folder's modification time is coarse: within one tick of it, the folder is read once more.
                if changed != seen or self._changed or due or time.time_ns() - changed < 100_000_000:
                    seen, self._changed = changed, False
                    self._look()
            except Exception:
                # The service must not stop while the process runs: it logs the error and reads the orders again.
                log.exception("reading the spool's orders failed; it is tried again")

    def _look(self) -> None:
        taken = self._orders.take()
        while taken:
            order = taken.pop(0)
            threads = self._fetching if order.endswith(".fetch") else self._saving
            try:
                threads.submit(self._work, order)
            except RuntimeError:
                # No thread can be started now. This order is in the queue; the others are taken again.
                for other in taken:
                    self._orders.leave(other)
                self._changed = True
                raise

    def _work(self, order: str) -> None:
        """Carry out one order, unless the agent stops: then the next one does."""
        if self._stopping.is_set():
            self._orders.leave(order)
        else:
            self._orders.carry_out(order)
        self._changed = True


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except FileNotFoundError:
        path.touch(mode=0o600)

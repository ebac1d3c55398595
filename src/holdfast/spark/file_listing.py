"""Looks at the folders and topics of sources that are read in place, again and again. Runs on the driver.

Nothing is decided here: a look says what is there. What cannot be looked at for a while is looked at again; the run
goes on with what it has. Each source has a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import CheckFailed, HoldfastError, one_line
from holdfast.runtime.io.in_place_readers import InPlaceReader
from holdfast.runtime.io.kafka_client import BrokersAway


class FolderWatch:
    """Looks at one source's folder, or topic."""

    def __init__(
        self,
        reader: InPlaceReader,
        *,
        woke: Callable[[], object],
        log: Callable[[str], object],
    ) -> None:
        """`woke` is called when there is something to take; `log` gets lines for people."""
        self._reader, self._woke, self._log = reader, woke, log
        self._stop = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None

    def start(self, *, available_now: bool, begun: bool = False) -> None:
        """Begin; with `available_now`, files that come after the first listing are left for the next run.

        `begun`: the log has batches of this source. Brokers that do not answer then are no reason not to go on with
        what is logged: they are asked again. At the first start, the address may be wrong.
        """
        try:
            self.look()
        except BrokersAway as error:
            if available_now or not begun:
                raise
            self._is_failing(error)
        except OSError as error:
            raise CheckFailed(
                f"cannot be listed: {one_line(str(error), 200)}",
                where=f"source {self._reader.source}",
                remedy="see that the path is right and that the driver may read it",
            ) from None
        if available_now:
            self._reader.fix_end()
        self._thread = threading.Thread(target=self._main, name=f"holdfast lists {self._reader.source}", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """List the folder now; from any thread."""
        for notice in self._reader.look():
            self._log(f"source {self._reader.source}: {notice.line}")
        if self._reader.pending:
            self._woke()

    @property
    def reading(self) -> bool:
        """Whether more may come; not where listing was never begun: the sources are closed."""
        return self._thread is not None and not self._reader.ended

    def stop(self) -> None:
        """Stop listing."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10.0)

    def _main(self) -> None:
        pause = self._reader.look_seconds
        while not self._stop.wait(pause):
            began = time.monotonic()
            try:
                self.look()
                if self._failing:
                    self._log(f"source {self._reader.source}: {self._reader.what} can be listed again")
                self._failing = False
            except (OSError, HoldfastError) as error:
                self._is_failing(error)
            # What cannot be looked at may take long to say so: that is no reason to come back late.
            took = time.monotonic() - began
            pause = 1.0 if self._failing else max(self._reader.look_seconds, self._reader.pause_factor * took)
            if not self.reading:
                with suppress(RuntimeError):
                    self._woke()
                return

    def _is_failing(self, error: Exception) -> None:
        if not self._failing:
            line = one_line(str(error), 200)
            what = f"source {self._reader.source}: {self._reader.what}"
            self._log(f"{what} cannot be listed, and is tried again: {line}")
        self._failing = True

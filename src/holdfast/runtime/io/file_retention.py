"""Which ranges of files are copied into the run's log, and when. Runs on the driver.

Nothing announces that a file will be deleted, and one that is gone cannot be copied. So the source says how long its
files stay after their last modification (`retention`), as a topic's settings do: at three quarters of it, ranges that
a recovery may still read are copied (`file_copies`). Whether or not there is a retention, a needed file that is gone
without a copy is reported once, before a recovery meets it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from threading import Lock

from holdfast.errors import CheckFailed, one_line
from holdfast.ids import BatchId
from holdfast.runtime.io.file_copies import copy_range
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.in_place import OpenFiles
from holdfast.runtime.io.needed_ranges import NeededRanges
from holdfast.runtime.io.range_copies import SAFE_SHARE, CopyStore
from holdfast.runtime.program import SourceProgram
from holdfast.storage.source_files import SourceFile
from holdfast.wording import counted

LOOK_SECONDS = 2.0
"""How often it is looked for ranges that are about to go."""
MOST_AT_ONCE = 32
"""Ranges that one look copies; where more are due, the next look goes on with them."""


def goes_soon(modified: int, wall: float, retention: float | None) -> bool:
    """Whether a file may be deleted soon: three quarters of the time that it stays are over.

    `modified`: nanoseconds since 1970, as the storage says.
    """
    return retention is not None and wall >= modified / 1e9 + SAFE_SHARE * retention


class FileRetention:
    """Copies what a source of files still needs before it goes, and reports what went."""

    def __init__(
        self,
        source: SourceProgram,
        retention: float | None,
        needed: NeededRanges[FileRange],
        copies: CopyStore,
        files: OpenFiles,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`retention`: seconds that files stay after their last modification; None: for as long as they are needed."""
        self._source, self._retention, self._needed = source, retention, needed
        self._copies, self._files, self._clock, self._wall = copies, files, clock, wall
        self._looked, self._failing, self._guard = -1e9, False, Lock()
        self._ahead = -math.inf
        """The seconds from `clock` to the latest time that `wall` has said, or that a file has."""
        self._missing: set[str] = set()
        """Files that are gone, and that a line was about; one that comes back is looked at anew."""
        self._changed: set[str] = set()
        """Files that are not what was logged, and that a line was about."""
        self._unread: set[str] = set()
        """Files that could not be read last."""

    def look(self, listed: Collection[SourceFile]) -> list[str]:
        """Copy ranges of files that may go soon; return lines. `listed`: the files that are there now.

        From any thread; while one looks, others do not.
        """
        if self._clock() - self._looked < LOOK_SECONDS or not self._guard.acquire(blocking=False):
            return []
        self._looked = self._clock()
        try:
            lines = self._look(listed)
            self._failing = False
            return lines
        except OSError as error:
            if self._failing:
                return []
            self._failing = True
            problem = one_line(str(error), 120)
            return [f"files that a recovery may still read could not be checked, and are tried again: {problem}"]
        finally:
            self._guard.release()

    def _look(self, listed: Collection[SourceFile]) -> list[str]:
        there, now = {one.path for one in listed}, self._time(listed)
        wanted = [one for one in self._needed() if not self._copies.has(self._source.id, *one[:3])]
        lines = self._gone([one for one in wanted if one[3].file.path not in there])
        due = [
            one for one in wanted if one[3].file.path in there and goes_soon(one[3].file.modified, now, self._retention)
        ]
        # Those that could not be copied come after all others: they are tried again, and keep none from its turn.
        late = self._changed | self._unread
        if sum(one[3].file.path not in late for one in due) > MOST_AT_ONCE:
            self._looked = -1e9
        due.sort(key=lambda one: (one[3].file.path in late, one[3].file.modified, one[0]))
        self._missing -= there
        needed = {one[3].file.path for one in wanted}
        self._changed &= needed
        self._unread &= needed
        return lines + self._copy(due[:MOST_AT_ONCE])

    def _time(self, listed: Collection[SourceFile]) -> float:
        """Return the time that files are compared with: it does not go back with a clock that was set back."""
        now, newest = self._clock(), max((one.modified / 1e9 for one in listed), default=-math.inf)
        self._ahead = max(self._ahead, self._wall() - now, newest - now)
        return now + self._ahead

    def _gone(self, missing: Sequence[tuple[BatchId, int, int, FileRange, HowRead]]) -> list[str]:
        """Return a line about each needed file that is not there any more; one that is only not listed is there."""
        lines = []
        for batch, _, _, one, _ in missing:
            path = one.file.path
            if path in self._missing:
                continue
            try:
                self._files(path).open(path).close()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._missing.add(path)
                lines.append(
                    f"{path} is gone, and batch {batch} may be read again: a recovery that reads it fails. Bring the "
                    "file back, and keep files until two durable checkpoints cover their batches; or set hf.files(…, "
                    "retention=…), and the run copies files that it still needs in time"
                )
            except OSError:
                continue  # it may be there: looked at again
        return lines

    def _copy(self, due: Sequence[tuple[BatchId, int, int, FileRange, HowRead]]) -> list[str]:
        lines, copied = list[str](), list[FileRange]()
        for batch, partition, number, one, how in due:
            path = one.file.path
            try:
                expected = self._needed.check(batch, partition, number)
                data = copy_range(self._source, one, how, expected, self._files)
                self._copies.add(self._source.id, batch, partition, number, data)
            except FileNotFoundError:
                continue  # the next look reports it
            except CheckFailed as error:
                if path not in self._changed:
                    self._changed.add(path)
                    lines.append(f"{one} (batch {batch}) cannot be copied: {path} {one_line(error.what, 200)}")
                continue
            except OSError as error:
                self._unread.add(path)
                lines.append(f"{one} (batch {batch}) cannot be copied, and is tried again: {one_line(str(error), 120)}")
                break
            self._unread.discard(path)
            copied.append(one)
        if copied:
            more = "" if len(copied) == 1 else f" and {counted(len(copied) - 1, 'more range', 'more ranges')}"
            lines.append(
                f"{copied[0]}{more}: copied into the run's directory, because files may be deleted soon and a recovery "
                "may still read them"
            )
        return lines

"""Numbered records, each created only if absent: of two who write the same number, one is over. Runs anywhere.

This is how drivers are kept apart, without a lock (a frozen holder would keep it) and without compare-and-swap (not
every store has it). Old records are dropped in time, and then their numbers are free again: a writer that was frozen
for long could take one. So a write counts only if no later record is there afterwards; the newest is never dropped. Nor
does it count where the record before is gone: the folder was deleted meanwhile, and another run may have begun in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any
from zlib import crc32

from holdfast.errors import BadInput, CheckFailed
from holdfast.storage.storage import Storage

_DIGITS = 12


class Written(Enum):
    """What became of a write."""

    CREATED = "created"
    TAKEN = "taken"
    """Another record has the number."""
    PASSED = "passed"
    """There are later records: the number was used, and dropped since. Or the one before is gone: another run began."""


class Records:
    """The records of one kind in a store. Values are JSON; each has the claim and driver that wrote it."""

    def __init__(self, storage: Storage, kind: str, *, version: int) -> None:
        """Name the kind, which is also the folder, and the version of its format."""
        self._storage, self._kind, self._version = storage, kind, version

    def create(self, number: int, fields: Mapping[str, Any]) -> Written:
        """Write a record. The fields must be such that nobody else would write the same: they hold who wrote them.

        An `OSError` leaves open whether the record is there. The same call again finds that out.
        """
        data = self._encoded(number, fields)
        if not self._storage.create(self._name(number), data):
            # A write whose answer was lost is repeated, by the store's client or by the caller: then it is ours.
            held = self._storage.read(self._name(number))
            if held is not None and held.to_pybytes() != data:
                return Written.TAKEN
        there = self.numbers(after=number - 2)
        if there and there[-1] > number:
            return Written.PASSED
        if number and number - 1 not in there:
            # The newest is never dropped, so somebody has deleted all and begun anew: this record must not end that.
            self.drop([number])
            return Written.PASSED
        return Written.CREATED

    def read(self, number: int) -> dict[str, Any] | None:
        """Return a record; None where there is none."""
        held = self._storage.read(self._name(number))
        return None if held is None else self._decoded(number, held.to_pybytes())

    def numbers(self, *, after: int = -1) -> list[int]:
        """Return the numbers of the records after one, in order."""
        last = self._name(after) if after >= 0 else ""
        return [int(name.rpartition("/")[2]) for name in self._storage.list(f"{self._kind}/", after=last)]

    def drop(self, numbers: list[int]) -> None:
        """Delete records; never the newest."""
        self._storage.delete([self._name(number) for number in numbers])

    def _name(self, number: int) -> str:
        return f"{self._kind}/{number:0{_DIGITS}d}"

    def _encoded(self, number: int, fields: Mapping[str, Any]) -> bytes:
        text = json.dumps(fields, separators=(",", ":")).encode()
        return b"holdfast-%s %d %d %08x\n" % (self._kind.encode(), self._version, number, crc32(text)) + text

    def _decoded(self, number: int, data: bytes) -> dict[str, Any]:
        where = f"{self._storage.url}/{self._name(number)}"
        head, _, text = data.partition(b"\n")
        words = head.split(b" ")
        if len(words) != 4 or words[0] != b"holdfast-" + self._kind.encode():
            raise self._damaged(where)
        if words[1] != str(self._version).encode():
            raise BadInput(
                f"has format {words[1].decode(errors='replace')}, and this version of Holdfast reads {self._version}",
                where=where,
                remedy="continue this run with the version that began it, or begin in another directory",
            )
        if words[2] != str(number).encode() or words[3] != b"%08x" % crc32(text):
            raise self._damaged(where)
        try:
            fields = json.loads(text)
        except ValueError:
            raise self._damaged(where) from None
        return dict(fields)

    def _damaged(self, where: str) -> CheckFailed:
        return CheckFailed("is damaged", where=where, remedy="restore it from a copy")

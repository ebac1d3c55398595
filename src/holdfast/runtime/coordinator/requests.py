"""Requests of people to a run, in its storage: numbered records, created only if absent. Runs anywhere.

A driver reads those after the last that it took, writes that number with its progress, and then drops them. So a
request is in force whether or not a driver runs, and is taken once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from holdfast.errors import HoldfastError, one_line
from holdfast.ids import PartitionId
from holdfast.storage.records import Records, Written
from holdfast.storage.storage import Storage

REQUESTS_FORMAT = 1


class Requests:
    """The requests of one kind."""

    def __init__(self, storage: Storage, kind: str) -> None:
        """`kind` is the folder of the records."""
        self._records = Records(storage, kind, version=REQUESTS_FORMAT)
        self.unread: dict[int, str] = {}
        """Requests that were passed over because they cannot be read, and why: damaged, or of another version."""

    def write(self, fields: Mapping[str, Any]) -> int:
        """Write a request; return its number."""
        record = {**fields, "id": uuid4().hex, "at": time.time()}
        while True:
            numbers = self._records.numbers()
            number = numbers[-1] + 1 if numbers else 0
            if self._records.create(number, record) is Written.CREATED:
                return number

    def read_after(self, number: int) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the requests after a number, with theirs."""
        found: list[tuple[int, Mapping[str, Any]]] = []
        for one in self._records.numbers(after=number):
            try:
                fields = self._records.read(one)
            except HoldfastError as error:  # one request must not keep the run from going on, nor from later ones
                self.unread[one] = one_line(str(error))
                continue
            if fields is not None:
                found.append((one, fields))
        return found

    def drop_before(self, number: int) -> None:
        """Delete the requests before a number; the last one stays, so that numbers go on from it."""
        old = [one for one in self._records.numbers() if one < number]
        if old:
            self._records.drop(old)


class ResumeRequests(Requests):
    """Requests for parked queries to go on."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, "resume")

    def add(self, query: str) -> int:
        """Ask for a query, or for all of an output operator; return the request's number."""
        return self.write({"query": query})

    def after(self, number: int) -> list[tuple[int, str]]:
        """Return the requests after a number: their numbers, and what they name."""
        return [(one, str(fields["query"])) for one, fields in self.read_after(number)]


class TentativeRequests(Requests):
    """Requests for queries to give tentative outputs, or none, whatever their application says."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, "tentative")

    def add(self, query: str, *, on: bool) -> int:
        """Ask for a query, or for all of an output operator; return the request's number."""
        return self.write({"query": query, "on": on})

    def after(self, number: int) -> list[tuple[int, str, bool]]:
        """Return the requests after a number: their numbers, what they name, and what they ask for."""
        return [(one, str(fields["query"]), bool(fields["on"])) for one, fields in self.read_after(number)]


def queries_named(queries: Iterable[PartitionId], name: str) -> tuple[PartitionId, ...]:
    """Return those of some queries that have this name, or are of the output operator of this name."""
    return tuple(query for query in queries if name in (str(query), query.operator))

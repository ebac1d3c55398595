"""Names of the objects in a folder of Parquet outputs, and what they say. Runs anywhere.

An output is `QUERY-BATCH-gGENERATION-rREVISION.parquet`. Where outputs are gathered (`gathered_parquet`):

    _staged/OUTPUT                            an output that waits, under the name that it would have
    _holdfast/groups/QUERY-gGENERATION/N      which outputs are group N: created before any of its files
    _holdfast/groups/…/N-FIRST-THROUGH        all files of group N are there
    [COLUMN=VALUE/]QUERY-FIRST-THROUGH-gGENERATION.parquet   a file of a group

Groups of a query and generation follow each other, and group N + 1 begins after group N is done. So an output is in
the files, and its staged copy counts no more, if its batch is not after the last group that is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.io.sinks import OutputKey

RUN = "_holdfast/run.json"
"""Whose the folder is, and how outputs are written into it."""
STAGED = "_staged/"
"""Outputs that are in no file yet."""
GROUPS = "_holdfast/groups/"
"""Which outputs are in a file together."""

_NAME = re.compile(r"=?([^/]+)-([0-9]{5,})-([0-9]{10,})-g([0-9]+)-r([0-9]+)\.parquet", re.ASCII)
_FILE = re.compile(r"(?:.*/)?=?([^/]+)-([0-9]{5,})-([0-9]{10,})-([0-9]{10,})-g([0-9]+)\.parquet", re.ASCII | re.DOTALL)
_MARK = re.compile(r"=?([^/]+)-([0-9]{5,})-g([0-9]+)/([0-9]{10,})(?:-([0-9]{10,})-([0-9]{10,}))?", re.ASCII)

Stream: TypeAlias = tuple[PartitionId, int]
"""The outputs of a query in one generation: their groups are numbered together."""


def name_of(key: OutputKey) -> str:
    """Return the name of an output."""
    return f"{stem_of(key)}-r{key.revision}.parquet"


def stem_of(key: OutputKey) -> str:
    """Return what the names of all revisions of an output begin with."""
    return f"{_query(key.query)}-{key.batch:010d}-g{key.generation}"


def staged_of(query: PartitionId) -> str:
    """Return what the names of a query's staged outputs begin with."""
    return f"{STAGED}{_query(query)}-"


def key_of(name: str) -> OutputKey | None:
    """Read a name; None where it is none of an output. An operator's id may look like all that follows it."""
    if (found := _NAME.fullmatch(name)) is None:
        return None
    operator, index, batch, generation, revision = found.groups()
    query = PartitionId(OperatorId(operator), int(index))
    return OutputKey(query, BatchId(int(batch)), int(revision), int(generation))


def _query(query: PartitionId) -> str:
    operator, index = query
    # Readers pass over names that begin with `_`.
    return f"{'=' if operator.startswith('_') else ''}{operator}-{index:05d}"


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """The outputs of a query, of consecutive batches as far as they have rows, that are published together."""

    query: PartitionId
    generation: int
    number: int
    first: BatchId
    through: BatchId

    @property
    def file(self) -> str:
        """The name of its file; where a table is partitioned by columns, of its file in each folder."""
        return f"{_query(self.query)}-{self.first:010d}-{self.through:010d}-g{self.generation}.parquet"

    @property
    def record(self) -> str:
        """The name of the record that says what it is."""
        return f"{folder_of((self.query, self.generation))}{self.number:010d}"

    @property
    def done(self) -> str:
        """The name of the object that says that all its files are there."""
        return f"{self.record}-{self.first:010d}-{self.through:010d}"


def folder_of(stream: Stream) -> str:
    """Return where the records of a query's groups are."""
    query, generation = stream
    return f"{GROUPS}{_query(query)}-g{generation}/"


def last_numbers(names: Iterable[str]) -> dict[Stream, int]:
    """Return the number of the last group of each query and generation, as the names of records say."""
    last: dict[Stream, int] = {}
    for name in names:
        found = _MARK.fullmatch(name.removeprefix(GROUPS))
        if found is not None and found[5] is None:
            stream = PartitionId(OperatorId(found[1]), int(found[2])), int(found[3])
            last[stream] = max(int(found[4]), last.get(stream, -1))
    return dict(sorted(last.items()))


def done_in(names: Iterable[str]) -> list[Group]:
    """Return the groups that names say are done."""
    groups = []
    for name in names:
        found = _MARK.fullmatch(name.removeprefix(GROUPS)) if name.startswith(GROUPS) else None
        if found is None or found[5] is None:
            continue
        operator, index, generation, number, first, through = found.groups()
        query = PartitionId(OperatorId(operator), int(index))
        groups.append(Group(query, int(generation), int(number), BatchId(int(first)), BatchId(int(through))))
    return groups


def last_done(names: Iterable[str]) -> dict[Stream, BatchId]:
    """Return the last batch that is in files, of each query and generation."""
    last: dict[Stream, BatchId] = {}
    for one in done_in(names):
        stream = one.query, one.generation
        last[stream] = max(one.through, last.get(stream, one.through))
    return last


def file_group(name: str) -> Group | None:
    """Return the group that a file is of, its number left out; None where it is no file of a group."""
    if name.startswith("_") or (found := _FILE.fullmatch(name)) is None:
        return None
    operator, index, first, through, generation = found.groups()
    query = PartitionId(OperatorId(operator), int(index))
    return Group(query, int(generation), -1, BatchId(int(first)), BatchId(int(through)))


def staged_in(names: Iterable[str]) -> dict[Stream, dict[BatchId, str]]:
    """Return the names of staged outputs, by query and generation, and by batch, both in order."""
    found: dict[Stream, dict[BatchId, str]] = {}
    for name in names:
        if name.startswith(STAGED) and (key := key_of(name.removeprefix(STAGED))) is not None:
            found.setdefault((key.query, key.generation), {})[key.batch] = name
    return {stream: dict(sorted(found[stream].items())) for stream in sorted(found)}


@dataclass(frozen=True, slots=True)
class Seen:
    """One state of a folder whose outputs are gathered: every output is in a file or staged, and in one of them."""

    files: dict[str, Group]
    """The files of groups that are done."""
    staged: dict[str, OutputKey]
    """Outputs that are in none of them."""

    @classmethod
    def of(cls, staged: Iterable[str], groups: Iterable[str], names: Iterable[str]) -> Seen:
        """Choose among three listings, of which each was begun after the one before had ended.

        In another order an output that is published meanwhile could be in none of them.
        """
        last = last_done(groups)
        files = {name: one for name in names if (one := file_group(name)) is not None}
        keys = {name: key for name in staged if (key := key_of(name.removeprefix(STAGED))) is not None}
        return cls(
            {
                name: one
                for name, one in sorted(files.items())
                if is_over(last, (one.query, one.generation), one.through)
            },
            {
                name: key
                for name, key in sorted(keys.items())
                if not is_over(last, (key.query, key.generation), key.batch)
            },
        )


def is_over(last: Mapping[Stream, BatchId], stream: Stream, batch: BatchId) -> bool:
    """Whether an output is in a file of a group that is done."""
    return stream in last and batch <= last[stream]

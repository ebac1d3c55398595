"""Numbers with their nouns, for sentences that people read. Runs anywhere."""

from __future__ import annotations


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun, in the singular where it is one; `nouns` is an irregular plural.

    >>> counted(1, "partition"), counted(1200, "partition"), counted(1, "query", "queries"), counted(0, "node")
    ('1 partition', '1,200 partitions', '1 query', '0 nodes')
    """
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"

"""What has changed between two views of a run, for those who have the first. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def changes(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections that differ; of partitions, the rows that do, and None for those that are gone.

    Without a view before, it is all of it.
    """
    if before is None:
        return dict(after)
    found: dict[str, Any] = {}
    for name, value in after.items():
        old = before.get(name)
        if value is old:
            continue
        if name == "partitions":
            rows = {p: row for p, row in value.items() if row is not (old or {}).get(p) and row != (old or {}).get(p)}
            rows |= {p: None for p in (old or {}) if p not in value}
            if rows:
                found[name] = rows
        elif value != old:
            found[name] = value
    return found

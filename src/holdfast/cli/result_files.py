"""Files that experiments and benches leave behind: result.json and CSV, in a directory that is made when needed."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.cli.output import plain
from holdfast.errors import BadInput


def make_directory(path: Path) -> None:
    """Make a directory for results; say what to do where that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot be made: {error.strerror}", where=str(path), field="--out", remedy="name another directory"
        ) from None


def write_json(path: Path, document: object) -> None:
    """Write one JSON document."""
    make_directory(path.parent)
    path.write_text(json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with the columns of the first, plus any that later rows add."""
    make_directory(path.parent)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows({name: plain(value) for name, value in row.items()} for row in rows)

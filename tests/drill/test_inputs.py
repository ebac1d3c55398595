"""The input of an application's drill: read from any of the formats, checked, bounded and cut."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from holdfast.application import Application
from holdfast.drill.inputs import is_recorded, read_batches, read_input, write_input
from holdfast.errors import BadInput

ROWS = [{"at": f"2026-01-01T00:00:{second:02d}", "page": f"p{second % 3}", "ms": second / 4} for second in range(60)]


def application() -> Application:
    app = Application("web")
    app.source("visits", schema={"at": "timestamp", "page": "string", "ms": "double"}, event_time="at").output()
    return app


def table() -> pa.Table:
    times = pa.array([row["at"] for row in ROWS]).cast(pa.timestamp("us"))
    return pa.table({"at": times, "page": [row["page"] for row in ROWS], "ms": [row["ms"] for row in ROWS]})


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def put(folder: Path, how: str) -> None:
    match how:
        case "parquet":
            pq.write_table(table(), folder / "visits.parquet")
        case "json":
            (folder / "visits.json").write_text(lines(ROWS))
        case "json with zones":
            (folder / "visits.json").write_text(lines([{**row, "at": f"{row['at']}Z"} for row in ROWS]))
        case "csv":
            pa.csv.write_csv(table(), folder / "visits.csv")
        case "several":
            (folder / "visits").mkdir()
            (folder / "visits" / "_SUCCESS").write_text("")
            for number in (1, 0):
                part = table().slice(number * 30, 30)
                pq.write_table(part, folder / "visits" / f"part-{number}.parquet")


@pytest.mark.parametrize("how", ["parquet", "json", "json with zones", "csv", "several"])
def test_every_format_gives_the_same_rows(how: str, tmp_path: Path) -> None:
    put(tmp_path, how)
    assert read_input(application(), tmp_path, 1000) == {"visits": table()}


def test_rows_are_bounded_and_cut_into_nearly_equal_batches(tmp_path: Path) -> None:
    put(tmp_path, "several")
    assert read_input(application(), tmp_path, 31)["visits"] == table().slice(0, 31)
    batches = list(read_batches(application(), tmp_path, 7, 100))
    assert [batch["visits"].num_rows for batch in batches] == [8, 9, 8, 9, 8, 9, 9]
    assert pa.concat_tables([batch["visits"] for batch in batches]) == table()
    small = list(read_batches(application(), tmp_path, 7, 2))
    assert [batch["visits"].num_rows for batch in small] == [2] * 7


def test_what_is_written_is_read_again_in_place(tmp_path: Path) -> None:
    assert not is_recorded(tmp_path)
    write_input({"visits": table()}, tmp_path)
    assert is_recorded(tmp_path)
    assert read_input(application(), tmp_path, 1000) == {"visits": table()}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no rows of source visits; put them into visits.parquet, visits.json or visits.csv"),
        ({"visits.json": lines(ROWS), "visits.csv": "at\n"}, "is there more than once: visits.json, visits.csv"),
        ({"visits.json": '{"at": "2026-01-01T00:00:00"}\n{"at": \n'}, "visits.json: cannot be read: "),
        ({"visits.csv": "at,page\n2026-01-01T00:00:00,a\n"}, "source visits has no column 'ms'"),
        (
            {"visits.csv": "at,page,ms\nyesterday,a,1\n"},
            "column 'at' of source visits is string, declared as timestamp",
        ),
        ({"visits.csv": "at,page,ms\n"}, "visits: has no rows; every source needs some"),
    ],
)
def test_mistakes_are_one_line(files: dict[str, str], said: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as caught:
        read_input(application(), tmp_path, 1000)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        read_input(application(), tmp_path / "nowhere", 10)

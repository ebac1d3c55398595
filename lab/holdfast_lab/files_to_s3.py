"""Files to Parquet on S3, by one command: `python -m holdfast_lab.files_to_s3`. Visits come in, counts by page go out.

It starts the S3 server of the tests and an embedded cluster, writes CSV files into a folder, runs the application until
it has read them all, with its directory and its output in a bucket, and prints the counts as pyarrow reads them there.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.runtime import ParquetSink
from holdfast_lab.kafka_to_kafka import PAGES, print_counts
from holdfast_lab.s3_server import S3Server

FILES = 6


def application(folder: str, output: str) -> hf.Application:
    """Count visits by page and minute, from the files of a folder into Parquet files."""
    app = hf.Application("files-to-s3")
    visits = app.source(
        "visits",
        hf.files(folder, format="csv", settle=0),
        schema="page string, at timestamp",
        event_time="at",
        lateness="10 minutes",  # partitions of the source read files at a pace of their own
        parallelism=2,
    )
    by_page = visits.key_by("page").window(hf.tumbling("1 minute"))
    by_page.count(id="counts", parallelism=2).output("counts", sink=hf.parquet(output))
    return app


def write_visits(folder: Path, count: int) -> None:
    """Write visits into a few files, each moved in whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(FILES):
        lines = []
        for number in range(file * count // FILES, (file + 1) * count // FILES):
            second = number // 10
            at = f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
            lines.append(f"{PAGES[number % len(PAGES)]},{at}\n")
        draft = folder / f"{file}.csv.tmp"
        draft.write_text("".join(lines))
        draft.rename(folder / f"{file}.csv")


def main(arguments: list[str] | None = None) -> int:
    """Run the example; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m holdfast_lab.files_to_s3", description=__doc__)
    parser.add_argument("--visits", type=int, default=1800, help="how many visits to write")
    asked = parser.parse_args(arguments)
    try:
        with S3Server() as server, tempfile.TemporaryDirectory() as folder:
            os.environ.update(server.environment)
            write_visits(Path(folder) / "visits", asked.visits)
            output = f"{server.url}/counts"
            app = application(str(Path(folder) / "visits"), output)
            hf.start(app, nodes=2, directory=f"{server.url}/run", available_now=True, close=True).awaitTermination()
            found = ParquetSink(output).rows()
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.status
    return print_counts([] if found is None else found.to_pylist(), asked.visits)


if __name__ == "__main__":
    sys.exit(main())

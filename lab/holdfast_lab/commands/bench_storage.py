"""`holdfast bench storage`: what a batch and a checkpoint cost on object storage, against local files."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict

import click

from holdfast.cli.output import json_option, print_json, print_table, progress


@click.command("storage")
@click.option("--url", help="The object storage, s3://bucket/prefix. Default: an S3 server of its own on loopback.")
@click.option("--rounds", default=40, show_default=True, type=click.IntRange(3, 10_000), help="Rounds of both sides.")
@click.option("--rows", default=10_000, show_default=True, type=click.IntRange(1), help="Rows of a batch.")
@click.option("--state-mb", default=4, show_default=True, type=click.IntRange(0, 1024), help="Size of a snapshot.")
@json_option
def bench_storage_command(url: str | None, rounds: int, rows: int, state_mb: int, as_json: bool) -> None:
    """Measure the steps of a batch and of a checkpoint on object storage and on files, in turns.

    A server on loopback has no network behind it: its figures are the least that object storage costs.

    \b
    Example:
      holdfast bench storage --rounds 100
    """
    from holdfast.storage.storage import open_storage
    from holdfast_lab.benches.storage import bench_storage
    from holdfast_lab.s3_server import S3Server

    with ExitStack() as held:
        if url is None:
            server = held.enter_context(S3Server())
            os.environ.update(server.environment)
            url = f"{server.url}/bench"
        with progress() as bar:
            task = bar.add_task("measure", total=rounds)
            found = bench_storage(
                open_storage(url),
                rounds=rounds,
                rows=rows,
                state_bytes=state_mb << 20,
                report=lambda done: bar.update(task, completed=done),
            )
    if as_json:
        print_json({"bench": "storage", "rounds": rounds, "rows": rows, "steps": [asdict(one) for one in found]})
        return

    def milliseconds(median: float, low: float, high: float) -> str:
        return f"{1000 * median:.1f} ({1000 * low:.1f}-{1000 * high:.1f})"

    print_table(
        f"Milliseconds: median and its 95 % interval, {rounds} rounds of {rows} rows, snapshots of {state_mb} MB",
        ["step", "files", "object storage", "ratio"],
        [
            (
                one.step,
                milliseconds(one.files.median, one.files.low, one.files.high),
                milliseconds(one.objects.median, one.objects.low, one.objects.high),
                f"{one.ratio.median:.1f} ({one.ratio.low:.1f}-{one.ratio.high:.1f})",
            )
            for one in found
        ],
        right=(1, 2, 3),
    )

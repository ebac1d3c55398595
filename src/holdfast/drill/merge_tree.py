"""A tree of merges, 16-8-4-2-1, with windows of rows as state (PPA, Fig. 6): the application of drills of that name.

Runs anywhere. Sixteen source partitions send to eight of O1, those to four of O2, and so on down to one of O4. Every
operator keeps the rows of one window and gives every other row: the paper's selectivity of 0.5. A row carries how many
rows its window had when it came, so that an output depends on the whole state before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import Application
from holdfast.application.steps import CustomFunction
from holdfast.examples.draws import moments, of_batch

TITLE = "A tree of merges, 16-8-4-2-1, whose state is one window of rows"
SOURCES = 16
TASKS = (8, 4, 2, 1)
PAYLOAD = 120
"""Bytes of a row beside its numbers."""
_ROWS = {"lane": "int", "value": "bigint", "seen": "bigint", "payload": "string", "at": "timestamp"}


def application(window: float = 30.0) -> Application:
    """Return the application, with windows of so many seconds."""
    app = Application("merge-tree")
    stream = app.source("source", schema=_ROWS, event_time="at", key="lane", parallelism=SOURCES, rate=16_000)
    for number, tasks in enumerate(TASKS, 1):
        stream = stream.apply(
            every_other(window),
            state=_ROWS,
            schema=_ROWS,
            event_time="at",
            id=f"O{number}",
            parallelism=tasks,
            selectivity=0.5,
        )
    stream.output("merged")
    return app


def of_window(window: float) -> Callable[[], Application]:
    """Return what makes the application with windows of so many seconds."""
    return lambda: application(window)


def every_other(window: float) -> CustomFunction:
    """Return an operator that keeps a window of rows and gives every other row, with how many rows the window had."""

    def step(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        rows = inputs[0]
        held = pa.concat_tables([state, rows]).combine_chunks()
        if np.isfinite(watermark):
            oldest = pa.scalar(int((watermark - window) * 1_000_000), pa.int64())
            held = held.filter(pc.greater_equal(held["at"].cast(pa.timestamp("us")).cast(pa.int64()), oldest))
        given = rows.take(pa.array(np.arange(0, rows.num_rows, 2)))
        seen = pa.array(np.full(given.num_rows, held.num_rows, np.int64))
        return held, given.set_column(given.schema.get_field_index("seen"), "seen", seen)

    return step


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each, of so many rows over all lanes."""
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        lanes = pa.array(random.integers(0, SOURCES * 4, rows), pa.int32())
        values = random.integers(0, 1_000_000, rows)
        letters = random.integers(97, 123, rows * PAYLOAD, np.uint8).tobytes().decode("ascii")
        payload = pa.array([letters[n * PAYLOAD : (n + 1) * PAYLOAD] for n in range(rows)], pa.string())
        table = {"lane": lanes, "value": values, "seen": np.zeros(rows, np.int64), "payload": payload}
        yield {"source": pa.table({**table, "at": moments(random, batch, rows, disorder=0)})}

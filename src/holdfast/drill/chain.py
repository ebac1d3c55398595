"""A long chain: running totals of running totals, eight operators deep. The application of the drill of that name.

Runs anywhere. A failure at the head of a chain takes every query below it, and what is not kept must be made again from
the source: the worst case for recovery. Each operator's output depends on all rows it ever saw, so that one row lost or
counted twice anywhere shows in every later row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import Application
from holdfast.examples.draws import by_popularity, moments, of_batch

TITLE = "Running totals of running totals, eight operators deep"
LENGTH = 8
LANES = 3
METERS = 60
MODULUS = 1_000_003
"""A prime: totals stay small, and still show every difference."""
OUTPUTS: dict[int, tuple[int, ...]] = {2: (2, 7, 4), 5: (9, 1, 6), 8: (5, 10, 3)}
"""Which operators publish, with the priorities of their queries."""

_ROWS = {"meter": "string", "value": "int64", "at": "timestamp"}


def application() -> Application:
    """Return the application: O1 to O8 one after the other, on three lanes of meters."""
    app = Application("chain")
    stream = app.source("S", schema=_ROWS, event_time="at", key="meter", parallelism=LANES, rate=1000)
    for number in range(1, LENGTH + 1):
        stream = stream.apply(
            running_totals,
            state={"meter": "string", "total": "int64"},
            schema=_ROWS,
            event_time="at",
            id=f"O{number}",
            parallelism=LANES,
        )
        if number in OUTPUTS:
            stream = stream.output(priority=OUTPUTS[number])
    return app


def running_totals(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Add each meter's values to its total; give the new totals of the meters that had some."""
    new = inputs[0].group_by(["meter"], use_threads=False).aggregate([("value", "sum"), ("at", "max")])
    if not new.num_rows:
        return state, inputs[0].slice(0, 0)
    added = pa.table({"meter": new["meter"], "total": new["value_sum"]})
    both = pa.concat_tables([state, added]).group_by(["meter"], use_threads=False).aggregate([("total", "sum")])
    totals = np.asarray(both["total_sum"]) % MODULUS
    known = pa.table({"meter": both["meter"], "total": pa.array(totals)})
    place = pc.index_in(new["meter"], known["meter"].combine_chunks())
    return known, pa.table({"meter": new["meter"], "value": known["total"].take(place), "at": new["at_max"]})


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each, of so many readings."""
    names = pa.array([f"meter-{number}" for number in range(METERS)])
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        meters = names.take(pa.array(by_popularity(random, rows, METERS, 0.3)))
        values = pa.array(random.integers(1, 1000, rows))
        yield {"S": pa.table({"meter": meters, "value": values, "at": moments(random, batch, rows)})}

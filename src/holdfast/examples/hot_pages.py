"""Hot pages (PPA, Q1): the hundred most visited pages of a large site, by merging slices of a hundred visits.

Runs anywhere. O1 takes the log in by server and sums every slice of 100 visits, O2 merges every 100 of these sums, one
task of O3 keeps the totals and gives the hundred hottest pages after each batch in which a hundred sums came. All three
are operators with memory of their own. The visits are synthetic: pages are popular by Zipf's law, in an order of its
own for each server, and the rate rises and falls over a day (the paper replays the log of World Cup 1998).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import Application
from holdfast.application.steps import CustomFunction
from holdfast.examples.draws import by_popularity, moments, of_batch

TITLE = "The hundred hottest pages of a large site, by slices of a hundred visits"
SERVERS = 32
PAGES = 5000
SLICE = 100
TOP = 100
BATCHES_OF_DAY = 1800
"""A day, replayed 48 times as fast, in batches of a second."""

_SUMS = {"page": "string", "visits": "int64"}
_SCHEMA = pa.schema([("page", pa.string()), ("visits", pa.int64())])


def application() -> Application:
    """Return the application: 8 tasks that slice, 4 that merge, one that keeps the totals."""
    app = Application("hot-pages")
    schema = {"server": "int32", "page": "string", "at": "timestamp"}
    visits = app.source("visits", schema=schema, event_time="at", key="server", parallelism=8, rate=40_717.7)
    sums = visits.apply(by_slices(_one_each), state=_SUMS, schema=_SUMS, id="O1", parallelism=8, selectivity=0.5)
    merged = sums.apply(by_slices(_as_they_are), state=_SUMS, schema=_SUMS, id="O2", parallelism=4, selectivity=0.5)
    merged.apply(hottest, state={**_SUMS, "waiting": "bool"}, schema=_SUMS, id="O3", parallelism=1).output()
    return app


def by_slices(weigh: Callable[[pa.Table], pa.Table]) -> CustomFunction:
    """Return an operator that sums each slice of a hundred rows by page; rows of a slice not full yet are its state."""

    def slices(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        rows = pa.concat_tables([state, weigh(inputs[0])])
        full = rows.num_rows // SLICE * SLICE
        numbered = rows.slice(0, full).append_column("row", pa.array(np.arange(full)))
        numbered = numbered.append_column("slice", pa.array(np.arange(full) // SLICE))
        sums = numbered.group_by(["slice", "page"], use_threads=False).aggregate([("visits", "sum"), ("row", "min")])
        # In the order in which pages first appear: what comes next is cut by order again.
        sums = sums.take(pa.array(np.argsort(np.asarray(sums["row_min"]))))
        return rows.slice(full).combine_chunks(), sums.select(["page", "visits_sum"]).rename_columns(_SCHEMA.names)

    return slices


def hottest(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Keep totals by page, a hundred rows at a time; give the hottest pages when there were new totals."""
    waiting = pa.concat_tables([state.filter(state["waiting"]).select(_SCHEMA.names), inputs[0]])
    full = waiting.num_rows // SLICE * SLICE
    known = state.filter(pc.invert(state["waiting"])).select(_SCHEMA.names)
    both = pa.concat_tables([known, waiting.slice(0, full)])
    totals = both.group_by(["page"], use_threads=False).aggregate([("visits", "sum")]).rename_columns(_SCHEMA.names)
    rest = waiting.slice(full)
    new = pa.concat_tables(
        part.append_column("waiting", pa.array([late] * len(part), pa.bool_()))
        for part, late in ((totals, False), (rest, True))
    )
    if not full:
        return new, _SCHEMA.empty_table()
    order = pc.sort_indices(totals, sort_keys=[("visits", "descending"), ("page", "ascending")])
    return new, totals.take(order.slice(0, TOP))


def _one_each(visits: pa.Table) -> pa.Table:
    return pa.table({"page": visits["page"], "visits": pa.array(np.ones(len(visits), np.int64))}, schema=_SCHEMA)


def _as_they_are(sums: pa.Table) -> pa.Table:
    return sums


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each; `rows` is the mean over a day, from half of it at night to one and a half."""
    pages = pa.array([f"/page-{number}.html" for number in range(PAGES)])
    orders = np.array([np.random.default_rng([seed, 1, server]).permutation(PAGES) for server in range(SERVERS)])
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        day = 2 * np.pi * (batch % BATCHES_OF_DAY) / BATCHES_OF_DAY
        many = int(rows * (1 - 0.35 * np.cos(day) - 0.15 * np.cos(2 * day)))
        servers = random.integers(0, SERVERS, many)
        ranks = by_popularity(random, many, PAGES, 0.9)
        yield {
            "visits": pa.table(
                {
                    "server": pa.array(servers, pa.int32()),
                    "page": pages.take(pa.array(orders[servers, ranks])),
                    "at": moments(random, batch, many, disorder=0),
                }
            )
        }

"""The application and input of `tests/data/changed-runs`: it must stay as it is, for runs of earlier versions are its.

`write` writes such a run as this version does: two layouts, operators of every kind, late rows, an output that waits
for checkpoints, files of nodes, and batches after the last checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast.runtime.in_process import InProcess

SECOND = 1_000_000
WRITTEN, BATCHES = 9, 14
"""Batches that are in the run, and in all."""
SCHEMA = "road string, lane int, speed int, at timestamp"


def running(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Number the rows of every road."""
    seen = dict(zip(state["road"].to_pylist(), state["seen"].to_pylist(), strict=True))
    made: list[tuple[str, int]] = []
    for road in inputs[0]["road"].to_pylist():
        seen[road] = seen.get(road, 0) + 1
        made.append((road, seen[road]))
    roads = pa.array(sorted(seen), pa.string())
    kept = pa.table({"road": roads, "seen": pa.array([seen[road] for road in roads.to_pylist()], pa.int64())})
    given = {"road": pa.array([road for road, _ in made], pa.string())}
    return kept, pa.table({**given, "number": pa.array([number for _, number in made], pa.int64())})


def application(parallelism: int) -> hf.Application:
    """Return it, with this parallelism of most operators."""
    app = hf.Application("golden")
    cars = app.source("cars", schema=SCHEMA, event_time="at", lateness=1, parallelism=2, key="road")
    buses = app.source("buses", schema=SCHEMA, event_time="at", lateness=1)
    keyed, five = cars.key_by("road"), hf.tumbling("5 seconds")
    many = {"parallelism": parallelism}
    fast = cars.filter(pc.field("speed") > 20, id="fast", **many).output("fast")  # type: ignore[arg-type]
    totals = {"total": hf.sum("speed"), "mean": hf.avg("speed"), "lanes": hf.count_distinct("lane")}
    keyed.window(five).agg(**totals, id="totals", parallelism=parallelism).output("totals")
    keyed.window(hf.sliding(4, every=2)).agg(high=hf.max("speed"), id="slides", parallelism=parallelism).output()
    keyed.window(hf.session(1.5)).count(id="trips", parallelism=parallelism).output()
    keyed.window(hf.rows(3)).agg(speeds=hf.sum("speed"), id="threes", parallelism=parallelism).output()
    fast.key_by("lane").window(five).top(2, by="speed", id="best", parallelism=parallelism).output()
    cars.window(five).distinct("road", "lane", id="seen", parallelism=parallelism).output()
    cars.join(buses, on="road", window=hf.tumbling(3), id="pairs", parallelism=parallelism).output()
    own = {"state": "road string, seen long", "schema": "road string, number long", "parallelism": parallelism}
    keyed.apply(running, **own, id="numbers", deterministic=False).output()  # type: ignore[arg-type]
    return app


def batch(number: int) -> dict[str, pa.Table]:
    """Return the rows of a batch; no two speeds are the same, and some rows of the fifth one are late."""
    draw = Random(f"golden {number}")
    found = {}
    for place, name in enumerate(("cars", "buses")):
        many = 6 + draw.randrange(4)
        at = [
            number * SECOND + draw.randrange(SECOND) - (9 * SECOND if number == 4 and not i else 0) for i in range(many)
        ]
        found[name] = pa.table(
            {
                "road": [f"r{draw.randrange(5)}" for _ in range(many)],
                "lane": pa.array([draw.randrange(3) for _ in range(many)], pa.int32()),
                "speed": pa.array([number * 20 + 2 * i + place for i in range(many)], pa.int32()),
                "at": pa.array(at, pa.int64()).cast(pa.timestamp("us")),
            }
        )
    return found


def start(folder: Path, parallelism: int) -> InProcess:
    """Start or continue the run in a folder."""
    app = application(parallelism)
    sinks = {name: str(folder / "out" / name) for name in app.output_names().values()}
    return InProcess(app, directory=folder, nodes=2, sinks=sinks, checkpoint_every=2)


def write(folder: Path) -> None:
    """Write the run up to batch `WRITTEN`: one layout, a change, another one, and no end."""
    run = start(folder, 4)
    for number in range(4):
        run.feed(batch(number))
    run.checkpoint()
    run = start(folder, 2)
    for number in range(4, WRITTEN):
        run.feed(batch(number))
    for path in folder.glob("node-?"):  # those of the first layout are of no use
        shutil.rmtree(path)

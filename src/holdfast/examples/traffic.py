"""Traffic (incremental recovery, Fig. 1): speed and incidents per road segment, and both where there are incidents.

Runs anywhere. The reports are synthetic: a thousand segments whose popularity follows Zipf's law with exponent 0.5,
as in the experiments of PPA.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from holdfast.application import Application, average, sliding, tumbling
from holdfast.examples.draws import by_popularity, moments, of_batch

TITLE = "Speed and incidents per road segment, joined"
SEGMENTS = 1000
LOCATIONS_PER_INCIDENT = 40


def application() -> Application:
    """Return the application; partitions of the same segment nest, so no exchange is full."""
    app = Application("traffic")
    window = sliding("10 seconds", every="1 second")
    locations = app.source(
        "O1",
        schema={"segment": "string", "speed": "double", "at": "timestamp"},
        event_time="at",
        lateness=1,
        rate=20_000,
    )
    incidents = app.source(
        "O2", schema={"segment": "string", "kind": "string", "at": "timestamp"}, event_time="at", lateness=1, rate=500
    )
    speeds = (
        locations.key_by("segment")
        .window(window)
        .aggregate(speed=average("speed"), id="O3", parallelism=4, hints={"selectivity": 0.05})
    )
    speeds.output(priority=[4, 2, 1, 1])
    reports = (
        incidents.key_by("segment")
        .window(window)
        .count(id="O4", parallelism=2, selectivity=0.2)
        .output(priority=[3, 1])
    )
    # Results of windows that end together fall into the same second.
    speeds.join(reports, on="segment", window=tumbling("1 second"), id="O5", parallelism=2, selectivity=0.02).output(
        priority=[5, 2]
    )
    return app


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each: so many location reports, and an incident report for every forty of them."""
    names = pa.array([f"segment-{number}" for number in range(SEGMENTS)])
    kinds = pa.array(["accident", "road works", "Glätte", "animal"])
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        segments = by_popularity(random, rows, SEGMENTS, 0.5)
        # Eighths of a kilometre per hour: sums of them are exact, whatever their order.
        speeds = np.rint(random.normal(60, 15, rows).clip(0, 160) * 8) / 8
        locations = pa.table(
            {"segment": names.take(pa.array(segments)), "speed": speeds, "at": moments(random, batch, rows)}
        )
        random = of_batch(seed, 1, batch)
        few = rows // LOCATIONS_PER_INCIDENT
        incidents = pa.table(
            {
                "segment": names.take(pa.array(by_popularity(random, few, SEGMENTS, 0.5))),
                "kind": kinds.take(pa.array(random.integers(0, len(kinds), few))),
                "at": moments(random, batch, few),
            }
        )
        yield {"O1": locations, "O2": incidents}

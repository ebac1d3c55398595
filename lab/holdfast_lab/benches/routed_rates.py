"""The demo's job: the traffic topology on a real cluster, its measured rates beside those the model predicts.

Runs on the driver; the work is Spark's. Seeded synthetic location and incident reports (1,000 road segments of
Zipf-distributed popularity) flow through the windowed average, the windowed count and the join of incremental recovery,
Fig. 1. Every row is counted at the partition that would host it: keys are spread by ranges of their hash, so partitions
nest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.application import Application, average, sliding, tumbling
from holdfast.topology import Topology, rates_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENTS = 1000
ZIPF = 0.5
WINDOW, SLIDE = 10, 1
LOCATIONS_PER_SECOND, INCIDENTS_PER_SECOND = 20_000, 500


@dataclass(frozen=True, slots=True)
class RoutedRate:
    """Rows per second out of one partition: as the model predicts, and as Spark counted."""

    partition: str
    predicted: float
    measured: float

    @property
    def difference(self) -> float:
        """How far they are apart, as a part of the prediction."""
        return abs(self.measured - self.predicted) / self.predicted


def run_routed_rates(spark: SparkSession, seconds: int = 20, seed: int = 1) -> tuple[Topology, list[RoutedRate]]:
    """Run the job over so many seconds of events; return the topology and a line per partition that computes."""
    from pyspark.sql import functions as f

    popularity = np.arange(1, SEGMENTS + 1) ** -ZIPF
    popularity /= popularity.sum()
    places = _places(spark)
    topology = traffic_topology(popularity, places)
    locations = _events(spark, LOCATIONS_PER_SECOND, seconds, popularity, seed)
    incidents = _events(spark, INCIDENTS_PER_SECOND, seconds, popularity, seed + 1)

    def windows(events: DataFrame) -> DataFrame:
        """Give each event once for every sliding window it is in; keep windows that are whole."""
        ends = f.explode(f.sequence(f.floor("at") + 1, f.floor("at") + WINDOW))
        whole = (f.col("end") >= WINDOW) & (f.col("end") <= seconds)
        return events.withColumn("end", ends).where(whole)

    speeds = windows(locations).groupBy("segment", "end").agg(f.avg("speed").alias("speed"))
    reports = windows(incidents).groupBy("segment", "end").agg(f.count("*").alias("reports"))
    jams = speeds.join(reports, ["segment", "end"])
    emitting = seconds - WINDOW + 1
    counted: dict[str, float] = {}
    for name, frame, size in (("O3", speeds, 4), ("O4", reports, 2), ("O5", jams, 2)):
        routed = frame.groupBy(_partition(size).alias("partition")).count().collect()
        counted.update({f"{name}[{row['partition']}]": row["count"] / emitting for row in routed})
    predicted = rates_of(topology).output
    # Every output partition has a line: one that Spark sent nothing to measures 0, and differs.
    names = [str(topology.partition(head)) for head in topology.outputs.tolist()]
    return topology, [
        RoutedRate(name, float(predicted[topology.index(name)]), counted.get(name, 0.0)) for name in names
    ]


def traffic_topology(popularity: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> Topology:
    """Return the traffic topology with the weights and selectivities that this input must give it.

    A window emits one row for every segment with at least one event in it: with n events in a window and popularity p,
    that is 1 - exp(-n p) of the time.
    """

    def shares(size: int, value: np.ndarray[Any, Any]) -> list[float]:
        return [float(v) for v in np.bincount((places * size).astype(int), value, minlength=size)]

    seen_locations = 1 - np.exp(-LOCATIONS_PER_SECOND * WINDOW * popularity)
    seen_incidents = 1 - np.exp(-INCIDENTS_PER_SECOND * WINDOW * popularity)
    app = Application("traffic")
    columns = {"segment": "int64", "speed": "double", "at": "double"}
    locations = app.source("O1", schema=columns, event_time="at", rate=LOCATIONS_PER_SECOND)
    incidents = app.source("O2", schema=columns, event_time="at", rate=INCIDENTS_PER_SECOND)
    window = sliding(WINDOW, every=SLIDE)
    # What an aggregate emits follows the number of active segments of a partition, not its rows.
    speeds = (
        locations.key_by("segment")
        .window(window)
        .aggregate(
            id="O3",
            parallelism=4,
            hints={
                "weights": shares(4, seen_locations),
                "selectivity": float(seen_locations.sum()) / LOCATIONS_PER_SECOND,
            },
            speed=average("speed"),
        )
        .output(priority=[5, 1, 1, 1])
    )
    reports = (
        incidents.key_by("segment")
        .window(window)
        .count(
            id="O4",
            parallelism=2,
            weights=shares(2, seen_incidents),
            selectivity=float(seen_incidents.sum()) / INCIDENTS_PER_SECOND,
        )
        .output()
    )
    both = seen_locations * seen_incidents
    into_join = float(seen_locations.sum() + seen_incidents.sum())
    speeds.join(
        reports, on="segment", window=tumbling(SLIDE), id="O5", parallelism=2, selectivity=float(both.sum()) / into_join
    ).output(priority=3)
    return app.topology()


def _places(spark: SparkSession) -> np.ndarray[Any, Any]:
    """Return where each segment's key falls in [0, 1): partition i of N hosts [i/N, (i+1)/N)."""
    rows = spark.range(SEGMENTS).withColumnRenamed("id", "segment").select("segment", _place().alias("place")).collect()
    return np.array([row["place"] for row in sorted(rows, key=lambda row: int(row["segment"]))])


def _place() -> Any:
    from pyspark.sql import functions as f

    return f.pmod(f.xxhash64("segment"), f.lit(2**31)) / f.lit(float(2**31))


def _partition(size: int) -> Any:
    from pyspark.sql import functions as f

    return f.floor(_place() * size)


def _events(spark: SparkSession, per_second: int, seconds: int, popularity: Any, seed: int) -> DataFrame:
    """Make events, the same for the same seed: evenly spaced in time, segments by popularity."""
    cumulative = np.cumsum(popularity)

    def make(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            number = batch.column(0).to_numpy()
            draw = _unit(number, seed)
            segment = np.minimum(np.searchsorted(cumulative, draw), len(cumulative) - 1)
            speed = 30 + 70 * _unit(number, seed + 1000)
            yield pa.RecordBatch.from_arrays(
                [pa.array(segment.astype(np.int64)), pa.array(speed), pa.array(number / per_second)],
                names=["segment", "speed", "at"],
            )

    return spark.range(per_second * seconds).mapInArrow(make, "segment long, speed double, at double")


def _unit(number: Any, seed: int) -> Any:
    """Hash whole numbers to [0, 1): the finalizer of SplitMix64."""
    with np.errstate(over="ignore"):
        mixed = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed * 2 + 1)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53

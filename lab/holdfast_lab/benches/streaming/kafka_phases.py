"""Where the time of rows from Kafka to Kafka goes, by phases, as the driver sees them. Runs on the driver.

While `recorded` is open, four places of the driver note the time: a batch is logged, its rows are with the publisher,
the call with them begins, the transaction is committed. Rows carry when they were created and when the broker appended
them, so each row has its own time in every phase. The phases of a row add up to its latency, but for the reader's own
fetch. The first phase is the bench's own: how late its producer and the broker are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.runtime.coordinator.publishing import Publishing
from holdfast.runtime.coordinator.sink_threads import SinkThreads
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.kafka_sink import KafkaSink

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from holdfast.runtime.io.sinks import OutputKey

PHASES = ("in the topic", "in a batch", "processed", "in a transaction", "committed")
"""What ends each phase: the broker has appended the row; its batch is logged; the driver has the rows; the call begins;
the transaction is committed."""


@dataclass(slots=True)
class KafkaPhases:
    """Times of a turn, in nanoseconds of CLOCK_MONOTONIC."""

    logged: dict[int, int] = field(default_factory=dict)
    handed: dict[OutputKey, tuple[int, NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    """When the driver had the rows, and when each was created and appended."""
    called: dict[OutputKey, int] = field(default_factory=dict)
    committed: dict[OutputKey, int] = field(default_factory=dict)
    transactions: list[tuple[int, int]] = field(default_factory=list)
    """Of each: when it began and ended."""

    def of_rows(self) -> dict[str, NDArray[np.int64]]:
        """Return what every row took in each phase, of those that are through all of them."""
        found: dict[str, list[NDArray[np.int64]]] = {name: [] for name in PHASES}
        for key, (handed, created, appended) in self.handed.items():
            logged, called, done = self.logged.get(key.batch), self.called.get(key), self.committed.get(key)
            if logged is None or called is None or done is None:
                continue
            took = (appended - created, logged - appended, handed - logged, called - handed, done - called)
            for name, value in zip(PHASES, took, strict=True):
                found[name].append(np.broadcast_to(np.asarray(value, np.int64), created.shape))
        return {name: np.concatenate(values) if values else np.zeros(0, np.int64) for name, values in found.items()}

    def medians(self) -> dict[str, float]:
        """Return the median of every phase, in milliseconds."""
        return {name: float(np.median(took)) / 1e6 if len(took) else 0.0 for name, took in self.of_rows().items()}

    @property
    def batches(self) -> int:
        """How many batches had rows."""
        return len({key.batch for key in self.handed})


@contextmanager
def recorded() -> Iterator[KafkaPhases]:
    """Note the times of every batch, of all runs of this process, while this is open."""
    found, now = KafkaPhases(), time.monotonic_ns
    wall = time.time_ns() - now()
    """Brokers have the time of the day, in milliseconds."""
    places: list[tuple[type, str, Callable[..., Any]]] = []

    def around(owner: type, name: str, note: Callable[[Sequence[Any], int, int], object]) -> None:
        before = getattr(owner, name)
        places.append((owner, name, before))

        def noted(*given: Any, **named: Any) -> Any:
            began = now()
            result = before(*given, **named)
            note(given, began, now())
            return result

        setattr(owner, name, noted)

    def handed(given: Sequence[Any], began: int, ended: int) -> None:
        output = given[1]
        if output.rows is not None and output.rows.num_rows:
            created = np.array(output.rows["value"].to_pylist()).astype(np.int64)
            appended = output.rows["timestamp"].cast("timestamp[us]").cast("int64").to_numpy() * 1000 - wall
            found.handed[output.key] = began, created, appended

    def called(given: Sequence[Any], began: int, ended: int) -> None:
        found.called.update({one.key: began for one in given[1].outputs})

    def committed(given: Sequence[Any], began: int, ended: int) -> None:
        found.committed.update({one.key: ended for one in given[1]})
        found.transactions.append((began, ended))

    around(BatchLog, "commit", lambda given, began, ended: found.logged.setdefault(int(given[1]), ended))
    around(Publishing, "add", handed)
    around(SinkThreads, "start", called)
    around(KafkaSink, "publish_all", committed)
    try:
        yield found
    finally:
        for owner, name, before in places:
            setattr(owner, name, before)

"""Topologies whose operators have a known cost and a known state: what promises of plans are measured on.

Runs on driver and nodes. Every operator keeps running totals of all meters (the operator of the drill `chain`), which
it writes anew with every batch, and sleeps for a fixed time per row. So the seconds of work per second of input, and
the bytes of a checkpoint, are the same however busy the machine is, and nodes replay side by side as machines of their
own would. The first batch has every meter once, costs nothing, and brings the state to its full size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.application import Application
from holdfast.drill.chain import running_totals
from holdfast.examples.draws import moments, of_batch
from holdfast.ids import OperatorId

METERS = 3000
ROWS = 40
"""Rows of a source's batch."""
BATCH_SECONDS = 0.5
_ROWS = {"meter": "string", "value": "int64", "at": "timestamp"}


@dataclass(frozen=True, slots=True)
class SleepPerRow:
    """What an operator does before every step: it sleeps, for so long per row; not in the first batch."""

    seconds: float

    def __call__(self, partition: Any, batch: int, inputs: list[Any]) -> None:
        """Sleep."""
        if batch > 0:
            time.sleep(self.seconds * sum(table.num_rows for table in inputs if table is not None))


def totals_of_all(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Keep running totals of what comes from all inputs together."""
    return running_totals(state, (pa.concat_tables(inputs),), watermark)


@dataclass(frozen=True)
class Workload:
    """A topology with one partition per operator."""

    name: str
    inputs: Mapping[str, tuple[str, ...]]
    """The operators that feed each; none: a source. Senders come before consumers."""
    work: Mapping[str, float]
    """Seconds of work per second of input, by operator."""

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The operators without inputs."""
        return tuple(name for name, feeds in self.inputs.items() if not feeds)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Rows of a batch that reach each operator, if no meter comes twice in it."""
        found: dict[str, int] = {}
        for name, feeds in self.inputs.items():
            found[name] = sum(found[feed] for feed in feeds) if feeds else ROWS
        return found

    def application(self) -> Application:
        """Return the application; operators that feed none are its outputs."""
        app = Application(f"promises-{self.name}")
        made: dict[str, Any] = {}
        fed = {feed for feeds in self.inputs.values() for feed in feeds}
        for name, feeds in self.inputs.items():
            if not feeds:
                made[name] = app.source(name, schema=_ROWS, event_time="at", rate=ROWS / BATCH_SECONDS)
                continue
            first, *others = (made[feed] for feed in feeds)
            made[name] = first.apply(
                totals_of_all,
                *others,
                state={"meter": "string", "total": "int64"},
                schema=_ROWS,
                event_time="at",
                id=name,
                parallelism=1,
            )
            if name not in fed:
                made[name] = made[name].output(name)
        app.before_steps = {
            OperatorId(name): SleepPerRow(work * BATCH_SECONDS / self.rows[name]) for name, work in self.work.items()
        }
        return app

    def batches(self, seed: int) -> Iterator[dict[str, pa.Table]]:
        """Give batches without end: the first has every meter, the others `ROWS` different ones."""
        names = pa.array([f"meter-{number:04d}" for number in range(METERS)])
        number = 0
        while True:
            random = of_batch(seed, 0, number)
            given: dict[str, pa.Table] = {}
            for source in self.sources:
                many = METERS if number == 0 else ROWS
                meters = names.take(pa.array(random.permutation(METERS)[:many]))
                values = pa.array(random.integers(1, 1000, many).astype(np.int64))
                given[source] = pa.table({"meter": meters, "value": values, "at": moments(random, number, many)})
            yield given
            number += 1


WORKLOADS: dict[str, Workload] = {
    one.name: one
    for one in (
        Workload(
            "chain",
            {"readings": (), "hourly": ("readings",), "daily": ("hourly",), "yearly": ("daily",)},
            {"readings": 0.4, "hourly": 0.7, "daily": 0.3, "yearly": 0.3},
        ),
        Workload(
            "tree",
            {"readings": (), "totals": ("readings",), "houses": ("totals",), "streets": ("totals",)},
            {"readings": 0.4, "totals": 0.7, "houses": 0.3, "streets": 0.3},
        ),
        Workload(
            "dag",
            {
                "water": (),
                "power": (),
                "litres": ("water",),
                "watts": ("power",),
                "bills": ("litres", "watts"),
            },
            {"water": 0.4, "power": 0.4, "litres": 0.7, "watts": 0.4, "bills": 0.3},
        ),
    )
}
"""A chain, a tree and a DAG; costs differ, so that it matters what rolls back."""

"""What stored edges are predicted to take, beside what a run in one process stores of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.ids import OperatorId
from holdfast.planning.segments.model import model_of, segments_of
from holdfast.planning.segments.stored import framing_by_operator, pairs_of, stored_edges
from holdfast.recovery.segments import segments_of as executed
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import InProcess
from holdfast.runtime.blocks import encode_outbox
from holdfast.runtime.state.snapshots import Snapshot, encode_snapshot
from holdfast.runtime.worker import worker
from holdfast.topology import Topology

WITHIN = 0.2
"""The prediction may be off by this share of what is stored."""
SCHEMA = {"key": "int64", "text": "string"}


def passed_on(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    return state, pa.concat_tables(inputs)


def application(parallelism: Mapping[str, int], inputs: Mapping[str, str]) -> Application:
    app = Application("stored")
    made = {"a": app.source("a", schema=SCHEMA, parallelism=parallelism["a"])}
    for name, feed in inputs.items():
        keyed = made[feed].key_by("key")
        made[name] = keyed.apply(passed_on, schema=SCHEMA, state=SCHEMA, id=name, parallelism=parallelism[name])
        if name not in inputs.values():
            made[name].output(name)
    return app


CHAIN = {"b": "a", "c": "b"}
FORK = {"b": "a", "c": "b", "d": "b"}


@pytest.mark.parametrize(
    ("inputs", "anchors", "intervals", "parallelism", "rows", "width"),
    [
        (CHAIN, "c", {"a": 4, "c": 7}, (1, 1, 1), 40, 4),
        (CHAIN, "c", {"a": 4, "c": 7}, (1, 1, 1), 400, 4),
        (CHAIN, "c", {"a": 4, "c": 7}, (1, 1, 1), 40, 400),
        (CHAIN, "c", {"a": 4, "c": 7}, (2, 3, 4), 40, 40),
        (CHAIN, "c", {"a": 7, "c": 4}, (2, 4, 2), 400, 20),
        (CHAIN, "bc", {"a": 5, "b": 8, "c": 5}, (2, 2, 2), 100, 20),
        (CHAIN, "bc", {"a": 8, "b": 8, "c": 8}, (1, 3, 1), 100, 20),
        (FORK, "c", {"a": 4, "c": 10}, (1, 2, 2, 1), 100, 20),
    ],
)
def test_what_is_stored_of_sent_rows_is_what_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
    inputs: Mapping[str, str],
    anchors: str,
    intervals: dict[str, int],
    parallelism: tuple[int, ...],
    rows: int,
    width: int,
) -> None:
    names = ["a", *inputs]
    app = application(dict(zip(names, parallelism, strict=True)), inputs)
    slowest = max(intervals.values())
    first, last = slowest - 1, slowest - 1 + 5 * slowest  # from one durable checkpoint to the next
    stored: dict[str, int] = dict.fromkeys(names, 0)

    def counted(snapshot: Snapshot) -> bytes:
        if first < snapshot.commit.id.batch <= last:
            stored[str(snapshot.commit.partition.operator)] += len(encode_outbox(snapshot.outbox))
        return encode_snapshot(snapshot)

    monkeypatch.setattr(worker, "encode_snapshot", counted)
    segments = executed(app.topology(), anchors)
    run = InProcess(
        app, nodes=3, checkpoint_every=slowest, intervals=intervals, recovery=RecoverySettings(segments=segments)
    )
    random = np.random.default_rng(7)
    for _ in range(last + 1):
        run.feed({"a": pa.table({"key": random.integers(0, 10_000, rows), "text": ["x" * width] * rows})})

    found = run.profile()
    bytes_of = {
        name: sum(one.work.bytes_in for p, one in found.partitions.items() if p.operator == name)
        / sum(one.work.rows_in for p, one in found.partitions.items() if p.operator == name)
        for name in names
    }
    measured = [replace(one, tuple_bytes=bytes_of[str(one.id)], failure_rate=1e-6) for one in app.topology().operators]
    measured[0] = replace(measured[0], rate=float(rows))  # a batch a second
    topology = Topology("stored", measured)
    every = [float(intervals[segments.operators[OperatorId(name)]]) for name in names]
    model = model_of(topology, 1.0)
    cut = segments_of(model, np.array([model.sources | np.isin(names, [*anchors])]))[0]
    predicted = stored_edges(topology, cut.tolist(), every, 1.0)
    for name, expected in zip(names, predicted.tolist(), strict=True):
        there = stored[name] / (last - first)
        print(f"{name}: predicted {expected:.0f}, stored {there:.0f} bytes a second")  # noqa: T201 (see with -rP)
        assert expected == pytest.approx(there, rel=WITHIN), name


def test_planners_count_what_is_written_beside_rows_where_batches_are_known() -> None:
    topology = application({"a": 2, "b": 3, "c": 1}, CHAIN).topology()
    operators = [replace(one, failure_rate=1e-6, tuple_bytes=10.0) for one in topology.operators]
    operators[0] = replace(operators[0], rate=100.0)
    topology = Topology("chain", operators)
    plain, framed = model_of(topology, 1e6), model_of(topology, 1e6, batches_per_second=2.0)
    assert pairs_of(topology).tolist() == [6, 3]
    beside = framing_by_operator(topology, 2.0)
    assert beside.tolist() == pytest.approx([0.0, 2 * (24 * 2 + 6 * 6), 2 * (24 * 3 + 6 * 3)])
    assert (framed.input_seconds - plain.input_seconds).tolist() == pytest.approx((beside / 1e6).tolist())

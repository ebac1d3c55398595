"""Each operator run twice gives the same bytes: state, output and late rows of every batch, whatever ran it.

That makes Spark's retries harmless: of two attempts either may win. Attempts differ in what must not matter: a fresh
kernel, a state read back from its file instead of from memory, another process with another seed for Python's hashes,
another number of Arrow's threads, and a processor without vector instructions.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast import Application, Stream, count, rows, session, sliding, tumbling
from holdfast.application import steps
from holdfast.application.aggregates import Function
from holdfast.application.windows import Rows, Session, Sliding, Window
from holdfast.runtime.program import Program
from holdfast.runtime.state.versions import decode_segments, encode_segments
from holdfast.runtime.times import END_OF_TIME, NOT_YET
from holdfast.runtime.worker.operators.kernel import Runs
from runtime import oracle
from runtime.generated import SCHEMA, batches, table

LATENESS = 1.5
COUNT, MOST = 8, 900
AGGREGATES = {
    "rows": count(),
    "known": count("n"),
    "sum": hf.sum("n"),
    "real": hf.sum("third"),
    "mean": hf.avg("third"),
    "low": hf.min("n"),
    "high": hf.max("third"),
    "first": hf.min("word"),
    "kinds": hf.count_distinct("x"),
}
WINDOWS = {"sliding": sliding(3, every=1), "tumbling": tumbling(2), "session": session(gap=0.02), "rows": rows(7, 3)}
COLUMNS = {**SCHEMA, "key": "int64", "third": "double"}


def _letters(given: pa.Table) -> pa.Table:
    lists = pc.split_pattern(given["word"], "t").combine_chunks()
    return pa.table({"letter": pc.list_flatten(lists)})


def _totals(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    both = pa.concat_tables([state, inputs[0].select(["key", "third"])])
    sums = both.group_by("key", use_threads=False).aggregate([("third", "sum")]).rename_columns(["key", "third"])
    return sums, sums.filter(pc.greater(sums["third"], 0))


def _windowed() -> dict[str, Callable[[Stream], Stream]]:
    found: dict[str, Callable[[Stream], Stream]] = {}
    for name, window in WINDOWS.items():
        found[f"aggregate {name}"] = lambda s, w=window: s.key_by("key").window(w).agg(**AGGREGATES)
        found[f"aggregate {name} without a key"] = lambda s, w=window: s.window(w).agg(**AGGREGATES)
        found[f"top {name}"] = lambda s, w=window: s.key_by("word").window(w).top(5, by="n")
        found[f"distinct {name}"] = lambda s, w=window: s.window(w).distinct("word", "key")
    return found


KERNELS: dict[str, Callable[[Stream], Stream]] = {
    "map": lambda s: s.map(lambda t: t.append_column("twice", pc.multiply(t["n"], 2))),
    "filter by an expression": lambda s: s.filter(pc.field("n") > 0),
    "filter by a function": lambda s: s.filter(lambda t: pc.greater(t["n"], 0)),
    "flat-map": lambda s: s.flat_map(_letters, schema={"letter": "string"}),
    "custom": lambda s: s.apply(
        _totals, state={"key": "int64", "third": "double"}, schema={"key": "int64", "third": "double"}
    ),
    **_windowed(),
}
JOINS: dict[str, Window] = {name: window for name, window in WINDOWS.items() if not isinstance(window, Rows)}
ALL = [*KERNELS, *(f"join {name}" for name in JOINS)]


def application(name: str) -> tuple[Application, str]:
    """An application with one operator of interest, and that operator's id."""
    app = Application("x")
    sources = [
        app.source(source, schema=COLUMNS, event_time="at", lateness=LATENESS)
        for source in ("l", "r")[: 2 if name.startswith("join ") else 1]
    ]
    if name in KERNELS:
        return app, KERNELS[name](sources[0]).output().id
    return app, sources[0].join(sources[1], on=["word", "n"], window=JOINS[name.removeprefix("join ")]).output().id


def attempt(name: str, *, through_files: bool = False) -> list[str]:
    """Run an operator over batches; return a digest of everything each batch gave."""
    app, operator = application(name)
    kernel = Program(app).operators[app.operator(operator).id].kernel
    sides = len(app.operator(operator).inputs)
    most = MOST if sides == 1 else MOST // 6
    made = [batches(seed, COUNT, most) for seed in range(sides)]
    marks = [oracle.watermarks(one, int(LATENESS * 1e6)) for one in made]
    state: Runs = {}
    before = NOT_YET
    digests = []
    for number in range(COUNT + 1):
        inputs: list[pa.Table | None]
        if number < COUNT:
            inputs = [_table(one[number]) for one in made]
            lowest = min(mark[number] for mark in marks)
            now = max(before, NOT_YET if lowest == oracle.NEVER else int(lowest))
        else:
            inputs, now = [None] * sides, END_OF_TIME
        done = kernel.step(state, inputs, before, now)
        written = encode_segments(done.state)
        parts = [written]
        for given in (done.output, *(done.late[side] for side in sorted(done.late))):
            parts.append(b"" if given is None else encode_segments({"rows": [given]}))
        digests.append(hashlib.sha256(b"|".join(parts)).hexdigest())
        state, before = (_read_back(done.state, written) if through_files else done.state), now
    return digests


def _table(given: list[oracle.Row]) -> pa.Table | None:
    """Rows with a key of many values, and with thirds: their sums depend on the order of adding."""
    if not given:
        return None
    plain = table(given)
    keys = [(row["n"] or 0) * 97 + place % 389 for place, row in enumerate(given)]
    plain = plain.append_column("key", pa.array(keys, pa.int64()))
    return plain.append_column("third", pc.divide(plain["x"], 3.0))


def _read_back(state: Runs, written: bytes) -> Runs:
    runs = iter(decode_segments(pa.py_buffer(written)))
    return {name: tuple(next(runs) for _ in tables) for name, tables in state.items()}


@pytest.mark.parametrize("name", ALL)
def test_a_second_attempt_gives_the_same_bytes(name: str) -> None:
    first = attempt(name)
    assert len(set(first)) > COUNT // 2, "the batches differ, so equal digests mean something"
    assert attempt(name) == first
    assert attempt(name, through_files=True) == first, "with the state read from files"


def test_another_process_and_processor_give_the_same_bytes() -> None:
    code = (
        "import json; from runtime.test_same_bytes import *; print(json.dumps({name: attempt(name) for name in ALL}))"
    )
    found = []
    for hash_seed, level, threads in (("1", "NONE", "1"), ("2", "AVX2", "4")):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "PYTHONHASHSEED": hash_seed,
            "ARROW_USER_SIMD_LEVEL": level,
            "OMP_NUM_THREADS": threads,
        }
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]


def test_every_operator_the_builder_offers_is_here() -> None:
    covered: set[object] = set()
    for name in ALL:
        app, _ = application(name)
        for step in app.steps.values():
            window = getattr(step, "window", None)
            covered.add(type(step) if window is None else (type(step), type(window)))
    over_windows = {steps.WindowAggregate, steps.TopK, steps.Distinct, steps.WindowJoin}
    # Rows of a source that is read in place go to the partitions of their keys as they are: routing, no operator.
    offered: set[object] = {step for step in get_args(steps.Step) if step not in {*over_windows, steps.Spread}}
    offered |= {(step, window) for step in over_windows for window in get_args(Window)}
    offered.remove((steps.WindowJoin, Rows))  # refused: a join needs an event-time window
    assert covered == offered
    assert {Sliding, Session, Rows} == set(get_args(Window))
    assert {one.function for one in AGGREGATES.values()} == set(Function)

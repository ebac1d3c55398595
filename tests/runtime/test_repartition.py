"""State moves to another number of partitions, and the outputs are those of a run that never changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import Application, Stream, rows, session, sliding, tumbling
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import OUTSIDE, Edge
from holdfast.runtime.program import Program
from holdfast.runtime.schemas import conform
from holdfast.runtime.state.repartition import old_partitions, repartition, snapshot_of, state_of
from holdfast.runtime.state.snapshots import assemble, decode_snapshot, encode_snapshot, install
from holdfast.runtime.state.store import MemoryStore
from holdfast.runtime.state.versions import Commit, VersionId
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import END_OF_TIME, NOT_YET, Watermark, event_times, highest, lowest, microseconds
from holdfast.runtime.worker.operators.kernel import Declaration, InputColumns
from holdfast.runtime.worker.routing import Route, hash_rows, partition_of, spread, spread_by_key
from holdfast.topology import Partitioning
from runtime.generated import SCHEMA, SECOND, batches, table
from runtime.oracle import bag
from sizes import share

LATENESS = 1.5
CHANGES = [(4, 2), (2, 8), (1, 3), (3, 1)]
AGGREGATES = {
    "rows": hf.count(),
    "known": hf.count("n"),
    "sum": hf.sum("n"),
    "real": hf.sum("x"),  # eighths: exact in any order
    "mean": hf.avg("n"),
    "low": hf.min("n"),
    "high": hf.max("x"),
    "first": hf.min("word"),
    "kinds": hf.count_distinct("n"),
}

State = Mapping[str, tuple[pa.Table, ...]]


@cache
def declared(program: Program, name: OperatorId) -> Declaration:
    operator = program.operators[name]
    routes = [route for route in operator.inputs if route.edge.source != OUTSIDE]
    return operator.kernel.declare(
        [InputColumns(route.keys, program.operators[route.edge.source].schema) for route in routes]
    )


class Kernels:
    """A program's kernels and routes, batch by batch, and nothing else; the program may be changed between batches."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.states: dict[PartitionId, State] = {}
        self.marks: dict[PartitionId, Watermark] = {}
        self.logged: dict[OperatorId, Watermark] = {}
        self.batch = 0
        self.outputs: Counter[Any] = Counter()
        """Rows of every operator, by operator and batch, in no order."""
        self.late: Counter[Any] = Counter()

    def change(self, program: Program) -> None:
        """Go on with another parallelism: every state is spread anew."""
        states, marks = {}, {}
        for name, operator in program.operators.items():
            olds = [PartitionId(name, index) for index in range(self.program.operators[name].parallelism)]
            before = [self.states.get(old, {}) for old in olds]
            made = (
                before
                if operator.parallelism == len(olds)
                else repartition(name, before, operator.parallelism, declared(program, name).state_keys)
            )
            for index, state in enumerate(made):
                states[PartitionId(name, index)] = state
                marks[PartitionId(name, index)] = lowest(self.marks.get(old) for old in olds)
        self.program, self.states, self.marks = program, states, marks

    def feed(self, given: Mapping[str, pa.Table], *, last: bool = False) -> None:
        program, arriving = self.program, {}
        for name, source in program.sources.items():
            made = conform(given[name], source.schema, "a batch")
            mark: Watermark = self.logged.get(name)
            if source.event_time is not None:
                times, known = event_times(made, source.event_time)
                latest = int(times[known].max()) - microseconds(source.lateness) if known.any() else NOT_YET
                mark = END_OF_TIME if last else highest(mark, latest)
            self.logged[name] = mark
            for index, piece in enumerate(spread_by_key(made, source.keys, source.parallelism)):
                arriving[Edge(OUTSIDE, name), PartitionId(OUTSIDE, index), PartitionId(name, index)] = piece
        for partition in program.partitions:
            self._step(partition, arriving)
        self.batch += 1

    def _step(self, partition: PartitionId, arriving: dict[Any, pa.Table | None]) -> None:
        operator, streams = self.program.operators[partition.operator], self.program.streams(partition)
        inputs = []
        for route in operator.inputs:
            pieces = [arriving.get((edge, sender, partition)) for edge, sender in streams if edge == route.edge]
            some = [piece for piece in pieces if piece is not None and piece.num_rows]
            inputs.append(one_chunk(some) if some else None)
        before = self.marks.get(partition)
        coming = [
            self.logged[partition.operator] if sender.operator == OUTSIDE else self.marks[sender]
            for _, sender in streams
        ]
        now = highest(before, lowest(coming))
        stepped = operator.kernel.step(self.states.get(partition, {}), inputs, before, now)
        self.states[partition], self.marks[partition] = stepped.state, now
        self._check_state(partition)
        for side, table_ in stepped.late.items():
            self.late.update(bag([{**row, "@": (partition.operator, side, self.batch)} for row in table_.to_pylist()]))
        output = stepped.output
        if output is None or not output.num_rows:
            return
        if operator.schema is not None:
            output = conform(output, operator.schema, "the output")
        self.outputs.update(bag([{**row, "@": (partition.operator, self.batch)} for row in output.to_pylist()]))
        for route in operator.outputs:
            targets = route.targets(partition.index)
            for target, piece in zip(targets, spread(output, route, partition.index), strict=True):
                arriving[route.edge, partition, route.receiver(target)] = piece

    def _check_state(self, partition: PartitionId) -> None:
        """The state has the tables, columns and keys that its kernel declares, and its rows are where they belong."""
        said = declared(self.program, partition.operator)
        for name, runs in self.states[partition].items():
            for run in runs:
                assert said.tables is None or run.schema.equals(said.tables[name])
                if said.not_split is None:
                    count = self.program.operators[partition.operator].parallelism
                    assert (partition_of(hash_rows(run, said.state_keys), count) == partition.index).all()


Build = Callable[[Application, int], Any]


def source(app: Application, name: str = "s", **given: Any) -> Stream:
    return app.source(name, schema=SCHEMA, event_time="at", lateness=LATENESS, **given)


def totals(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Running totals by word, over all inputs."""
    known = dict(zip(state["word"].to_pylist(), state["n"].to_pylist(), strict=True))
    out = []
    for given_ in inputs:
        for word, n in zip(given_["word"].to_pylist(), given_["n"].to_pylist(), strict=True):
            known[word] = known.get(word, 0) + (n or 0)
            out.append({"word": word, "n": known[word]})
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    return pa.table({"word": list(known), "n": list(known.values())}, schema=schema), pa.Table.from_pylist(out, schema)


SUMS = {"word": "string", "n": "int64"}


def joined(window: Any) -> Build:
    def build(app: Application, size: int) -> None:
        left, right = source(app, "s", parallelism=size), source(app, "r")
        left.join(right, on="word", window=window, id="o", parallelism=size).output()

    return build


def one(make: Callable[[Stream, int], Stream], **given: Any) -> Build:
    def build(app: Application, size: int) -> None:
        make(source(app, **{"parallelism": size, **given}), size).output()

    return build


def chained(app: Application, size: int) -> None:
    """Windows of windows, nested and not, stateless operators between."""
    words = source(app, parallelism=size).filter(pc.field("n") > -4, id="some")
    small = words.key_by("word").window(tumbling(1)).agg(n=hf.sum("n"), id="small", parallelism=2 * size)
    kept = small.key_by("word").filter(lambda t: pc.is_valid(t["n"]), id="kept", parallelism=size)
    kept.window(tumbling(4)).agg(n=hf.sum("n"), id="large", parallelism=size).output()
    small.map(lambda t: t.select(["n", "window_end"]), schema="n bigint, window_end timestamp", id="bare").key_by(
        "n"
    ).window(session(2)).count(id="often", parallelism=3).output()


BUILDS: dict[str, Build] = {
    "aggregate tumbling": one(lambda s, p: s.key_by("word").window(tumbling(2)).agg(parallelism=p, **AGGREGATES)),
    "aggregate sliding": one(
        lambda s, p: s.key_by("word").window(sliding(2.5, every=1)).agg(parallelism=p, **AGGREGATES)
    ),
    "aggregate session": one(lambda s, p: s.key_by("word").window(session(0.7)).agg(parallelism=p, **AGGREGATES)),
    "aggregate rows": one(
        lambda s, p: s.key_by("word").window(rows(5, every=3)).agg(parallelism=p, **AGGREGATES), parallelism=1
    ),
    "aggregate by two keys": one(lambda s, p: s.key_by("n", "word").window(sliding(3, every=1)).count(parallelism=p)),
    "aggregate by double": one(lambda s, p: s.key_by("x").window(sliding(3, every=1)).count(parallelism=p)),
    "aggregate by time": one(lambda s, p: s.key_by("at").window(sliding(3, every=1)).count(parallelism=p)),
    "top sliding": one(lambda s, p: s.key_by("word").window(sliding(3, every=1)).top(2, by="n", parallelism=p)),
    "top session": one(lambda s, p: s.key_by("word").window(session(0.7)).top(2, by="x", parallelism=p)),
    "top rows": one(lambda s, p: s.key_by("word").window(rows(4)).top(2, by="x", parallelism=p), parallelism=1),
    "distinct sliding": one(lambda s, p: s.window(sliding(2, every=1)).distinct("word", "n", parallelism=p)),
    "distinct by part": one(
        lambda s, p: s.key_by("word").window(sliding(2, every=1)).distinct("n", "word", parallelism=p)
    ),
    "distinct session": one(lambda s, p: s.window(session(0.5)).distinct("word", "n", parallelism=p)),
    "distinct rows": one(lambda s, p: s.window(rows(2)).distinct("word", "n", parallelism=p), parallelism=1),
    "join sliding": joined(sliding(2, every=1)),
    "join session": joined(session(0.5)),
    "apply": one(lambda s, p: s.key_by("word").apply(totals, state=SUMS, schema=SUMS, parallelism=p), parallelism=1),
    "source with a key": one(
        lambda s, p: s.window(tumbling(2)).distinct("word", parallelism=2), key="word"
    ),  # the source's partitions nest
    "stateless": one(lambda s, p: s.filter(pc.field("n") > 0, parallelism=p).map(lambda t: t, schema=SCHEMA)),
    "chained": chained,
}


def program(build: Build, size: int) -> Program:
    app = Application("x")
    build(app, size)
    return Program(app)


def feeds(seed: int) -> list[dict[str, pa.Table]]:
    left, right = batches(seed), batches(seed + 100, most=15, disorder=2 * SECOND)
    return [{"s": table(a), "r": table(b)} for a, b in zip(left, right, strict=True)]


def run(made: list[dict[str, pa.Table]], start: Program, *changes: tuple[int, Program]) -> Kernels:
    done, at = Kernels(start), dict(changes)
    for number, batch in enumerate(made):
        if number in at:
            done.change(at[number])
        done.feed(batch, last=number == len(made) - 1)
    return done


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("kind", BUILDS)
def test_a_run_that_changes_its_parallelism_gives_what_one_gives_that_never_does(
    kind: str, before: int, after: int
) -> None:
    build = BUILDS[kind]
    for seed in range(2):
        made = feeds(seed)
        same = run(made, program(build, before))
        changed = run(made, program(build, before), (4, program(build, after)))
        assert changed.outputs == same.outputs, f"seed {seed}"
        assert changed.late == same.late
        assert set(changed.marks.values()) == set(same.marks.values())
        assert sum(same.outputs.values()) > 20


@pytest.mark.parametrize("kind", ["aggregate sliding", "top session", "join sliding", "aggregate rows", "apply"])
def test_a_run_may_change_again_and_again(kind: str) -> None:
    build, made = BUILDS[kind], feeds(7)
    same = run(made, program(build, 2))
    changes = [(number, program(build, size)) for number, size in enumerate((3, 1, 4, 4, 7, 2), 1)]
    changed = run(made, program(build, 2), *changes)
    assert (changed.outputs, changed.late) == (same.outputs, same.late)


def test_a_change_gives_the_same_bytes_in_every_attempt() -> None:
    def attempt() -> dict[PartitionId, State]:
        build = BUILDS["aggregate sliding"]
        return run(feeds(1)[:6], program(build, 3), (3, program(build, 5))).states

    first, second = attempt(), attempt()
    assert first.keys() == second.keys()
    for partition, state in first.items():
        assert {name: [run.to_pylist() for run in runs] for name, runs in state.items()} == {
            name: [run.to_pylist() for run in runs] for name, runs in second[partition].items()
        }


def test_sums_of_doubles_differ_in_their_last_bits_at_most() -> None:
    random = np.random.default_rng(5)
    made = []
    for number in range(8):
        at = pa.array(number * SECOND + random.integers(0, SECOND, 200)).cast(pa.timestamp("us"))
        words = pa.array([f"w{one}" for one in random.integers(0, 5, 200)])
        made.append({"s": pa.table({"word": words, "n": [0] * 200, "x": random.normal(size=200), "at": at})})

    build = one(lambda s, p: s.key_by("word").window(sliding(4, every=1)).agg(x=hf.sum("x"), id="o", parallelism=p))
    same, changed = run(made, program(build, 4)), run(made, program(build, 4), (4, program(build, 2)))
    mine, theirs = sums(same), sums(changed)
    assert mine.keys() == theirs.keys()
    assert len(mine) > 20
    assert all(mine[key] == pytest.approx(theirs[key], rel=1e-12, abs=1e-12) for key in mine)


def sums(done: Kernels) -> dict[Any, float]:
    """The sums in the rows of an output, by all that is beside them; the rows of sources have other columns."""
    found = {}
    for key in done.outputs:
        row = dict(key)
        if "window_end" in row:
            found[tuple((name, value) for name, value in key if name != "x")] = row["x"]
    return found


# -- rows and state meet again -----------------------------------------------------------------------------------------


def moments(unit: str) -> st.SearchStrategy[int]:
    return st.integers(-(2**40), 2**40) if unit in ("s", "ms") else st.integers(-(2**60), 2**60)


TYPES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=20) | st.text("é", min_size=130, max_size=300),
    "large_string": st.text(max_size=20),
    "binary": st.binary(max_size=20),
    "bool": st.booleans(),
    "float": st.floats(width=32),
    "double": st.floats(),
    "date32[day]": st.integers(-(2**31), 2**31 - 1),
    **{f"int{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"timestamp[{unit}]": moments(unit) for unit in ("s", "ms", "us", "ns")},
}


def values(kind: str, drawn: Sequence[Any]) -> pa.Array:
    arrow = pa.type_for_alias(kind)
    if pa.types.is_temporal(arrow):
        return pa.array(drawn, pa.int32() if pa.types.is_date32(arrow) else pa.int64()).cast(arrow)
    return pa.array(drawn, arrow)


def words(run_: pa.Table, columns: Sequence[str]) -> list[str]:
    """Rows as texts in which equal keys are equal: one zero, one NaN; moments as numbers, beyond Python's dates too."""
    plain = run_.select(columns)
    for number, field in enumerate(plain.schema):
        if pa.types.is_temporal(field.type):
            whole = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
            plain = plain.set_column(number, field.name, plain[field.name].cast(whole))
    return [
        repr([str(value + 0.0) if isinstance(value, float) else value for value in row.values()])
        for row in plain.to_pylist()
    ]


@given(st.data(), st.sampled_from(sorted(TYPES)), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=share(200))
def test_rows_are_routed_to_the_partition_with_the_state_of_their_key(
    data: st.DataObject, kind: str, before: int, after: int
) -> None:
    """For every type of key: rows that come after a change find what the rows before it left."""
    app = Application("x")
    schema = {"k": kind, "j": "int64", "at": "timestamp[us]"}
    keys = data.draw(st.sampled_from([("k",), ("k", "j"), ("j", "k")]))
    stream = app.source("s", schema=schema, event_time="at")
    stream.key_by(*keys).window(tumbling(10)).agg(n=hf.count(), d=hf.count_distinct("j"), id="panes").output()
    stream.key_by(*keys).window(session(10)).agg(n=hf.count(), id="sessions").output()
    stream.key_by(*keys).window(rows(1000)).count(id="counts").output()
    made = Program(app)
    drawn = data.draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=30))
    many = len(drawn)
    given_ = pa.table(
        {
            "k": values(kind, drawn),
            "j": pa.array(data.draw(st.lists(st.integers(0, 3), min_size=many, max_size=many)), pa.int64()),
            "at": pa.array([0] * many, pa.int64()).cast(pa.timestamp("us")),
        }
    )

    def routed(count: int) -> list[pa.Table | None]:
        route = Route(Edge(OperatorId("s"), OperatorId("o")), Partitioning.FULL, 1, count, keys)
        return spread(given_, route, 0)

    for name in ("panes", "sessions", "counts"):
        kernel = made.operators[OperatorId(name)].kernel
        states = [kernel.step({}, [piece], None, None).state for piece in routed(before)]
        found = repartition(name, states, after, keys)
        for index, piece in enumerate(routed(after)):
            expected = set() if piece is None else set(words(piece, keys))
            tables = [run_ for runs in found[index].values() for run_ in runs]
            assert {word for run_ in tables for word in words(run_, keys)} == expected
        kept = sum(run_.num_rows for state in states for runs in state.values() for run_ in runs)
        assert sum(run_.num_rows for state in found for runs in state.values() for run_ in runs) == kept


def test_both_sides_of_a_join_meet_again_whatever_the_types_of_their_keys() -> None:
    app = Application("x")
    left = app.source("l", schema={"k": "int32", "at": "double"}, event_time="at")
    right = app.source("r", schema={"k": "double", "at": "double"}, event_time="at")
    left.join(right, on="k", window=tumbling(10), id="o", parallelism=2).output()
    kernel = Program(app).operators[OperatorId("o")].kernel
    numbers = pa.array(range(100), pa.int32())
    sides = [pa.table({"k": keys, "at": [0.0] * 100}) for keys in (numbers, numbers.cast(pa.float64()))]
    pieces = [spread_by_key(side, ["k"], 2) for side in sides]
    states = [kernel.step({}, [a, b], None, None).state for a, b in zip(*pieces, strict=True)]
    for state in repartition("o", states, 5, ["k"]):
        found = {side: sorted(pa.concat_tables(runs)["k"].to_pylist()) for side, runs in state.items()}
        assert found["left"] == found["right"]
        closed = kernel.step(state, [None, None], None, END_OF_TIME)
        assert sorted(closed.output["k"].to_pylist()) == found["left"]


@given(st.integers(1, 40), st.integers(1, 40), st.lists(st.text(max_size=8), max_size=30))
def test_a_new_partition_needs_only_the_old_ones_whose_range_it_shares(
    before: int, after: int, keys: list[str]
) -> None:
    hashes = hash_rows(pa.table({"k": pa.array(keys, pa.string())}), ["k"])
    for old, new in zip(partition_of(hashes, before).tolist(), partition_of(hashes, after).tolist(), strict=True):
        assert old in old_partitions(new, after, before)
    assert {old for new in range(after) for old in old_partitions(new, after, before)} == set(range(before))


def test_runs_keep_their_order_by_old_partition_and_place() -> None:
    numbers = pa.table({"k": pa.array(range(40)), "place": pa.array(range(40))})
    cuts = spread_by_key(numbers, ["k"], 4)
    states = [{"t": (piece.slice(0, 3), piece.slice(3))} for piece in cuts if piece is not None]
    (state,) = repartition("o", states, 1, ["k"])
    assert [run_["place"].to_pylist() for run_ in state["t"]] == [
        run_["place"].to_pylist() for one_ in states for run_ in one_["t"] if run_.num_rows
    ]
    back = repartition("o", [state], 4, ["k"])
    for found, one_ in zip(back, states, strict=True):
        assert pa.concat_tables(found["t"]).equals(pa.concat_tables(one_["t"]))


# -- what cannot be cut ------------------------------------------------------------------------------------------------


def test_a_state_that_is_not_where_its_keys_belong_is_refused() -> None:
    everywhere = pa.table({"k": ["a", "b", "c", "d", "e", "f"], "n": range(6)})
    with pytest.raises(
        CheckFailed, match=r"of o\[0\] has a key of another partition: its state is not split by k; keep"
    ):
        repartition("o", [{"own": (everywhere,)}, {}], 3, ["k"])


def test_a_state_without_a_key_is_refused_and_an_empty_one_is_not() -> None:
    with pytest.raises(CheckFailed, match=r"'own' of o\[1\] has no key"):
        repartition("o", [{}, {"own": (pa.table({"n": [1]}),)}], 1, [])
    assert repartition("o", [{}, {"own": ()}], 3, []) == [{}, {}, {}]


def test_states_with_different_columns_are_refused() -> None:
    one_ = pa.table({"k": pa.array([1, 2, 3, 4, 5], pa.int64())})
    cuts = spread_by_key(one_, ["k"], 2)
    assert cuts[0] is not None
    assert cuts[1] is not None
    states = [{"t": (cuts[0],)}, {"t": (cuts[1].append_column("m", pa.array([0] * len(cuts[1]))),)}]
    with pytest.raises(CheckFailed, match="different columns in state table 't'"):
        repartition("o", states, 1, ["k"])


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda s, o: s.window(tumbling(1)).count(), "it has no key: a window holds the rows of a partition"),
        (lambda s, o: s.window(session(1)).top(3, by="n"), "it has no key"),
        (lambda s, o: s.window(rows(3)).count(), "it has no key"),
        (lambda s, o: s.apply(totals, state=SUMS, schema=SUMS), "it takes rows without a key"),
        (lambda s, o: s.key_by("word").apply(totals, o, state=SUMS, schema=SUMS), "it takes rows without a key"),
        (
            lambda s, o: s.key_by("word").apply(totals, o.key_by("n"), state=SUMS, schema=SUMS),
            "its inputs have different keys: word; n",
        ),
        (
            lambda s, o: s.key_by("word").apply(totals, state={"n": "bigint"}, schema=SUMS),
            "its state has no column 'word', by which its rows are keyed",
        ),
        (
            lambda s, o: s.key_by("n").apply(totals, state={"n": "string"}, schema=SUMS),
            "column 'n' is string in its state and int64 in its input",
        ),
        (
            lambda s, o: s.key_by("x").apply(totals, state={"x": "float"}, schema=SUMS),
            "column 'x' is float in its state and double in its input",
        ),
        (
            lambda s, o: s.map(lambda t: t).key_by("word").apply(totals, state=SUMS, schema=SUMS),
            "the columns of its input are not declared",
        ),
        (lambda s, o: s.key_by("word").apply(totals, state=SUMS, schema=SUMS), None),
        (lambda s, o: s.key_by("n").apply(totals, state={"n": "int32"}, schema=SUMS), None),
        (lambda s, o: s.key_by("word").apply(totals, o.key_by("word"), state=SUMS, schema=SUMS), None),
        (lambda s, o: s.window(rows(3)).distinct("word"), None),
    ],
)
def test_kernels_declare_whether_their_state_can_be_spread_anew(
    build: Callable[[Stream, Stream], Stream], why: str | None
) -> None:
    app = Application("x")
    name = build(source(app), source(app, "o")).output().id
    said = declared(Program(app), name)
    assert said.tables is None or said.tables, "it has state"
    if why is None:
        assert said.not_split is None
        assert said.state_keys
    else:
        assert said.not_split is not None
        assert why in said.not_split


# -- snapshots and logs ------------------------------------------------------------------------------------------------


def test_snapshots_of_new_partitions_are_whole_and_keep_the_sums() -> None:
    done = run(feeds(2)[:5], program(BUILDS["aggregate sliding"], 3))
    name = OperatorId("aggregate-1")
    said = declared(done.program, name)
    olds = {}
    for index in range(3):
        old = PartitionId(name, index)
        commit = Commit(
            old,
            VersionId(BatchId(4), Epoch(1)),
            VersionId(BatchId(3), Epoch(1)),
            done.marks[old],
            {},
            late_rows=index,
            rows_in=10 + index,
            rows_out=index,
        )
        olds[index] = (commit, done.states[old])
    made = []
    for index in range(5):
        partition = PartitionId(name, index)
        taken = snapshot_of(partition, 5, olds, 3, said.state_keys, Epoch(9))
        needed = {old: olds[old] if old in old_partitions(index, 5, 3) else (olds[old][0], {}) for old in olds}
        again = decode_snapshot(encode_snapshot(snapshot_of(partition, 5, needed, 3, said.state_keys, Epoch(9))))
        assert again.commit == taken.commit
        expected = state_of(partition, 5, {old: state for old, (_, state) in olds.items()}, 3, said.state_keys)
        assert {name: [run_.to_pylist() for run_ in runs] for name, runs in assemble([again]).items()} == {
            name: [run_.to_pylist() for run_ in runs] for name, runs in expected.items()
        }
        chain = install(MemoryStore(), [again], Epoch(10))
        assert (chain.frontier, chain.pointer.epoch) == (4, 10)
        made.append(taken.commit)
    assert {commit.watermark for commit in made} == {olds[0][0].watermark}
    assert {commit.parent for commit in made} == {None}
    for field in ("late_rows", "rows_in", "rows_out"):
        assert sum(getattr(commit, field) for commit in made) == sum(getattr(old, field) for old, _ in olds.values())


def test_a_new_partition_stands_at_the_lowest_watermark_and_at_one_batch() -> None:
    def olds(*stand: tuple[int, Watermark]) -> dict[int, tuple[Commit, State]]:
        return {
            index: (
                Commit(PartitionId(OperatorId("o"), index), VersionId(BatchId(batch), Epoch(1)), None, mark, {}),
                {},
            )
            for index, (batch, mark) in enumerate(stand)
        }

    new = PartitionId(OperatorId("o"), 0)
    assert snapshot_of(new, 1, olds((4, 7), (4, 5)), 2, [], Epoch(2)).commit.watermark == 5
    assert snapshot_of(new, 1, olds((4, None), (4, None)), 2, [], Epoch(2)).commit.watermark is None, "no event time"
    with pytest.raises(CheckFailed, match=r"stand at different batches: \[3, 4\]"):
        snapshot_of(new, 1, olds((4, 7), (3, 5)), 2, [], Epoch(2))

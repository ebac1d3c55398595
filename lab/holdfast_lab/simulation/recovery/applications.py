"""Small applications for simulated recoveries: a few shapes, drawn from a seed, and their outputs without failures.

Runs anywhere. Their operators remember: what a *fold* gives depends on every row it has ever taken, in order, so that a
row too many, too few or out of order in the past shows in all later outputs. An operator that is not deterministic
stamps each of its batches with a number that no other execution has, chained to the numbers before it. Programs, inputs
and expected outputs are made once and shared by all seeds that draw them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.application import Application, Stream, rows, sliding, tumbling
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.blocks import OUTSIDE, Edge
from holdfast.runtime.io.batch_records import watermark_after
from holdfast.runtime.io.source_pieces import cut_rows
from holdfast.runtime.program import Program
from holdfast.runtime.schemas import conform
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import Watermark, highest, lowest
from holdfast.runtime.worker.routing import spread, spread_by_key

PRIME = 2_147_483_647
KEYS = 7
SECOND = 1_000_000
ROWS = {"key": "int64", "n": "int64"}
TIMED = {**ROWS, "at": "timestamp"}
STAMPED = {"order": "int64", "stamp": "int64", "chain": "int64"}

_LINKS = {"count": "int64", "digest": "int64"}
_CHAIN = {"order": "int64", "chain": "int64"}
_LINKS_SCHEMA = pa.schema([(name, pa.int64()) for name in _LINKS])
_CHAIN_SCHEMA = pa.schema([(name, pa.int64()) for name in _CHAIN])
_STAMPED_SCHEMA = pa.schema([(name, pa.int64()) for name in STAMPED])
_INT = pa.int64()


def mix(digest: int, value: int) -> int:
    """Take one more value into a digest; the order matters."""
    return (digest * 1_000_003 + value * 8191 + 97) % PRIME


# -- operators -----------------------------------------------------------------------------------------------------


def fold(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table | None]:
    """Give every row back, with a number that tells of all rows before it."""
    count, digest = (state["count"][0].as_py(), state["digest"][0].as_py()) if state.num_rows else (0, 1)
    keys: list[int] = []
    made: list[int] = []
    for table in inputs:
        if not table.num_rows:
            continue
        for key, n in zip(table["key"].to_pylist(), table["n"].to_pylist(), strict=True):
            digest = mix(digest, key * 65_537 + n)
            count += 1
            keys.append(key)
            made.append(digest)
    if not keys:
        return state, None
    new = pa.Table.from_arrays([pa.array([count], _INT), pa.array([digest], _INT)], schema=_LINKS_SCHEMA)
    out = pa.Table.from_arrays([pa.array(keys, _INT), pa.array(made, _INT)], names=["key", "n"])
    return new, out


_stamps = itertools.count(1)


def stamp(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Give one row per batch that no other execution gives, chained to the rows before it. Not deterministic.

    The stamp is unique within the process; which number it is never decides anything, so runs stay reproducible.
    """
    order, chain = (state["order"][0].as_py(), state["chain"][0].as_py()) if state.num_rows else (0, 1)
    number = next(_stamps)
    chain = mix(chain, number)
    out = pa.Table.from_arrays([pa.array([one], _INT) for one in (order, number, chain)], schema=_STAMPED_SCHEMA)
    return pa.Table.from_arrays([pa.array([order + 1], _INT), pa.array([chain], _INT)], schema=_CHAIN_SCHEMA), out


def relay(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Give stamped rows back, and remember how many there were and the last of them."""
    given = one_chunk([table for table in inputs if table.num_rows] or list(inputs[:1]))
    if not given.num_rows:
        return state, given
    count, digest = (state["count"][0].as_py(), state["digest"][0].as_py()) if state.num_rows else (0, 1)
    for number in given["stamp"].to_pylist():
        count, digest = count + 1, mix(digest, number)
    return pa.Table.from_arrays([pa.array([count], _INT), pa.array([digest], _INT)], schema=_LINKS_SCHEMA), given


def double(table: pa.Table) -> pa.Table:
    """Give every row twice: a flat-map without memory."""
    return one_chunk([table, table])


# -- shapes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which application: equal recipes share everything."""

    shape: str
    sizes: tuple[int, ...]
    """Parallelism of its parts."""
    without: tuple[OperatorId, ...] = ()
    """Operators that are given up."""

    def __str__(self) -> str:
        return " ".join([self.shape, "-".join(map(str, self.sizes)), *self.without])

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Read what `str` gives."""
        shape, sizes, *without = text.split(" ")
        return cls(shape, tuple(int(one) for one in sizes.split("-")), tuple(map(OperatorId, without)))


Part = Callable[[Application, tuple[int, ...]], None]


def _folded(stream: Stream, name: str, size: int, *others: Stream, **hints: Any) -> Stream:
    return stream.key_by("key").apply(
        fold,
        *(other.key_by("key") for other in others),
        state=_LINKS,
        schema=ROWS,
        id=name,
        parallelism=size,
        **hints,
    )


def _chain(app: Application, sizes: tuple[int, ...]) -> None:
    stream = app.source("in", schema=ROWS, parallelism=sizes[0], key="key", cost=1.0)
    for number, size in enumerate(sizes[1:]):
        stream = _folded(stream, f"f{number}", size, cost=1.0 + number % 2)
    stream.output(priority=list(range(1, sizes[-1] + 1)))


def _diamond(app: Application, sizes: tuple[int, ...]) -> None:
    source = app.source("in", schema=ROWS, parallelism=sizes[0], cost=0.5)
    left = _folded(source, "left", sizes[1], cost=1.0).output(priority=2)
    right = _folded(source.flat_map(double, schema=ROWS, id="twice", cost=0.5), "right", sizes[2], cost=1.5)
    _folded(left, "both", sizes[3], right, cost=1.0).output(priority=list(range(5, 5 + sizes[3])))


def _wide(app: Application, sizes: tuple[int, ...]) -> None:
    source = app.source("in", schema=ROWS, parallelism=sizes[0], cost=0.5)
    for number, size in enumerate(sizes[1:]):
        _folded(source, f"q{number}", size, cost=1.0).output(priority=1 + 3 * number)


def _join(app: Application, sizes: tuple[int, ...]) -> None:
    left = app.source("left", schema=TIMED, event_time="at", lateness=1, parallelism=sizes[0], cost=0.5)
    right = app.source("right", schema=TIMED, event_time="at", lateness=1, parallelism=1, cost=0.5)
    both = left.join(right, on="key", window=tumbling("2 seconds"), id="pairs", parallelism=sizes[1], cost=2.0)
    both.output(priority=3)
    _folded(left, "lefts", sizes[2], cost=1.0).output(priority=1)


def _traffic(app: Application, sizes: tuple[int, ...]) -> None:
    window = sliding("3 seconds", every="1 second")
    locations = app.source("O1", schema=TIMED, event_time="at", lateness=1, cost=0.5)
    incidents = app.source("O2", schema=TIMED, event_time="at", lateness=1, cost=0.5)
    speeds = locations.key_by("key").window(window).agg(speed=hf.avg("n"), id="O3", parallelism=sizes[0])
    speeds.output(priority=[4, 2, 1, 1][: sizes[0]])
    reports = incidents.key_by("key").window(window).count(id="O4", parallelism=sizes[1]).output(priority=3)
    speeds.join(reports, on="key", window=tumbling("1 second"), id="O5", parallelism=sizes[2]).output(priority=5)


def _counted(app: Application, sizes: tuple[int, ...]) -> None:
    source = app.source("in", schema=ROWS, parallelism=sizes[0], cost=0.5)
    threes = source.key_by("key").window(rows(3)).count(id="threes", parallelism=sizes[1], cost=1.0)
    threes.output(priority=4)
    _folded(source, "sums", sizes[2], cost=1.0).output(priority=1)


def _nondeterministic(app: Application, sizes: tuple[int, ...]) -> None:
    source = app.source("in", schema=ROWS, parallelism=sizes[0], key="key", cost=0.5)
    stamped = source.apply(
        stamp, state=_CHAIN, schema=STAMPED, deterministic=False, id="stamps", parallelism=sizes[1], cost=1.0
    )
    for number, size in enumerate(sizes[2:]):
        stamped.apply(relay, state=_LINKS, schema=STAMPED, id=f"r{number}", parallelism=size, cost=1.0).output(
            priority=2 + number
        )
    _folded(source, "sums", sizes[1], cost=1.0).output(priority=1)


def _stamped(app: Application, sizes: tuple[int, ...]) -> None:
    source = app.source("in", schema=ROWS, parallelism=sizes[0], key="key", cost=0.5)
    stream = source.apply(
        stamp, state=_CHAIN, schema=STAMPED, deterministic=False, id="stamps", parallelism=sizes[1], cost=1.0
    )
    for number, size in enumerate(sizes[2:]):
        stream = stream.apply(relay, state=_LINKS, schema=STAMPED, id=f"r{number}", parallelism=size, cost=1.0)
        stream.output(priority=2 + number)
    _folded(source, "sums", sizes[1], cost=1.0).output(priority=1)


SHAPES: Mapping[str, tuple[Part, tuple[tuple[int, ...], ...]]] = {
    "chain": (_chain, ((1, 2, 1), (2, 2, 2), (1, 3, 2), (2, 1, 2, 1), (4, 2, 1), (1, 2, 4), (2, 3, 2))),
    "diamond": (_diamond, ((1, 2, 2, 1), (1, 1, 2, 2), (2, 2, 2, 2), (1, 3, 1, 2))),
    "wide": (_wide, ((1, 1, 1, 1), (2, 1, 2, 1), (1, 2, 2, 2), (1, 1, 1, 1, 1, 1))),
    "join": (_join, ((1, 1, 1), (2, 2, 1), (1, 2, 2))),
    "traffic": (_traffic, ((4, 2, 2), (2, 2, 2), (2, 1, 1))),
    "counted": (_counted, ((1, 2, 1), (2, 2, 2))),
    "nondeterministic": (_nondeterministic, ((1, 1, 1), (1, 2, 1, 1), (2, 2, 2, 1), (1, 1, 1, 2))),
}
"""Every shape, with the sizes that are drawn."""
STAMPED_SHAPE = "stamped"
_STAMPED_SIZES = ((1, 1, 1, 1), (1, 2, 2, 1), (2, 2, 2, 2), (1, 1, 1, 1, 1))
"""Of the shape that is drawn where blocks wait at the boundaries of segments, in one layout, and nowhere else."""


def draw_recipe(draw: random.Random) -> Recipe:
    """Draw one application; those with cheap operators more often."""
    shape = draw.choices(list(SHAPES), weights=[4, 3, 3, 1, 1, 1, 5])[0]
    return Recipe(shape, draw.choice(SHAPES[shape][1]))


def draw_stamped(draw: random.Random) -> Recipe:
    """Draw an application in which what is not deterministic is followed by others."""
    shape = draw.choice((STAMPED_SHAPE, STAMPED_SHAPE, "nondeterministic"))
    return Recipe(shape, draw.choice(_STAMPED_SIZES if shape == STAMPED_SHAPE else SHAPES[shape][1]))


def draw_change(draw: random.Random, recipe: Recipe) -> Recipe:
    """Draw another layout of the same application: other parallelism where state has keys, queries more or less."""
    sizes = list(recipe.sizes)
    first = 2 if recipe.shape == "nondeterministic" else 1
    always = recipe.shape == "nondeterministic"  # its stamps have no key: their rows must come as they came before
    if always or (recipe.shape in ("chain", "wide") and draw.random() < 0.6):
        if len(sizes) > first + 1 and draw.random() < 0.5:
            sizes.pop()
        else:
            sizes.append(draw.choice((1, 2)))
    else:
        where = draw.choice({"join": (0, 1), "traffic": (0, 1, 2), "counted": (0, 1)}.get(recipe.shape, (0,)))
        sizes[where] = draw.choice([one for one in (1, 2, 3, 4) if one != sizes[where]])
    return Recipe(recipe.shape, tuple(sizes))


@cache
def program_of(recipe: Recipe) -> Program:
    """Make a recipe's program, once."""
    app = Application(recipe.shape)
    (_stamped if recipe.shape == STAMPED_SHAPE else SHAPES[recipe.shape][0])(app, recipe.sizes)
    return Program(app.without(recipe.without))


# -- input, and what comes of it without failures ------------------------------------------------------------------


@cache
def inputs_of(recipe: Recipe, seed: int, count: int) -> tuple[Mapping[str, pa.Table], ...]:
    """Draw batches: a few rows each, some none, event times a little out of order."""
    draw = random.Random(f"{recipe} {seed}")
    batches = []
    for batch in range(count):
        tables: dict[str, pa.Table] = {}
        for name, source in program_of(recipe).sources.items():
            many = draw.choice((0, 1, 2, 3, 4, 5))
            columns: dict[str, pa.Array] = {
                "key": pa.array([draw.randrange(KEYS) for _ in range(many)], _INT),
                "n": pa.array([draw.randrange(1000) for _ in range(many)], _INT),
            }
            if source.event_time is not None:
                at = [batch * SECOND + draw.randrange(SECOND) - draw.choice((0, 0, 0, 4 * SECOND)) for _ in range(many)]
                columns["at"] = pa.array(at, _INT).cast(pa.timestamp("us"))
            tables[name] = pa.table(columns)
        batches.append(tables)
    return tuple(batches)


Outputs = Mapping[tuple[PartitionId, BatchId], pa.Table]
LateRows = Mapping[tuple[OperatorId, PartitionId, BatchId], pa.Table]


SourcePieces = Mapping[OperatorId, tuple[Sequence[pa.Table | None], Callable[[int], Watermark]]]
"""What a batch has of every source: the rows of its partitions, and their watermarks."""


def batches_of(recipe: Recipe, seed: int, count: int) -> list[SourcePieces]:
    """Return the inputs as a log has them, each table a batch; the last batch ends the sources."""
    program, marks = program_of(recipe), dict[OperatorId, Watermark]()
    found: list[SourcePieces] = []
    for batch, tables in enumerate(inputs_of(recipe, seed, count)):
        logged: dict[OperatorId, tuple[Sequence[pa.Table | None], Callable[[int], Watermark]]] = {}
        for name, source in program.sources.items():
            pieces, latest = cut_rows(source, tables[name])
            marks[name] = watermark_after(source, marks.get(name), latest, last=batch == count - 1)
            logged[name] = pieces, partial(_same, marks[name])
        found.append(logged)
    return found


LeaveOut = Callable[[Program, PartitionId, BatchId, list[pa.Table | None]], list[pa.Table | None]]
"""Returns the rows that a partition takes of those that come in a batch."""


def _all_rows(
    program: Program, partition: PartitionId, batch: BatchId, inputs: list[pa.Table | None]
) -> list[pa.Table | None]:
    return inputs


def _same(mark: Watermark, partition: int) -> Watermark:
    return mark


def computed(
    program: Program | Sequence[Program],
    batches: Sequence[SourcePieces],
    leave_out: LeaveOut = _all_rows,
    ended_as: Mapping[int, Program] | None = None,
) -> tuple[Outputs, LateRows]:
    """Compute what every output partition gives, batch by batch, without failures, and the rows that are kept aside.

    With nothing but kernels and routes: no hosts, no stores, no machine. Where the layout changes there is one program
    for each batch. `leave_out`: which rows operators take. `ended_as` has what the layout before a batch, the first of
    the next one, was in the end, where operators of it were given up.
    """
    programs = [program] * len(batches) if isinstance(program, Program) else program
    program = programs[0] if programs else program
    assert isinstance(program, Program)
    states: dict[PartitionId, Mapping[str, tuple[pa.Table, ...]]] = {}
    marks: dict[PartitionId, Watermark] = {}
    found: dict[tuple[PartitionId, BatchId], pa.Table] = {}
    late: dict[tuple[OperatorId, PartitionId, BatchId], pa.Table] = {}
    for batch, logged in enumerate(batches):
        before_it = (ended_as or {}).get(batch, program)
        if programs[batch] is not before_it:
            states, marks = _moved(before_it, programs[batch], states, marks)
            program = programs[batch]
        arriving: dict[tuple[Edge, PartitionId, PartitionId], pa.Table | None] = {}
        for name in program.sources:
            for index, piece in enumerate(logged[name][0]):
                arriving[Edge(OUTSIDE, name), PartitionId(OUTSIDE, index), PartitionId(name, index)] = piece
        for partition in program.partitions:
            operator = program.operators[partition.operator]
            streams = program.streams(partition)
            given = []
            for route in operator.inputs:
                pieces = [arriving.get((edge, sender, partition)) for edge, sender in streams if edge == route.edge]
                some = [piece for piece in pieces if piece is not None and piece.num_rows]
                given.append(one_chunk(some) if some else None)
            before = marks.get(partition)
            mine = [
                logged[partition.operator][1](sender.index) if sender.operator == OUTSIDE else marks[sender]
                for _, sender in streams
            ]
            now = highest(before, lowest(mine))
            given = leave_out(program, partition, BatchId(batch), given)
            stepped = operator.kernel.step(states.get(partition, {}), given, before, now)
            states[partition], marks[partition] = stepped.state, now
            for side, table in stepped.late.items():
                late[operator.inputs[side].edge.source, partition, BatchId(batch)] = table
            output = stepped.output
            if output is None or not output.num_rows:
                continue
            if operator.schema is not None:
                output = conform(output, operator.schema, "the output")
            for route in operator.outputs:
                targets = route.targets(partition.index)
                for target, piece in zip(targets, spread(output, route, partition.index), strict=True):
                    arriving[route.edge, partition, route.receiver(target)] = piece
            if partition in program.outputs:
                found[partition, BatchId(batch)] = output
    return found, late


_States = dict[PartitionId, Mapping[str, tuple[pa.Table, ...]]]


def _moved(
    before: Program, now: Program, states: _States, marks: dict[PartitionId, Watermark]
) -> tuple[_States, dict[PartitionId, Watermark]]:
    """Spread the state of one layout over the partitions of another: every row goes where rows of its key go."""
    moved: _States = {}
    stand: dict[PartitionId, Watermark] = {}
    for name in now.order:
        operator, old = now.operators[name], before.operators.get(name)
        if old is None:
            sources = {route.edge.source for route in operator.inputs}
            mark = lowest([at for p, at in stand.items() if p.operator in sources])
            stand.update({PartitionId(name, index): mark for index in range(operator.parallelism)})
            continue
        there = [PartitionId(name, index) for index in range(old.parallelism)]
        if old.parallelism == operator.parallelism:
            moved.update({p: states[p] for p in there if p in states})
            stand.update({p: marks[p] for p in there})
            continue
        mark = lowest([marks[p] for p in there])
        stand.update({PartitionId(name, index): mark for index in range(operator.parallelism)})
        for p in there:
            for table, runs in states.get(p, {}).items():
                for run in runs:
                    pieces = spread_by_key(run, operator.inputs[0].keys, operator.parallelism)
                    for index, piece in enumerate(pieces):
                        if piece is not None and piece.num_rows:
                            mine = dict(moved.setdefault(PartitionId(name, index), {}))
                            mine[table] = (*mine.get(table, ()), piece)
                            moved[PartitionId(name, index)] = mine
    return moved, stand

"""Whatever crashes, is retried, duplicated, lost or rolled back: the outputs are those of a run without failures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import Application, count, rows, session, sliding, tumbling
from holdfast.errors import BadInput
from holdfast.ids import Epoch, NodeId, PartitionId
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.runtime import FunctionSink, InProcess, MemorySink, OutputKey, run_in_process
from holdfast.runtime.messages import OperatorFailed
from holdfast.runtime.program import Program
from holdfast.runtime.tables import encode_rows
from runtime.generated import SCHEMA, batches, table
from sizes import share


def everything() -> Application:
    """Every kind of operator in one application of 19 partitions."""
    app = Application("everything")
    left = app.source("l", schema=SCHEMA, event_time="at", lateness=1, parallelism=2)
    right = app.source("r", schema=SCHEMA, event_time="at", lateness=2, key="word", parallelism=2)
    doubled = left.map(lambda t: t, schema=SCHEMA, id="m").filter(lambda t: t["word"].is_valid(), id="f")
    counts = (
        doubled.key_by("word")
        .window(sliding(2, every=1))
        .agg(n=count(), x=hf.avg("x"), kinds=hf.count_distinct("n"), id="windows", parallelism=4)
    )
    counts.output()
    right.key_by("word").window(session(gap=0.5)).agg(n=hf.sum("n"), id="sessions", parallelism=2).output()
    right.key_by("word").window(rows(3, every=2)).top(1, by="n", id="slices", parallelism=2).output()
    counts.join(right, on="word", window=tumbling(1), id="join", parallelism=2).output()
    left.window(tumbling(1)).distinct("word", id="distinct", parallelism=2).output()
    state = {"word": "string", "n": "int64"}
    right.key_by("word").apply(last_of_each, state=state, schema=state, id="own", parallelism=1).output()
    return app


def last_of_each(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    last = {row["word"]: row["n"] for part in (state, inputs[0]) for row in part.select(["word", "n"]).to_pylist()}
    new = pa.table({"word": list(last), "n": list(last.values())}, schema=state.schema)
    return new, new.slice(0, 3)


OUTPUTS = ("windows", "sessions", "slices", "join", "distinct", "own")
COUNT = 9


def fed(seed: int = 5) -> list[dict[str, pa.Table]]:
    left, right = batches(seed, COUNT, 25), batches(seed + 1, COUNT, 25)
    return [{"l": table(a), "r": table(b)} for a, b in zip(left, right, strict=True)]


def outputs(done: InProcess) -> dict[str, bytes]:
    """All outputs, as bytes."""
    return {name: encode_rows(done.rows(name)) for name in OUTPUTS}


@pytest.fixture(scope="module")
def expected() -> dict[str, bytes]:
    return outputs(run_in_process(everything(), fed()))


@pytest.mark.parametrize("nodes", [2, 5])
def test_nodes_and_files_change_no_byte(nodes: int, expected: dict[str, bytes], tmp_path: Path) -> None:
    assert outputs(run_in_process(everything(), fed(), nodes=nodes)) == expected
    assert outputs(run_in_process(everything(), fed(), nodes=nodes, directory=tmp_path)) == expected
    assert outputs(run_in_process(everything(), fed())) == expected, "run twice, the same bytes"


def test_an_application_that_is_stopped_goes_on_where_it_stood(expected: dict[str, bytes], tmp_path: Path) -> None:
    """Stopped after every batch; checkpoints fall between some of them; the number of nodes changes."""
    sinks = {name: MemorySink() for name in OUTPUTS}
    epoch = Epoch(0)
    for number, batch in enumerate(fed()):
        running = InProcess(everything(), directory=tmp_path, nodes=1 + number % 3, sinks=sinks, checkpoint_every=2)
        assert running.frontier == number - 1
        assert running.epoch > epoch, "whoever was here before is refused from now on"
        epoch = running.epoch
        running.feed(batch)
    assert running.checkpoint_batch >= COUNT - 4
    taken = running.measures()[PartitionId.parse("own[0]")].rows_in
    assert taken < sum(batch["r"].num_rows for batch in fed()), "only what no checkpoint covers is made again"
    running.close()
    assert outputs(running) == expected
    plain = run_in_process(everything(), fed())
    late, wanted = running.late("windows"), plain.late("windows")
    assert late is not None
    assert wanted is not None
    assert late.to_pylist() == wanted.to_pylist()


@settings(max_examples=share(25))
@given(data=st.data())
def test_any_failures_leave_the_outputs_equal(data: st.DataObject, expected: dict[str, bytes]) -> None:
    """Checkpoints, lost partitions and recoveries onto other nodes, anywhere in the run, under any policy."""
    program = Program(everything())
    kept = data.draw(
        st.one_of(
            st.sampled_from([frozenset(), frozenset(program.partitions)]),
            st.frozensets(st.sampled_from(program.partitions), max_size=12),
        ),
        label="backup_partitions",
    )
    nodes = data.draw(st.integers(1, 3), label="nodes")
    strategy = data.draw(st.sampled_from(RecoveryStrategy), label="strategy")
    every = data.draw(st.sampled_from([None, 1, 2, 5]), label="every")
    running = InProcess(
        everything(), nodes=nodes, checkpoint_every=every, recovery=RecoverySettings(strategy, backup_partitions=kept)
    )
    for batch in fed():
        running.feed(batch)
        if data.draw(st.integers(0, 3), label="checkpoint") == 0:
            running.checkpoint()
        if data.draw(st.integers(0, 3), label="fail") == 0:
            lost = data.draw(st.sets(st.sampled_from(program.partitions), min_size=1, max_size=6), label="lost")
            running.fail(*lost)
            onto = {p: NodeId(f"node-{data.draw(st.integers(0, nodes - 1))}") for p in sorted(lost)}
            before = running.placement
            back = running.recover(onto=onto)
            assert not back & lost
            assert all(running.placement[p] in (onto[p], before[p]) for p in lost), "or it went back where it was"
    running.close()
    assert outputs(running) == expected


def test_what_goes_back_follows_from_what_was_kept() -> None:
    def lose(*backup_partitions: str) -> set[str]:
        kept = frozenset(map(PartitionId.parse, backup_partitions))
        running = InProcess(everything(), nodes=2, recovery=RecoverySettings(backup_partitions=kept))
        for number, batch in enumerate(fed()):
            running.feed(batch)
            if number == 1:
                running.checkpoint()
        running.fail("join[0]")
        return {str(partition) for partition in running.recover()}

    everybody = map(str, Program(everything()).partitions)
    assert lose(*everybody) == set(), "all outboxes reach back: only the lost partition itself"
    upstream = {*("l[0]", "l[1]", "r[0]", "m[0]", "m[1]", "f[0]", "f[1]", "windows[0]", "windows[1]")}
    assert lose() == upstream, "nothing kept: all upstream, up to the sources' log"
    assert lose("windows[0]", "windows[1]") == {"r[0]"}


def test_after_a_recovery_everything_is_kept_until_a_checkpoint(expected: dict[str, bytes]) -> None:
    running = InProcess(everything(), nodes=2)
    for batch in fed():
        running.feed(batch)
    running.fail("join[0]")
    assert running.recover()
    running.fail("join[0]", "windows[1]")
    assert running.recover() == set(), "a second failure costs only what is lost"
    running.checkpoint()
    running.close()
    lost = PartitionId.parse("join[0]")
    away = next(node for node in running.hosts if node != running.placement[lost])
    running.fail(lost)
    assert running.recover(onto={lost: away}), "and after it the policy holds again"
    assert running.placement[lost] == away
    assert lost in running.hosts[away]
    assert outputs(running) == expected


def test_a_checkpoint_that_is_asked_for_comes_before_one_that_is_due() -> None:
    """The next one is marked ahead, at a batch that nobody has reached; a partition has started anew since."""
    running = InProcess(everything(), nodes=2, checkpoint_every=5)
    for number, batch in enumerate(fed()):
        running.feed(batch)
        if number == 6:
            running.fail("join[0]")
            running.recover()
            assert running.checkpoint_batch < 6
            assert running.checkpoint() == 6
    assert running.checkpoint() == COUNT - 1


def test_what_is_lost_comes_back_without_being_asked(expected: dict[str, bytes]) -> None:
    running = InProcess(everything(), nodes=3)
    for number, batch in enumerate(fed()):
        if number in (3, 6):
            running.fail("windows[1]", "r[0]")
        running.feed(batch)
        if number == 4:
            running.checkpoint()
    running.close()
    assert outputs(running) == expected
    with pytest.raises(BadInput, match=r"there is no partition x\[0\]"):
        running.fail("x[0]")
    with pytest.raises(BadInput, match="there is no node far; there are node-0, node-1, node-2"):
        running.recover(onto={PartitionId.parse("join[0]"): NodeId("far")})


def test_a_recovery_without_a_checkpoint_begins_at_the_beginning(expected: dict[str, bytes]) -> None:
    running = InProcess(everything())
    for batch in fed():
        running.feed(batch)
    running.fail(*running.program.partitions)
    running.recover()
    running.close()
    assert outputs(running) == expected


@settings(max_examples=share(20))
@given(cuts=st.sets(st.integers(1, 119), max_size=15), seed=st.integers(0, 5))
def test_any_split_into_batches_gives_the_same_outputs(cuts: set[int], seed: int) -> None:
    """The same rows, cut anywhere: rows are in order of time within the lateness, so no split makes one late."""
    random = np.random.default_rng(seed)
    at = np.sort(random.integers(0, 8_000_000, 120))
    all_rows = [
        {"word": f"w{int(random.zipf(1.6)) % 5}", "n": int(random.integers(9)), "x": int(random.integers(64)) / 8,
         "at": int(moment)} for moment in at - random.integers(0, 900_000, 120)
    ]  # fmt: skip

    def application() -> Application:
        app = Application("split")
        source = app.source("s", schema=SCHEMA, event_time="at", lateness=1)
        keyed = source.key_by("word")
        keyed.window(sliding(2, every=0.5)).agg(
            n=hf.sum("n"), x=hf.avg("x"), k=hf.count_distinct("n"), id="sliding", parallelism=2
        ).output()
        keyed.window(session(gap=0.3)).agg(n=count(), x=hf.sum("x"), id="session", parallelism=2).output()
        keyed.window(rows(4, every=3)).agg(n=hf.sum("n"), id="rows", parallelism=2).output()
        source.window(tumbling(1)).top(3, by="n", id="top", parallelism=1).output()
        source.window(tumbling(1)).distinct("n", id="distinct", parallelism=2).output()
        return app

    def results(bounds: list[int]) -> dict[str, list[str]]:
        given_batches = [{"s": table(all_rows[a:b])} for a, b in pairwise(bounds)]
        done = run_in_process(application(), given_batches)
        assert all(done.late(name) is None for name in ("sliding", "session", "top", "distinct"))
        names = ("sliding", "session", "rows", "top", "distinct")
        return {name: sorted(str(row) for row in done.rows(name).to_pylist()) for name in names}

    assert results([0, *sorted(cuts), 120]) == results([0, 120])


def test_an_operator_that_fails_stops_the_run_and_loses_nothing() -> None:
    trouble = {"on": True}

    def risky(rows_in: pa.Table) -> pa.Table:
        if trouble["on"] and rows_in.num_rows:
            raise RuntimeError("bad weather")
        return rows_in

    app = Application("x")
    source = app.source("s", schema=SCHEMA, event_time="at")
    source.map(risky, schema=SCHEMA, id="m").output()
    source.filter(lambda t: t["n"].is_valid(), id="f").output()
    running = InProcess(app)
    given_rows = table(next(one for one in batches(2) if one))
    with pytest.raises(OperatorFailed) as caught:
        running.feed({"s": given_rows})
    assert str(caught.value) == "operator m: partition m[0], batch 0: RuntimeError: bad weather"
    assert running.rows("f").num_rows, "others have gone on"
    trouble["on"] = False
    running.run()
    assert running.rows("m").num_rows == given_rows.num_rows


def test_a_sink_that_fails_half_way_gets_the_batch_again() -> None:
    seen: list[OutputKey] = []
    failures = iter([True, False, False, False])

    def write(rows_out: pa.Table, key: OutputKey) -> None:
        seen.append(key)
        if next(failures):
            raise ConnectionError("gone")

    app = Application("x")
    app.source("s", schema={"n": "int64"}).output(sink=FunctionSink(write))
    running = InProcess(app)
    with pytest.raises(OperatorFailed, match="its sink failed: ConnectionError: gone"):
        running.feed({"s": pa.table({"n": [1]})})
    running.feed({"s": pa.table({"n": [2]})})
    batches_seen = [key.batch for key in seen]
    assert batches_seen == [0, 0, 1], "at least once, with the key to tell"


def test_what_may_differ_is_published_only_when_a_checkpoint_covers_it() -> None:
    calls = {"many": 0}

    def counting(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        calls["many"] += 1
        return state, pa.table({"call": [calls["many"]]})

    app = Application("x")
    source = app.source("s", schema={"n": "int64"})
    unsure = source.apply(counting, state={"n": "int64"}, schema={"call": "int64"}, deterministic=False, id="u")
    unsure.output()
    unsure.map(lambda t: t, schema={"call": "int64"}, id="after").output()
    running = InProcess(app)
    for number in range(3):
        running.feed({"s": pa.table({"n": [number]})})
    assert running.rows("u").num_rows == 0
    running.checkpoint()
    first = running.rows("u")["call"].to_pylist()
    assert len(first) == 3
    running.feed({"s": pa.table({"n": [3]})})
    running.fail("u[0]")
    assert PartitionId.parse("after[0]") in running.recover(), "it had heard what is now told differently"
    assert running.rows("u")["call"].to_pylist() == first
    running.checkpoint()
    assert running.rows("u")["call"].to_pylist()[:3] == first
    assert running.rows("u").num_rows == 4
    assert running.rows("after").equals(running.rows("u")), "all outputs tell the same"


def test_bad_input_is_refused_before_anything_is_logged() -> None:
    app = Application("x")
    for name in ("a", "b"):
        app.source(name, schema={"n": "int64"}).output()
    running = InProcess(app)
    for wrong, mention in (
        ({"c": pa.table({"n": [1]})}, "no source 'c'; there are a, b"),
        ({"a": pa.table({"n": [1]}), "b": pa.table({"m": [1]})}, "a batch of source b has no column 'n'; it has m"),
        ({"b": pa.table({"n": ["x"]})}, "column 'n' of a batch of source b is string, declared as int64"),
        ({"b": [1]}, "the rows of source 'b' are list"),
    ):
        with pytest.raises(BadInput) as caught:
            running.feed(wrong)  # type: ignore[arg-type]
        assert mention in str(caught.value)
    assert running.frontier == -1
    with pytest.raises(BadInput, match="'c' is not an output"):
        InProcess(app, sinks={"c": MemorySink()})

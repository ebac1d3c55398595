"""The partition host: barriers, duplicates, what consumers have, epochs, retries, and answers instead of exceptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import Application, rows, tumbling
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime.blocks import OUTSIDE, SINK, Block, Edge, Header, encode_blocks
from holdfast.runtime.messages import Done, Failed, Measures, Missing, Ready, Refused
from holdfast.runtime.program import Program
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.snapshots import encode_snapshot
from holdfast.runtime.state.store import MemoryStore, StaleEpoch, VersionStore
from holdfast.runtime.state.versions import NO_BATCH
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.hosted import Delivery

HERE = NodeId("here")
P = PartitionId.parse
SCHEMA = {"word": "string", "n": "int64", "at": "double"}


def words(source: int = 2, counted: int = 2) -> Program:
    """Two sources' partitions and a windowed sum of two, exchanged in full."""
    app = Application("words")
    stream = app.source("s", schema=SCHEMA, event_time="at", parallelism=source)
    stream.key_by("word").window(tumbling(1)).agg(n=hf.sum("n"), id="c", parallelism=counted).output()
    return Program(app)


def make(
    program: Program, store: VersionStore | None = None, *, epoch: int = 1, place: bool = True, **options: Any
) -> PartitionHost:
    ticks = iter(range(10**9))
    host = PartitionHost(
        program, store or MemoryStore(), node=HERE, epoch=Epoch(epoch), clock=lambda: float(next(ticks)), **options
    )
    if place:
        for partition in program.partitions:
            answer = host.take(partition, NO_BATCH)
            assert isinstance(answer, Ready), answer
    return host


def batch_of(number: int, source: int = 2, *, epoch: int = 1) -> list[Block]:
    """What the sources' partitions get in a batch: three words each, a second after those of the batch before."""
    made = []
    for index in range(source):
        table = pa.table({"word": ["a", "b", f"c{number}"], "n": [number, index, 1], "at": [number + 0.25] * 3})
        header = Header(
            Edge(OUTSIDE, OperatorId("s")),
            PartitionId(OUTSIDE, index),
            PartitionId(OperatorId("s"), index),
            BatchId(number),
            Epoch(epoch),
            int((number + 0.25) * 1e6),
        )
        made.append(Block(header, table))
    return made


def published(host: PartitionHost) -> bytes:
    """Everything the host would hand to its sink, as bytes."""
    return encode_blocks([block for block in host.outgoing() if block.header.receiver.operator == SINK])


@pytest.fixture(params=["memory", "directory", "journal"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], VersionStore]:
    makers: dict[str, Callable[[], VersionStore]] = {
        "memory": MemoryStore,
        "directory": lambda: DirectoryStore(tmp_path),
        "journal": lambda: JournalStore(tmp_path),
    }
    return makers[request.param]


def test_a_batch_waits_for_all_barriers_and_copies_are_dropped() -> None:
    host = make(words())
    first, second = batch_of(0)
    assert host.deliver([first, first]) == [Delivery.QUEUED, Delivery.DUPLICATE]
    assert {str(answer.partition) for answer in host.run()} == {"s[0]"}
    assert [str(sender) for _, sender in host.missing(P("c[0]"))] == ["s[1]"]
    assert host.deliver([first]) == [Delivery.DUPLICATE], "processed already"
    later = batch_of(1)
    host.deliver(later)
    assert [str(a.partition) for a in host.run()] == ["s[0]"], "s[1] has batch 1 but waits for batch 0"
    host.deliver([second])
    answers = host.run()
    assert sorted((str(a.partition), a.batch) for a in answers) == [
        *(("c[0]", 0), ("c[0]", 1), ("c[1]", 0), ("c[1]", 1)),
        *(("s[1]", 0), ("s[1]", 1)),
    ]
    assert all(isinstance(answer, Done) for answer in answers)
    assert host.frontier(P("c[1]")) == 1
    assert host.deliver([Block(Header(Edge(OperatorId("x"), OperatorId("c")), P("x[0]"), P("c[0]"), BatchId(9),
                                      Epoch(1), 0))]) == [Delivery.NOT_HERE]  # fmt: skip


def test_any_order_and_any_number_of_copies_give_the_same_bytes() -> None:
    blocks = [block for number in range(6) for block in batch_of(number)]
    plain = make(words())
    plain.deliver(blocks)
    plain.run()
    mixed = make(words())
    for block in [*blocks[::-1], *blocks]:
        mixed.deliver([block])
        mixed.run(most=1)
    mixed.run()
    assert published(mixed) == published(plain)


def test_answers_missing_and_refused(new_store: Callable[[], VersionStore]) -> None:
    program, store = words(), new_store()
    host = make(program, store, epoch=2, place=False)
    s0 = P("s[0]")
    assert host.take(s0, BatchId(4)) == Missing(s0, BatchId(4))
    assert s0 not in host
    assert host.take(s0, NO_BATCH) == Ready(s0, NO_BATCH)
    assert s0 in host
    assert make(program, store, epoch=1, place=False).take(s0, NO_BATCH) == Refused(s0, Epoch(1), Epoch(2))
    assert host.deliver(batch_of(0, epoch=1)[:1]) == [Delivery.STALE]
    assert host.deliver(batch_of(0, epoch=2)[:1]) == [Delivery.QUEUED]
    host.run()
    host.enter(Epoch(3))
    assert host.take(s0, BatchId(0)) == Ready(s0, BatchId(0))
    assert host.take(s0, BatchId(1)) == Missing(s0, BatchId(1))
    with pytest.raises(StaleEpoch):
        host.enter(Epoch(1))


def test_a_worker_that_dies_at_any_point_loses_nothing(tmp_path: Path) -> None:
    """Every batch is processed by a new process over the same files, which gets everything sent again."""
    program = words()
    plain = make(program)
    for number in range(8):
        plain.deliver(batch_of(number))
    plain.run()
    for number in range(8):
        host = make(program, DirectoryStore(tmp_path))
        for again in range(number + 1):
            host.deliver(batch_of(again))
        host.run(most=1)
    host = make(program, DirectoryStore(tmp_path))
    host.run()
    assert [host.frontier(p) for p in program.partitions] == [plain.frontier(p) for p in program.partitions]
    assert published(host) == published(plain)


def test_two_attempts_at_once_and_a_zombie(tmp_path: Path) -> None:
    program = words()
    one, two = make(program, DirectoryStore(tmp_path)), make(program, DirectoryStore(tmp_path))
    for number in range(5):
        for host in (one, two):
            host.deliver(batch_of(number))
        for host in (one, two, two, one):
            host.run(most=1)
        for host in (one, two):  # the next cycle takes them again: whoever is behind sees what the other did
            assert {type(host.take(p, BatchId(number))) for p in program.partitions} == {Ready}
    assert published(one) == published(two)
    new = make(program, DirectoryStore(tmp_path), epoch=2)
    zombie = one.deliver(batch_of(5)) and one.run()
    assert {type(answer) for answer in zombie} == {Refused}, "the old epoch's writes are refused"
    new.deliver(batch_of(5, epoch=2))
    assert all(isinstance(answer, Done) for answer in new.run())


def test_an_operator_that_raises_is_an_answer_that_names_its_place() -> None:
    app = Application("x")
    broken = {"now": True}

    def fail(table: pa.Table) -> pa.Table:
        if broken["now"] and 3 in table["n"].to_pylist():
            raise ZeroDivisionError("three")
        return table

    app.source("s", schema=SCHEMA).map(fail, schema=SCHEMA, id="m").key_by("word").window(rows(1)).count(
        id="c"
    ).output()
    host = make(Program(app))
    for number in range(5):
        host.deliver(batch_of(number, 1))
    failed = [answer for answer in host.run() if isinstance(answer, Failed)]
    assert failed == [Failed(P("m[0]"), BatchId(3), "ZeroDivisionError: three")]
    assert str(failed[0]) == "operator m, partition m[0], batch 3: ZeroDivisionError: three"
    assert host.frontier(P("m[0]")) == host.frontier(P("c[0]")) == 2
    assert host.frontier(P("s[0]")) == 4
    broken["now"] = False
    assert host.run() == failed, "this attempt has failed"
    answers = host.run(attempts={P("m[0]"): 1})
    assert all(isinstance(answer, Done) for answer in answers), "the batch is still there"
    assert host.frontier(P("c[0]")) == 4


@pytest.mark.parametrize(
    ("function", "mention"),
    [
        (lambda t: t.drop_columns(["n"]), "the output has no column 'n'; it has word, at"),
        (lambda t: t.set_column(1, "n", pa.array(["x"] * t.num_rows)), "column 'n' of the output is string"),
        (lambda t: t.slice(0, 1), "gave 1 rows for 3; use flat_map"),
        (lambda t: "rows", "the function is str, not an Arrow table"),
    ],
)
def test_wrong_outputs_are_named(function: Callable[[pa.Table], Any], mention: str) -> None:
    app = Application("x")
    app.source("s", schema=SCHEMA).map(function, schema=SCHEMA, id="m").output()
    host = make(Program(app))
    host.deliver(batch_of(0, 1))
    answer = host.run()[-1]
    assert isinstance(answer, Failed)
    assert mention in answer.problem


def test_a_key_that_cannot_be_hashed_names_operator_partition_and_batch() -> None:
    app = Application("x")
    listed = app.source("s", schema=SCHEMA).map(
        lambda t: pa.table({"tags": [[w] for w in t["word"].to_pylist()]}), id="m"
    )
    listed.key_by("tags").window(rows(2)).count(id="c", parallelism=3).output()
    host = make(Program(app))
    host.deliver(batch_of(0, 1))
    answer = host.run()[-1]
    assert str(answer).startswith("operator m, partition m[0], batch 0: key column 'tags' is list<")


def test_a_full_disk_is_an_answer_and_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make(words(), DirectoryStore(tmp_path))
    host.deliver(batch_of(0))
    before = sorted(tmp_path.rglob("*"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.runtime.state.directory_store._write_new", full)
        answers = host.run()
    assert {answer.problem for answer in answers if isinstance(answer, Failed)} == {
        "OSError: [Errno 28] No space left on device"
    }
    assert sorted(tmp_path.rglob("*")) == before
    assert all(isinstance(answer, Done) for answer in host.run(attempts=dict.fromkeys(host.partitions, 1)))


def test_outboxes_are_kept_as_far_back_as_they_are_told() -> None:
    program = words()
    host = make(program, versions=1)
    for number in range(10):
        host.deliver(batch_of(number))
        host.run()
        host.keep(P("s[0]"), BatchId(4))
        host.keep(P("s[1]"), BatchId(number + 1))
    assert host.kept_from(P("s[0]")) == 4
    assert host.kept_from(P("s[1]")) >= 9, "trimmed when it next runs"
    assert host.kept_from(P("c[0]")) == 0, "it was told nothing, and drops nothing"
    replayed = host.replay(P("s[0]"), P("c[1]"), BatchId(3))
    assert replayed is not None
    assert [block.header.batch for block in replayed] == [4, 5, 6, 7, 8, 9]
    assert host.replay(P("s[1]"), P("c[1]"), BatchId(3)) is None
    assert (host.outbox_from(P("s[0]")), host.outbox_from(P("s[1]"))) == (4, 10)


def test_states_that_are_to_be_kept_stay_and_others_go() -> None:
    host = make(words(), versions=2)
    for number in range(10):
        host.deliver(batch_of(number))
        host.run()
        host.keep(P("c[0]"), BatchId(number + 1), [BatchId(3)])
    assert not isinstance(host.snapshot(P("c[0]"), BatchId(3)), Missing)
    assert isinstance(host.snapshot(P("c[0]"), BatchId(5)), Missing)
    assert not isinstance(host.snapshot(P("c[0]"), BatchId(9)), Missing)


def test_what_consumers_have_not_completed_is_sent_again() -> None:
    program = words()
    far = make(program, place=False)
    for partition in (P("s[0]"), P("s[1]")):
        far.take(partition, NO_BATCH)
    for number in range(6):
        far.deliver(batch_of(number))
        far.run()
    blocks = far.outgoing()
    assert len(blocks) == 2 * 2 * 6, "a block for each consumer, with rows or the barrier alone"
    assert encode_blocks(far.outgoing()) == encode_blocks(blocks)

    def sent() -> set[tuple[str, str, int]]:
        return {(str(b.header.sender), str(b.header.receiver), b.header.batch) for b in far.outgoing()}

    for consumer in (P("c[0]"), P("c[1]")):
        far.acknowledge(P("s[0]"), consumer, BatchId(4))
    assert {(s, c, b) for s, c, b in sent() if s == "s[0]"} == {("s[0]", "c[0]", 5), ("s[0]", "c[1]", 5)}
    far.acknowledge(P("s[0]"), P("c[0]"), BatchId(2))
    assert {b for s, c, b in sent() if (s, c) == ("s[0]", "c[0]")} == {3, 4, 5}, "it went back"
    far.acknowledge(P("s[0]"), P("c[0]"), None)
    assert not {b for s, c, b in sent() if (s, c) == ("s[0]", "c[0]")}, "it is lost, and gets nothing now"


def test_a_consumer_that_is_taken_anew_gets_again_what_waited_for_it() -> None:
    """Its inbox was memory: what a neighbour had handed to it is handed again."""
    host = make(words())
    first, second = batch_of(0)
    host.deliver([first])
    host.run()
    host.release(P("c[0]"))
    assert host.take(P("c[0]"), NO_BATCH) == Ready(P("c[0]"), NO_BATCH)
    host.deliver([second])
    host.run()
    assert host.frontier(P("c[0]")) == 0


def test_images_carry_a_partition_to_another_host() -> None:
    program = words()
    old, new = make(program, versions=9), make(program, place=False, epoch=2)
    for number in range(3):
        old.deliver(batch_of(number))
    old.run()
    base = old.snapshot(P("c[0]"), BatchId(2), outbox_from=BatchId(0))
    for number in range(3, 6):
        old.deliver(batch_of(number))
    old.run()
    assert not isinstance(base, Missing)
    change = old.snapshot(P("c[0]"), BatchId(5), since=base.commit.id, outbox_from=BatchId(3))
    assert not isinstance(change, Missing)
    assert change.since == base.commit.id
    assert new.restore([base, change]) == Ready(P("c[0]"), BatchId(5))
    sink = PartitionId(SINK, 0)
    sent = old.replay(P("c[0]"), sink, NO_BATCH)
    again = new.replay(P("c[0]"), sink, NO_BATCH)
    assert sent is not None
    assert again is not None
    assert encode_blocks([b.stamped(Epoch(2)) for b in sent]) == encode_blocks(again), "its outbox came with it"
    with pytest.raises(StaleEpoch):
        make(program, new._store, place=False, epoch=1).restore([base])
    plain = old.snapshot(P("c[0]"), BatchId(5))
    assert not isinstance(plain, Missing)
    other = make(program, place=False, epoch=2)
    other.restore([plain])
    assert other.replay(P("c[0]"), sink, BatchId(4)) is None, "what the batch sent is not known, and not nothing"
    assert isinstance(old.snapshot(P("c[0]"), BatchId(77)), Missing)
    with pytest.raises(CheckFailed, match="no longer all that it sent from batch 3 on"):
        other.snapshot(P("c[0]"), BatchId(5), outbox_from=BatchId(3))


def test_a_snapshot_has_the_same_bytes_in_every_epoch() -> None:
    """Found by the simulator, seed 139: its name was taken by other bytes, and no checkpoint came any more."""
    host = make(words(), versions=9)
    for number in range(3):
        host.deliver(batch_of(number))
    host.run()
    first = host.snapshot(P("c[0]"), BatchId(2), outbox_from=BatchId(0))
    host.enter(Epoch(2))
    again = host.snapshot(P("c[0]"), BatchId(2), outbox_from=BatchId(0))
    assert not isinstance(first, Missing)
    assert not isinstance(again, Missing)
    assert first.outbox
    assert encode_snapshot(first) == encode_snapshot(again)


def test_tentative_inputs_make_tentative_outputs_that_are_no_checkpoint() -> None:
    program = words()
    host = make(program, place=False)
    host.take(P("c[0]"), NO_BATCH)
    edge = Edge(OperatorId("s"), OperatorId("c"))
    forged = [Block(Header(edge, P(f"s[{i}]"), P("c[0]"), BatchId(0), Epoch(1), 0, tentative=i == 1)) for i in (0, 1)]
    host.deliver(forged)
    answers = host.run()
    assert [answer.tentative for answer in answers if isinstance(answer, Done)] == [True]
    assert all(block.header.tentative for block in host.outgoing())
    with pytest.raises(Exception, match="is tentative"):
        host.snapshot(P("c[0]"), BatchId(0))


def test_measures_are_counted_per_partition() -> None:
    host = make(words(1, 1))
    for number in range(4):
        host.deliver(batch_of(number, 1))
    done = [answer for answer in host.run() if isinstance(answer, Done) and answer.partition == P("c[0]")]
    assert [answer.measures.rows_in for answer in done] == [3, 3, 3, 3]
    assert [answer.measures.seconds for answer in done] == [1.0, 1.0, 1.0, 1.0], "by the clock that was given"
    measures = reduce(Measures.plus, [answer.measures for answer in done])
    assert (measures.rows_in, measures.rows_out, measures.late_rows) == (12, 9, 0)
    assert measures.state_bytes > 0
    assert done[-1].watermark == 3_250_000


def test_a_consumer_far_behind_gets_so_many_batches_at_a_time() -> None:
    far = make(words(), place=False)
    for partition in (P("s[0]"), P("s[1]")):
        far.take(partition, NO_BATCH)
    for number in range(6):
        far.deliver(batch_of(number))
        far.run()
    for consumer in (P("c[0]"), P("c[1]")):
        far.acknowledge(P("s[0]"), consumer, BatchId(1))
    batches = [b.header.batch for b in far.outgoing(2) if b.header.sender == P("s[0]")]
    assert sorted(batches) == [2, 2, 3, 3]
    whole = make(words())
    for number in range(6):
        whole.deliver(batch_of(number))
    whole.run()
    assert {b.header.batch for b in whole.outgoing(2)} == set(range(6)), "sinks get all"


def test_however_little_time_there_is_everybody_begins_a_batch() -> None:
    """One that catches up takes all the time there is; those after it must go on all the same."""
    host = make(words())
    for number in range(4):
        host.deliver(batch_of(number))
    host.run(seconds=0.0)
    assert {str(p): host.frontier(p) for p in host.partitions} == {"s[0]": 0, "s[1]": 0, "c[0]": 0, "c[1]": 0}
    host.run(seconds=0.0)
    assert {host.frontier(p) for p in host.partitions} == {1}

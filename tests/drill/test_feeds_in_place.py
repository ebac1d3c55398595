"""What drills feed their sources in place: which reader, when it arrives, and a history that follows the ranges."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.drill.made_up import event

import holdfast as hf
from holdfast.application import Application, Files, KafkaTopic, steps
from holdfast.drill.arrival_plan import plan_deliveries
from holdfast.drill.arriving import COMPLETE, ArrivingInput
from holdfast.drill.checkers import Verdict, compare_rows
from holdfast.drill.drill import check_rows_read, needs_broker
from holdfast.drill.fault_checkers import check_input
from holdfast.drill.feeds import FeedKind, SourceFeed, feeds_of, topic_of, with_feeds
from holdfast.drill.front_door import AllTaken, manifest_fields
from holdfast.drill.history import Event
from holdfast.drill.logged import due_intervals, logged_input
from holdfast.drill.mixed import draw_settings, read_faults
from holdfast.drill.reference import make_reference, reference_of_batches
from holdfast.drill.report import drill_command, fault_words
from holdfast.drill.scenarios import SCENARIOS, scenario_of
from holdfast.drill.schedule import FaultKind, make_schedule
from holdfast.drill.settings import DrillFeed, DrillSettings, Uniform, check_settings, read_settings
from holdfast.drill.source_files import Record, as_delivered, delivered_columns, encode_file, encode_records
from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime import InProcess
from holdfast.runtime.io.file_ranges import range_fields
from holdfast.runtime.io.offset_ranges import OffsetRange, source_range_fields
from holdfast.storage.source_files import SourceFile

ROWS = {"word": "string", "count": "bigint", "share": "double", "at": "timestamp"}
WORDS = pa.table(
    {
        "word": ["a, b", 'say "c"', "", None],
        "count": pa.array([1, None, 3, 4]),
        "share": [0.1, None, 1e300, -0.0],
        "at": pa.array([0, 1_500_000, None, 3], pa.timestamp("us")),
    }
)


def source_app(reader: Any = None, **more: Any) -> Application:
    app = Application("words")
    app.source("words", reader, schema=ROWS, event_time="at", **more).filter(lambda rows: rows["count"], id="kept")
    return app


def feed_of(app: Application, **more: Any) -> SourceFeed:
    return feeds_of(app, DrillSettings("words", **more))["words"]


# -- what feeds a source -----------------------------------------------------------------------------------------------


def test_sources_are_fed_as_the_application_reads_them() -> None:
    csv = feed_of(source_app(hf.files("data/*/", format="csv")))
    assert (csv.kind, csv.reader.format) == (FeedKind.SPARK, "parquet"), "a pattern is read through Spark"
    json = feed_of(source_app(hf.files("data/", format="json", maxFilesPerTrigger=2, retention="1 hour")))
    assert (json.kind, json.format) == (FeedKind.FILES, "json")
    assert isinstance(json.reader, Files)
    assert json.reader.in_place
    assert json.reader.options == (("maxFilesPerTrigger", "2"),), "options about its own files are not the drill's"
    read = hf.kafka("theirs:9092", "theirs", key="word", start="latest", settings={"sasl.password": "x"})
    topic = feed_of(source_app(read))
    assert topic.kind is FeedKind.KAFKA
    placed = topic.placed("", "127.0.0.1:1")
    assert isinstance(placed, KafkaTopic)
    assert (placed.servers, placed.topic, placed.start.kind) == ("127.0.0.1:1", topic_of("words"), "earliest")
    assert placed.settings == (), "no secret and no broker of the user's"
    assert feed_of(source_app(lambda spark: None)).kind is FeedKind.SPARK
    assert feed_of(source_app(read), feed=DrillFeed.SPARK).kind is FeedKind.SPARK
    with pytest.raises(BadInput, match="Avro"):
        feed_of(source_app(hf.kafka("b", "t", "avro", avro_schema='{"type": "record", "name": "r", "fields": []}')))


def test_scenarios_read_in_place_in_formats_that_the_seed_draws() -> None:
    formats = {feed_of(source_app(), seed=seed).format for seed in range(20)}
    assert formats == {"parquet", "json", "csv"}
    assert feed_of(source_app(), feed=DrillFeed.KAFKA).kind is FeedKind.KAFKA
    asked = DrillSettings("chain")
    app = scenario_of(asked).application()
    assert app.reads_in_place(OperatorId("S"))
    assert "S-by-key" in app.steps, "whoever reads a range finds all keys in it"
    assert "S-by-key" not in scenario_of(replace(asked, feed=DrillFeed.BATCHES)).application().steps
    assert feeds_of(app, asked)["S"].kind is FeedKind.FILES, "the driver finds the same in what it loads"
    plain = SCENARIOS["chain"].application()
    assert "S-by-key" not in plain.steps


def test_other_readers_give_the_application_that_was_declared_with_them() -> None:
    reader = hf.files("in/", format="json")
    declared = source_app(reader, key="word", parallelism=3)
    changed = source_app(key="word", parallelism=3).with_readers({"words": reader})
    assert [changed.operator(one) for one in changed.steps] == [declared.operator(one) for one in declared.steps]
    assert (changed.keys, changed.columns, changed.event_times) == (
        declared.keys,
        declared.columns,
        declared.event_times,
    )
    assert list(changed.steps) == list(declared.steps)
    again = changed.with_readers({"words": hf.files("other/", format="json")})
    assert list(again.steps) == list(declared.steps), "one exchange"
    step = again.steps[OperatorId("words")]
    assert isinstance(step, steps.Source)
    assert isinstance(step.reader, Files)
    assert step.reader.path == "other/"


def test_a_drill_of_kafka_needs_a_broker_and_one_to_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needs_broker(DrillSettings("traffic", feed=DrillFeed.KAFKA, kill_broker=True))
    assert not needs_broker(DrillSettings("traffic"))
    with pytest.raises(BadInput, match="no source reads Kafka"):
        needs_broker(DrillSettings("traffic", kill_broker=True))
    from holdfast.drill import broker

    monkeypatch.setattr(broker, "has_lab", lambda: False)
    with pytest.raises(BadInput, match=r"needs a Kafka broker, which is part of the lab"):
        broker.check_broker("--feed kafka")


def test_settings_of_feeds_are_kept_and_checked() -> None:
    asked = DrillSettings("traffic", feed=DrillFeed.KAFKA, kill_broker=True, disorder=True)
    assert read_settings(asked.document()) == asked
    check_settings(asked)
    assert "--feed kafka" in drill_command(asked.document())
    assert "--kill-broker" in drill_command(asked.document())
    for wrong in ({"feed": DrillFeed.SPARK, "disorder": True}, {"feed": DrillFeed.BATCHES, "disorder": True}):
        with pytest.raises(BadInput, match="in place"):
            check_settings(replace(DrillSettings("traffic"), **wrong))  # type: ignore[arg-type]
    kinds = [one.kind for one in make_schedule(asked)]
    assert kinds.index(FaultKind.KILL_BROKER) < kinds.index(FaultKind.START_BROKER)
    others = [one for one in make_schedule(asked) if "broker" not in one.kind]
    assert others == list(make_schedule(replace(asked, kill_broker=False))), "a fault more moves no other"
    assert fault_words({"what": "kill-broker"}) == "kill -9 of the Kafka broker"


def test_mixed_drills_draw_their_feed_and_nothing_else_by_it() -> None:
    base = DrillSettings("mixed", nodes=6, kill=0, arrivals=Uniform(3.0, 15.0), batches=50, fail_at=12.0)
    drawn = [draw_settings(replace(base, seed=seed)) for seed in range(60)]
    assert {one.feed for one in drawn} == {DrillFeed.SOURCES, DrillFeed.SPARK, DrillFeed.KAFKA}
    assert {(one.disorder, one.kill_broker) for one in drawn if one.feed is DrillFeed.KAFKA} == {
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    }
    for one in drawn:
        check_settings(one)
        less = draw_settings(replace(base, seed=one.seed), read_faults("kafka"))
        assert less.feed is not DrillFeed.KAFKA
        assert replace(less, feed=one.feed, kill_broker=one.kill_broker) == one, "nothing else is drawn otherwise"
        fed = draw_settings(replace(base, seed=one.seed, feed=DrillFeed.BATCHES))
        assert replace(fed, feed=one.feed, disorder=one.disorder, kill_broker=one.kill_broker) == one


# -- what arrives ------------------------------------------------------------------------------------------------------


def test_input_arrives_in_order_or_as_it_does_in_the_field() -> None:
    plain = plan_deliveries(3, "S", 40, disorder=False)
    assert [(one.due, one.number, one.two_steps) for one in plain] == [(n, n, False) for n in range(40)]
    field = plan_deliveries(3, "S", 200, disorder=True)
    assert field == plan_deliveries(3, "S", 200, disorder=True)
    assert field != plan_deliveries(3, "other", 200, disorder=True)
    assert {one.number for one in field} == set(range(200))
    assert len({one.name for one in field}) == len(field) > 200, "what comes again has another name"
    assert max(one.due for one in field) == 199
    assert any(one.due > one.number and not one.name.endswith("-again") for one in field)
    assert any(one.two_steps for one in field)
    assert [one.due for one in field] == sorted(one.due for one in field)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.parametrize("options", [{}, {"header": True, "sep": ";"}])
def test_files_hold_the_rows_that_they_are_written_from(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    reader = hf.files(str(tmp_path), format=kind, **(options if kind == "csv" else {}))
    (tmp_path / f"0.{kind}").write_bytes(encode_file(WORDS, reader))
    app = Application("words")
    app.source("words", reader, schema=ROWS).filter(lambda rows: pa.array([True] * rows.num_rows), id="kept")
    done = InProcess(app)
    done.read()
    assert compare_rows(WORDS, done.rows("kept")).holds, done.rows("kept").to_pylist()


def test_json_has_no_number_for_what_is_none_and_csv_no_line_break() -> None:
    odd = pa.table({"share": [1.0, float("nan"), float("inf")]})
    json = hf.files("x", format="json")
    assert encode_file(odd, json) == b'{"share":1.0}\n{"share":null}\n{"share":null}\n'
    assert as_delivered(odd, json)["share"].to_pylist() == [1.0, None, None]
    assert as_delivered(odd, hf.files("x", format="csv")) is odd
    with pytest.raises(BadInput, match="line break"):
        encode_file(pa.table({"word": ["a\nb"]}), hf.files("x", format="csv"))


def test_records_hold_the_rows_that_they_are_written_from() -> None:
    reader = hf.kafka("b", "t", key="word", timestamp="at", offset="number")
    rows = WORDS.append_column("number", pa.array([7, 8, 9, 10]))
    first, *_, last = encode_records(rows, reader)
    assert first == Record(b"a, b", b'{"count":1,"share":0.1}', (), 0)
    assert last.key is None
    assert delivered_columns(rows.column_names, reader) == ["word", "count", "share"], "the rest is the broker's"
    raw = hf.kafka("b", "t", "raw")
    plain = pa.table({"key": [b"k"], "value": [b"v"], "headers": ['[["h", "x"]]'], "offset": [3]})
    assert encode_records(plain, raw) == [Record(b"k", b"v", (("h", b"x"),), None)]


class TopicsInMemory:
    """Topics with two partitions."""

    def __init__(self) -> None:
        self.written: dict[str, list[Record]] = {}

    def write(self, topic: str, records: Sequence[Record], stopped: threading.Event) -> dict[int, int]:
        held = self.written.setdefault(topic, [])
        held.extend(records)
        return {0: (len(held) + 1) // 2, 1: len(held) // 2}


def deliver(arriving: ArrivingInput, topics: Any = None) -> list[Event]:
    history: list[Event] = []
    lock = threading.Lock()

    def arrived(source: str, fields: Any) -> None:
        with lock:
            history.append(event(0.0, "arrived", source=source, **fields))

    arriving.start(time.time() - 60.0, 0.01, arrived, topics)
    deadline = time.monotonic() + 60.0
    while not (arriving.folder / COMPLETE).exists() and arriving.problem is None and time.monotonic() < deadline:
        time.sleep(0.01)
    arriving.stop()
    return history


def test_what_arrives_is_reported_and_its_end_shown(tmp_path: Path) -> None:
    asked = DrillSettings("traffic", feed=DrillFeed.KAFKA)
    app = scenario_of(asked).application()
    given = list(SCENARIOS["traffic"].batches(1, 3, 40))
    arriving = ArrivingInput(tmp_path, given, feeds_of(app, asked))
    topics = TopicsInMemory()
    history = deliver(arriving, topics)
    assert (tmp_path / COMPLETE).exists()
    assert len(topics.written["drill-locations"]) == 120
    last = [one for one in history if one.fields["source"] == "locations"][-1]
    assert last.fields == {"source": "locations", "due": 2, "ends": {"0": 60, "1": 60}, "rows": 40}


def test_input_that_cannot_be_written_ends_the_drill_with_its_reason(tmp_path: Path) -> None:
    app = source_app(hf.files("x", format="csv"))
    given = [{"words": pa.table({**{name: WORDS[name] for name in WORDS.column_names}, "word": ["a\nb"] * 4})}]
    arriving = ArrivingInput(tmp_path, given, feeds_of(app, DrillSettings("words")))
    deliver(arriving)
    assert arriving.problem is not None
    assert arriving.problem.startswith("source words: a value has a line break")
    assert not (tmp_path / COMPLETE).exists()


# -- a history of ranges -----------------------------------------------------------------------------------------------


def arrived(path: str, size: int, due: int) -> Event:
    return event(float(due), "arrived", source="S", due=due, file=path, bytes=size, rows=1)


def logged(number: int, *ranges: tuple[str, int, int, int], closes: bool = False) -> Event:
    """A batch with ranges: path, size of the file, from, to."""
    held = [[0, path, size, 0, None, start, end] for path, size, start, end in ranges]
    how = {"format": "json", "options": {}, "lateness": 0, "until": None}
    source = {"watermark": number, **({"ranges": held, "how": how} if held else {})}
    return event(
        10.0 + number, "logged", batch=number, through={"S": -1}, rows={"S": 0}, closes=closes, sources={"S": source}
    )


THERE = [arrived("/in/0", 100, 0), arrived("/in/1", 50, 1), arrived("/in/2", 0, 2)]
GOOD = [
    *THERE,
    logged(0, ("/in/0", 100, 0, 60)),
    logged(1, ("/in/0", 100, 60, 100), ("/in/1", 50, 0, 50)),
    logged(2),
    logged(3, closes=True),
]


def test_ranges_cover_what_arrived() -> None:
    found = logged_input(GOOD, {})
    assert found.problems == ()
    assert [len(one.sources[OperatorId("S")].ranges) for one in found.batches] == [1, 2, 0, 0]
    assert [one.sources[OperatorId("S")].watermark for one in found.batches] == [0, 1, 2, 3]
    assert due_intervals(GOOD) == {0: 0, 1: 1, 2: 1, 3: 2}, "a batch without ranges is due with the one before"
    assert check_input(replace(found, in_place={"S": 7})).reason == "7 rows read, each once, in 4 batches"


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([*GOOD[:4], *GOOD[5:6]], "batch 1 is not in the history"),
        ([*THERE, logged(0, ("/in/0", 100, 0, 60))], "S: 60 of 100 of /in/0 are in batches"),
        ([*THERE, logged(0, ("/in/0", 100, 10, 100))], "bytes 10 to 100 of /in/0 with a gap before it: 0 was next"),
        (
            [*THERE, logged(0, ("/in/0", 100, 0, 100)), logged(1, ("/in/0", 100, 60, 100))],
            "bytes 60 to 100 of /in/0 again: 100 was next",
        ),
        ([*THERE, logged(0, ("/in/0", 90, 0, 90))], "of 90 bytes: it arrived with other bytes"),
        ([*GOOD, logged(4, ("/in/9", 5, 0, 5))], "S: /in/9 was read and did not arrive"),
    ],
)
def test_ranges_that_are_missing_come_twice_or_are_of_other_files_are_found(history: list[Event], said: str) -> None:
    found = check_input(logged_input(history, {}))
    assert found.verdict is Verdict.FAILED
    assert any(said in problem for problem in logged_input(history, {}).problems), found.reason


def test_offsets_are_due_when_their_end_was_written() -> None:
    def batch(number: int, *ranges: OffsetRange) -> Event:
        how = {"format": "json", "options": {}, "lateness": 0, "until": None, "by-stream": True}
        source = {"watermark": None, "ranges": [source_range_fields(one) for one in ranges], "how": how}
        return event(
            20.0 + number, "logged", batch=number, through={"S": -1}, rows={"S": 0}, closes=False, sources={"S": source}
        )

    written = [
        event(float(n), "arrived", source="S", due=n, ends={"0": 2 * n + 2, "1": 2 * n + 1}, rows=4) for n in range(3)
    ]
    history = [
        *written,
        batch(0, OffsetRange(0, "t", 0, 0, 1), OffsetRange(1, "t", 1, 0, 1)),
        batch(1, OffsetRange(0, "t", 0, 1, 4)),
        batch(2, OffsetRange(0, "t", 0, 4, 6), OffsetRange(1, "t", 1, 1, 5)),
    ]
    assert logged_input(history, {}).problems == ()
    assert due_intervals(history) == {0: 0, 1: 1, 2: 2}
    short = logged_input(history[:-1], {}).problems
    assert "S: 4 of 6 of 0 are in batches" in short
    assert "S: 1 of 5 of 1 are in batches" in short


def test_ranges_in_a_history_are_those_of_the_batch_log() -> None:
    """As JSON in both."""
    file = SourceFile("/in/0", 100, 0, None)
    from holdfast.runtime.io.file_ranges import FileRange

    found = logged_input(GOOD, {}).batches[0].sources[OperatorId("S")].ranges
    assert [range_fields(one) for one in found if isinstance(one, FileRange)] == [
        range_fields(FileRange(0, file, 0, 60))
    ]


HOUR = 3_600_000_000


def _with_watermark_moved(history: list[Event], by: int) -> list[Event]:
    """Move the last watermark of a source with event time, before the batch that closes all windows."""
    found = list(history)
    for at in reversed(range(len(found))):
        if found[at].kind == "logged" and not found[at].fields["closes"]:
            sources = found[at].fields["sources"]
            for name, one in sources.items():
                if one["watermark"] is not None and one["watermark"] > 0:
                    moved = {**sources, name: {**one, "watermark": one["watermark"] + by}}
                    found[at] = replace(found[at], fields={**found[at].fields, "sources": moved})
                    return found
    raise AssertionError("no source has a watermark")


@pytest.mark.parametrize("disorder", [False, True])
@pytest.mark.parametrize(("name", "seed"), [("traffic", 1), ("chain", 2)])
def test_the_expected_rows_follow_the_ranges_and_watermarks_of_the_manifest(
    name: str, seed: int, disorder: bool, tmp_path: Path
) -> None:
    """Two batches at most of a file: the outputs of a run that read as it liked come again, late rows and all."""
    asked = DrillSettings(name, seed=seed, batches=6, rows=60, disorder=disorder)
    scenario = scenario_of(asked)
    app = scenario.application()
    feeds = {
        source: replace(one, reader=replace(one.reader, options=(("maxBytesPerTrigger", "3k"), ("settle", "0"))))
        for source, one in feeds_of(app, asked).items()
    }
    given = list(scenario.batches(asked.seed, asked.batches, asked.rows))
    arriving = ArrivingInput(tmp_path, given, feeds, seed=seed, disorder=disorder)
    fed = with_feeds(app, feeds, tmp_path)
    history = deliver(arriving)
    run = InProcess(fed, nodes=2)
    run.read()
    run.close()
    for number in range(run.batch_log.frontier + 1):
        record = run.batch_log.record(BatchId(number))
        assert record is not None
        history.append(
            event(
                float(number),
                "logged",
                batch=number,
                through=dict.fromkeys(feeds, -1),
                rows=dict.fromkeys(feeds, 0),
                closes=record.closes,
                sources=manifest_fields(record),
            )
        )
    found = logged_input(history, {})
    assert found.problems == ()
    assert len(found.batches) > 3
    reference = reference_of_batches(fed, given, found.batches, None)
    assert check_rows_read(reference.read, feeds, arriving) == []
    assert reference.problems == ()
    for by, said in ((HOUR, "and its rows so far allow"), (-HOUR, "fell from")):
        other = logged_input(_with_watermark_moved(history, by), {})
        problems = reference_of_batches(fed, given, other.batches, None).problems
        judged = check_input(replace(other, problems=(*other.problems, *problems)))
        assert judged.verdict is Verdict.FAILED
        assert said in judged.reason
    for output, rows in reference.rows.items():
        assert rows.num_rows
        assert compare_rows(rows, run.rows(output)).holds, output
    if name == "chain":
        plain = make_reference(SCENARIOS[name], replace(asked, feed=DrillFeed.BATCHES), twice=False)
        shown = [compare_rows(rows, reference.rows[output]).holds for output, rows in plain.rows.items()]
        assert not all(shown), "the chain shows where batches end"
    short = {source: rows.slice(1) for source, rows in reference.read.items()}
    assert "1 rows are missing" in check_rows_read(short, feeds, arriving)[0]


# -- the end -----------------------------------------------------------------------------------------------------------


def test_everything_is_taken_once_a_look_that_began_after_the_end_of_input_finds_nothing() -> None:
    reader = SimpleNamespace(listed=5, pending=False, unsettled=False)
    readers: Any = {OperatorId("S"): reader}
    taken = AllTaken()
    assert not taken.see(readers, complete=False)
    assert not taken.see(readers, complete=True), "the last look may have begun before"
    reader.listed = 6
    assert not taken.see(readers, complete=True), "this one, too"
    reader.listed = 7
    reader.unsettled = True
    assert not taken.see(readers, complete=True)
    reader.unsettled, reader.pending = False, True
    assert not taken.see(readers, complete=True)
    reader.pending, reader.listed = False, 0
    assert not taken.see(readers, complete=True), "reading has begun anew"
    reader.listed = 2
    assert taken.see(readers, complete=True)
    assert taken.see({}, complete=True)

"""Applications as users write them, and the topologies that come of them."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast import Application, count, rows, session, sliding, tumbling
from holdfast.application import load_application, steps
from holdfast.application.durations import seconds
from holdfast.application.windows import Rows, Session, Sliding
from holdfast.errors import BadInput
from holdfast.topology import Partitioning, Queries, parse, shapes_of, to_json

LOCATIONS = {"segment": "string", "speed": "double", "at": "timestamp"}
INCIDENTS = {"segment": "string", "kind": "string", "at": "timestamp"}


def traffic() -> Application:
    """The application of incremental recovery, Fig. 1."""
    app = Application("traffic")
    window = sliding("10 seconds", every="1 second")
    locations = app.source("O1", schema=LOCATIONS, event_time="at", rate=20000)
    incidents = app.source("O2", schema=INCIDENTS, event_time="at", rate=500)
    speeds = (
        locations.key_by("segment")
        .window(window)
        .agg(speed=hf.avg("speed"), id="O3", parallelism=4)
        .output(priority=[5, 1, 1, 1])
    )
    reports = incidents.key_by("segment").window(window).count(id="O4", parallelism=2).output()
    speeds.join(reports, on="segment", window=tumbling("1 s"), id="O5", parallelism=2).output(priority=3)
    return app


def test_the_traffic_application_becomes_its_topology() -> None:
    topology = traffic().topology()
    assert [operator.id for operator in topology.operators] == ["O1", "O2", "O3", "O4", "O5"]
    queries = Queries(topology)
    assert len(queries) == 8
    q51 = list(queries.heads).index(topology.index("O5[0]"))
    assert {str(p) for p in topology.partitions(queries.members(q51))} == {
        *("O1[0]", "O2[0]", "O3[0]", "O3[1]", "O4[0]", "O5[0]")
    }, "keys nest: no full exchange between partitions of the same key"
    assert topology.operator("O5").joins
    assert topology.priority[topology.outputs].tolist() == [5, 1, 1, 1, 1, 1, 3, 3]
    assert parse(to_json(topology), "t.json") == topology


@pytest.mark.parametrize(
    ("upstream", "downstream", "kind"),
    [(1, 1, "one-to-one"), (4, 4, "full"), (4, 2, "full"), (1, 4, "split"), (4, 1, "merge")],
)
def test_a_fresh_key_needs_a_full_exchange(upstream: int, downstream: int, kind: str) -> None:
    app = Application("x")
    made = app.source("s", schema=LOCATIONS, parallelism=upstream).key_by("segment").window(rows(3))
    made.count(id="c", parallelism=downstream)
    assert app.operator("c").inputs[0].partitioning == kind


@pytest.mark.parametrize(
    ("upstream", "downstream", "kind"),
    [(4, 4, "one-to-one"), (4, 2, "merge"), (2, 4, "split"), (3, 2, "full"), (2, 3, "full"), (6, 3, "merge")],
)
def test_partitions_of_the_same_key_nest(upstream: int, downstream: int, kind: str) -> None:
    app = Application("x")
    source = app.source("s", schema=LOCATIONS, parallelism=upstream, key="segment")
    source.key_by("segment").window(rows(3)).count(id="c", parallelism=downstream)
    assert app.operator("c").inputs[0].partitioning == kind


def test_without_a_key_rows_go_where_they_fit() -> None:
    app = Application("x")
    source = app.source("s", schema=LOCATIONS, parallelism=4)
    source.map(lambda table: table, id="m")
    source.map(lambda table: table, id="few", parallelism=2)
    source.map(lambda table: table, id="many", parallelism=8)
    kinds = [app.operator(name).inputs[0].partitioning for name in ("m", "few", "many")]
    assert kinds == [Partitioning.ONE_TO_ONE, Partitioning.MERGE, Partitioning.SPLIT]
    assert shapes_of(app.topology()).structured


def test_a_filter_keeps_the_key_and_a_map_does_not() -> None:
    app = Application("x")
    keyed = app.source("s", schema=LOCATIONS, parallelism=2, key="segment")
    kept = keyed.filter(lambda table: table["speed"], id="f")
    kept.key_by("segment").window(rows(2)).count(id="a")
    mapped = keyed.map(lambda table: table, schema=LOCATIONS, id="m")
    mapped.key_by("segment").window(rows(2)).count(id="b")
    assert app.operator("a").inputs[0].partitioning is Partitioning.ONE_TO_ONE
    assert app.operator("b").inputs[0].partitioning is Partitioning.FULL, "a map may have changed the column"


@pytest.mark.parametrize("kind", ["aggregate", "top", "join"])
def test_a_key_that_a_window_replaces_needs_a_full_exchange(kind: str) -> None:
    """Rows were spread by the end of their old window; after the operator the column has the end of the new one."""
    app = hf.Application("x")
    visits = app.source("v", schema="page string, at timestamp", event_time="at")
    seconds = [visits.key_by("page").window(hf.tumbling(1)).count(id=name, parallelism=2) for name in ("a", "b")]
    minutes = seconds[0].key_by("window_end").window(hf.tumbling(60))
    if kind == "aggregate":
        made = minutes.count(id="m", parallelism=2)
    elif kind == "top":
        made = minutes.top(1, by="count", id="m", parallelism=2)
    else:
        made = seconds[0].join(seconds[1], on="window_end", window=hf.tumbling(60), id="m", parallelism=2)
    last = made.key_by("window_end").window(hf.tumbling(60)).count(id="last", parallelism=2)
    assert str(app.operator(last.id).inputs[0].partitioning) == "full"


def test_every_kind_of_operator() -> None:
    app = Application("all")
    tweets = app.source("tweets", schema={"text": "string", "n": "int64", "at": "timestamp"}, event_time="at")
    tags = tweets.flat_map(lambda t: t, schema={"tag": "string", "n": "int64", "at": "timestamp"}, selectivity=1.5)
    by_tag = tags.key_by("tag").window(session(gap="5 minutes"))
    stats = by_tag.agg(
        n=count(),
        sum=hf.sum("n"),
        mean=hf.avg("n"),
        low=hf.min("n"),
        high=hf.max("n"),
        kinds=hf.count_distinct("n"),
        id="stats",
    )
    assert stats.columns == {
        "tag": "string",
        "window_start": "timestamp[us]",
        "window_end": "timestamp[us]",
        "n": "int64",
        "sum": "int64",
        "mean": "double",
        "low": "int64",
        "high": "int64",
        "kinds": "int64",
    }
    stats.window(rows(100, every=10)).top(10, by="n", id="top", parallelism=1).output()
    tags.window(tumbling(60)).distinct("tag", id="distinct")
    stats.apply(
        lambda state, inputs, watermark: (state, inputs[0]),
        tags,
        state={"tag": "string"},
        schema={"tag": "string"},
        deterministic=False,
        id="own",
        cost=3,
        domain="rack-1",
    )
    kinds = {name: type(step).__name__ for name, step in app.steps.items()}
    assert kinds == {
        "tweets": "Source",
        "flat-map-1": "FlatMap",
        "stats": "WindowAggregate",
        "top": "TopK",
        "distinct": "Distinct",
        "own": "Custom",
    }
    own = app.steps["own"]  # type: ignore[index]
    assert isinstance(own, steps.Custom)
    assert not own.deterministic
    assert app.operator("own").cost == 3
    assert app.operator("distinct").inputs[0].partitioning is Partitioning.ONE_TO_ONE
    assert app.keys["distinct"] == (("tag",),)  # type: ignore[index]
    assert {str(app.topology().partition(p)) for p in app.topology().outputs} == {"top[0]", "distinct[0]", "own[0]"}


def test_event_time_is_followed_through_the_operators() -> None:
    app = Application("x")
    source = app.source("s", schema=LOCATIONS, event_time="at")
    assert source.filter(lambda t: t["speed"]).event_time == "at"
    assert source.map(lambda t: t).event_time == "at", "where columns are unknown, they are taken to stay"
    assert source.map(lambda t: t, schema={"segment": "string"}).event_time is None
    assert source.flat_map(lambda t: t, schema={"then": "timestamp"}, event_time="then").event_time == "then"
    assert source.window(tumbling(1)).count().event_time == "window_end"
    assert source.window(rows(3)).count().event_time is None
    assert source.window(rows(3)).top(1, by="speed").event_time == "at"
    own = source.apply(lambda s, i, w: (s, i[0]), state={"a": "int64"}, schema={"at": "timestamp"})
    assert own.event_time == "at"


def test_a_join_names_its_window_and_loses_no_column() -> None:
    app = traffic()
    assert app.columns["O5"] == {  # type: ignore[index]
        "segment": "string",
        "left_window_start": "timestamp[us]",
        "left_window_end": "timestamp[us]",
        "speed": "double",
        "right_window_start": "timestamp[us]",
        "right_window_end": "timestamp[us]",
        "count": "int64",
        "window_start": "timestamp[us]",
        "window_end": "timestamp[us]",
    }


def test_equal_rows_of_a_distinct_meet_in_one_partition() -> None:
    app = Application("x")
    source = app.source("s", schema=LOCATIONS, event_time="at", parallelism=2)
    source.key_by("segment", "speed").window(tumbling(1)).distinct("segment", id="d")
    assert app.keys["d"] == (("segment",),)  # type: ignore[index]
    source.key_by("segment").window(tumbling(1)).distinct("segment", "speed", id="e")
    assert app.keys["e"] == (("segment",),)  # type: ignore[index]


def test_an_arrow_schema_is_taken() -> None:
    app = Application("x")
    schema = pa.schema([("tag", pa.string()), ("at", pa.timestamp("us"))])
    stream = app.source("s", schema=schema, event_time="at")  # type: ignore[arg-type]
    assert stream.columns == {"tag": "string", "at": "timestamp[us]"}


def test_windows_and_lengths_of_time() -> None:
    assert sliding("90 s", every=timedelta(minutes=1)) == Sliding(90.0, 60.0)
    assert tumbling("1.5 minutes") == Sliding(90.0, 90.0)
    assert session(gap="250ms") == Session(0.25)
    assert rows(100) == Rows(100, 100)
    assert [seconds(text, field="") for text in ("2h", "1 day", "3 Seconds")] == [7200, 86400, 3]


def mistakes() -> list[tuple[str, object]]:
    """Each a function of a fresh application with a source `s`, and what the error must mention."""

    def bad(text: str, call: object) -> tuple[str, object]:
        return text, call

    return [
        bad("speeed", lambda app, s: s.key_by("speeed")),
        bad("at least one column", lambda app, s: s.key_by()),
        bad("is not a window", lambda app, s: s.window("10 seconds")),
        bad("not a length of time", lambda app, s: s.window(tumbling("10 parsecs"))),
        bad("not above zero", lambda app, s: s.window(tumbling(0))),
        bad("longer than the window", lambda app, s: s.window(sliding(1, every=2))),
        bad("number of rows", lambda app, s: s.window(rows(0))),
        bad("not a number", lambda app, s: s.window(tumbling(1)).agg(x=hf.sum("segment"))),
        bad("computes nothing", lambda app, s: s.window(tumbling(1)).agg()),
        bad("not an aggregate", lambda app, s: s.window(tumbling(1)).agg(x=3)),
        bad("key or window column", lambda app, s: s.window(tumbling(1)).agg(window_start=count())),
        bad("number of rows", lambda app, s: s.window(tumbling(1)).top(0, by="speed")),
        bad("no column 'x'", lambda app, s: s.window(tumbling(1)).top(3, by="x")),
        bad("an aggregate has no name", lambda app, s: s.window(tumbling(1)).agg(count())),
        bad("did you mean 'parallelism'?", lambda app, s: s.window(tumbling(1)).agg(n=count(), paralelism=2)),
        bad("did you mean 'parallelism'?", lambda app, s: s.window(tumbling(1)).count(paralelism=2)),
        bad("did you mean 'schema'?", lambda app, s: app.source("t", shema="a string")),
        bad("no column 'sped'; did you mean 'speed'?", lambda app, s: s.filter(pc.field("sped") > 0)),
        bad("s.filter: (segment > 0) cannot be evaluated", lambda app, s: s.filter(pc.field("segment") > 0)),
        bad("must evaluate to bool", lambda app, s: s.filter(pc.field("speed") + 1)),
        bad("'speed > 0' is not a condition", lambda app, s: s.filter("speed > 0")),
        bad("is not a function", lambda app, s: s.map("upper(segment)")),
        bad("is not a function", lambda app, s: s.flat_map(None)),
        bad("is not a function", lambda app, s: s.apply(3, state=LOCATIONS, schema=LOCATIONS)),
        bad("s.output.sink: 3 is not a sink", lambda app, s: s.output(sink=3)),
        bad("a stream has no attribute 'groupBy'; write key_by(\"column\")", lambda app, s: s.groupBy("segment")),
        bad("a stream has no attribute 'agg'; write window(…)", lambda app, s: s.key_by("segment").agg(n=count())),
        bad("a window has no attribute 'top_k'; write top", lambda app, s: s.window(tumbling(1)).top_k(3, by="speed")),
        bad("did you mean 'count'?", lambda app, s: s.window(tumbling(1)).cuont()),
        bad("name it by the argument", lambda app, s: hf.sum("speed").alias("total")),  # type: ignore[attr-defined]
        bad("write hf.count_distinct", lambda app, s: hf.countDistinct("speed")),  # type: ignore[attr-defined]
        bad("did you mean 'tumbling'?", lambda app, s: hf.tumbing(1)),  # type: ignore[attr-defined]
        bad("a name of its own", lambda app, s: (s.output("x"), s.map(lambda t: t).output("x"))),
        bad("is the id of another operator; give every", lambda app, s: s.map(lambda t: t, id="s")),
        bad("is not an id", lambda app, s: s.map(lambda t: t, id="a b")),
        bad("parallelism", lambda app, s: s.map(lambda t: t, parallelism=0)),
        bad("cost", lambda app, s: s.map(lambda t: t, cost=-1)),
        bad("costs", lambda app, s: s.map(lambda t: t, costs=1)),
        bad("weights", lambda app, s: s.map(lambda t: t, parallelism=2, weights=[1, 2, 3])),
        bad("priority", lambda app, s: s.output(priority=[1, 2])),
        bad("priority", lambda app, s: s.output(priority=0)),
        bad("no event time", lambda app, s: app.source("t", schema=LOCATIONS).window(tumbling(1))),
        bad("have no event time", lambda app, s: s.window(rows(2)).count().window(tumbling(1))),
        bad("have no event time", lambda app, s: s.map(lambda t: t, schema={"a": "int64"}).window(tumbling(1))),
        bad("not a time", lambda app, s: s.map(lambda t: t, schema={"a": "string"}, event_time="a")),
        bad(
            "window's own column",
            lambda app, s: s.window(tumbling(1)).count().window(tumbling(2)).distinct("window_end"),
        ),
        bad(
            "on one side",
            lambda app, s: s.join(
                s.map(lambda t: t, schema={"segment": "int64", "at": "timestamp"}), on="segment", window=tumbling(1)
            ),
        ),
        bad("counts rows", lambda app, s: s.join(s.map(lambda t: t), on="segment", window=rows(2))),
        bad("twice", lambda app, s: s.join(s, on="segment", window=tumbling(1))),
        bad("the same application", lambda app, s: s.join(traffic(), on="segment", window=tumbling(1))),
        bad("not a column type", lambda app, s: app.source("t", schema={"a": "strnig"})),
        bad("is not a schema", lambda app, s: app.source("t", schema={})),
        bad("is not a function", lambda app, s: app.source("t", reader=3, schema=LOCATIONS)),
        bad("not a time", lambda app, s: app.source("t", schema=LOCATIONS, event_time="segment")),
        bad("must be zero or more", lambda app, s: app.source("t", schema=LOCATIONS, rate=-1)),
    ]


@pytest.mark.parametrize(("mention", "call"), mistakes(), ids=lambda v: v if isinstance(v, str) else "")
def test_mistakes_are_refused_when_they_are_written(mention: str, call: object) -> None:
    app = Application("x")
    source = app.source("s", schema=LOCATIONS, event_time="at")
    with pytest.raises(BadInput) as caught:
        call(app, source)  # type: ignore[operator]
    assert mention in str(caught.value)
    assert caught.value.remedy
    app.topology()  # what was refused has left no trace


def test_a_column_of_pyspark_is_no_condition() -> None:
    class Column:
        """Not called by anything, and callable as PySpark's is."""

        __module__ = "pyspark.sql.classic.column"

        def __call__(self) -> None: ...

    with pytest.raises(BadInput, match="Column is not a condition"):
        Application("x").source("s", schema=LOCATIONS).filter(Column())


def test_conditions_that_fit_are_taken() -> None:
    source = Application("x").source("s", schema=LOCATIONS)
    source.filter((pc.field("speed") > 0) & pc.field("segment").isin(["a", "b"]))
    source.filter(pc.field("at") > pa.scalar(0, pa.timestamp("us")))
    nested = Application("y").source("s", schema=pa.schema([("parts", pa.list_(pa.string()))]))
    nested.filter(pc.field("parts").is_valid())
    Application("z").source("s", hf.files("in/")).filter(pc.field("anything") > 0)


def test_members_that_are_not_there_are_attribute_errors() -> None:
    stream = Application("x").source("s", schema=LOCATIONS)
    assert not hasattr(stream, "where")
    assert not hasattr(stream.window(rows(2)), "limit")
    assert not hasattr(hf, "col")
    assert copy.deepcopy(pickle.loads(pickle.dumps(count()))) == count()


def test_a_file_is_searched_for_its_application() -> None:
    app = traffic()
    assert load_application({"app": app, "other": traffic()}, "f.py") is app
    assert load_application({"mine": app, "again": app}, "f.py") is app
    for names in ({}, {"a": app, "b": traffic()}):
        with pytest.raises(BadInput):
            load_application(names, "f.py")


def test_writing_an_application_imports_no_spark_and_no_arrow() -> None:
    code = (
        "import sys, holdfast\n"
        "app = holdfast.Application('x')\n"
        "app.source('s', schema={'a': 'string'}).output()\n"
        "app.topology()\n"
        "assert not {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_hint_among_aggregates_is_refused_with_where_it_goes() -> None:
    windowed = Application("x").source("s", schema=LOCATIONS, event_time="at").key_by("segment").window(tumbling(1))
    with pytest.raises(BadInput) as caught:
        windowed.agg(n=count(), cost=3)  # type: ignore[arg-type]
    assert caught.value.remedy == 'write hints={"cost": …} here'

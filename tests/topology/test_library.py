"""The named topologies have what the papers print."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.errors import BadInput
from holdfast.examples.hashtags import query_name
from holdfast.examples.registry import EXAMPLES
from holdfast.topology import (
    Queries,
    SubKind,
    Topology,
    count_mc_trees,
    decompose,
    parse,
    rates_of,
    shapes_of,
    to_json,
    to_yaml,
)
from holdfast_lab.topologies import describe, named_topologies, named_topology


def query(topology: Topology, head: str) -> set[str]:
    queries = Queries(topology)
    number = queries.heads.tolist().index(topology.index(head))
    return {str(one) for one in topology.partitions(queries.members(number).tolist())}


@pytest.mark.parametrize("name", [name for name in named_topologies() if name not in EXAMPLES])
def test_every_entry_builds_round_trips_and_says_where_it_comes_from(name: str) -> None:
    topology = named_topology(name)
    entry = describe(name)
    assert topology.name == entry.name == name
    assert parse(to_json(topology), "x.json") == topology
    assert parse(to_yaml(topology), "x.yaml") == topology
    assert entry.title
    assert entry.origin.startswith(f"{entry.paper}, {entry.place}. Printed: ")
    assert named_topology(name) == topology, "building twice gives the same"
    assert np.isfinite(rates_of(topology).output).all()


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'hashtags'"):
        named_topology("hashtag")
    with pytest.raises(BadInput, match="known are: traffic"):
        describe("zzz")


def test_traffic_has_eight_queries_and_q51_its_six_partitions() -> None:
    traffic = named_topology("traffic")
    assert len(Queries(traffic)) == 8
    # p1, p2 of the paper are the sources; p3i, p4i, p5i are speeds[i-1], reports[i-1], jams[i-1]
    sources = {"locations[0]", "incidents[0]"}
    assert query(traffic, "jams[0]") == sources | {"speeds[0]", "speeds[1]", "reports[0]", "jams[0]"}
    assert query(traffic, "jams[1]") == sources | {"speeds[2]", "speeds[3]", "reports[1]", "jams[1]"}
    assert query(traffic, "speeds[3]") == {"locations[0]", "speeds[3]"}
    assert [operator.id for operator in traffic.operators if operator.joins] == ["jams"]


def test_the_small_example_has_the_queries_of_the_figure() -> None:
    small = named_topology("incremental-fig2")
    queries = Queries(small)
    assert len(queries) == 4
    assert query(small, "p9[0]") == {f"p{n}[0]" for n in (1, 2, 3, 5, 7, 9)}
    assert query(small, "p12[0]") == {f"p{n}[0]" for n in (1, 2, 4, 6, 8, 12)}


def test_windows_all_read_the_parsers() -> None:
    windows = named_topology("incremental-fig7")
    assert [i.source for o in windows.operators if o.id.startswith("Window") for i in o.inputs] == ["Parser"] * 4


def test_hashtags_has_fifteen_queries_whose_rates_grow_downstream() -> None:
    hashtags = named_topology("hashtags")
    assert [o.parallelism for o in hashtags.operators] == [1] * 17
    assert [str(hashtags.partition(p)) for p in hashtags.outputs] == [f"{query_name(n)}[0]" for n in range(15)]
    entering = rates_of(hashtags).input
    assert entering[0] == 1000
    assert (entering[hashtags.edge_from] <= entering[hashtags.edge_to]).all()
    level = dict(zip([o.id for o in hashtags.operators], hashtags.operator_level.tolist(), strict=True))
    assert {level[query_name(n)] for n in range(4)} == {2}, "the counts read the parser"
    assert max(level.values()) == 5, "four levels of aggregates"
    # Losing O0 to O3 stops every query; losing O12 to O14 stops only these (incremental recovery, sec. 6.2).
    members = Queries(hashtags).matrix()
    first = hashtags.indices([f"{query_name(n)}[0]" for n in range(4)])
    last = hashtags.indices([f"{query_name(n)}[0]" for n in (12, 13, 14)])
    assert members[:, first].any(axis=1).all()
    assert members[:, last].any(axis=1).sum() == 3


@pytest.mark.parametrize(("name", "trees"), [("replication-fig1", 16), ("replication-fig1-joining", 8)])
def test_figure_1_has_its_mc_trees(name: str, trees: int) -> None:
    assert count_mc_trees(named_topology(name)) == trees


@pytest.mark.parametrize("name", ["replication-fig2", "replication-fig2-joined"])
def test_figure_2_has_its_rates(name: str) -> None:
    topology = named_topology(name)
    assert rates_of(topology).output.tolist() == [1, 2, 3, 2, 8]
    assert rates_of(topology).stream.tolist() == [3, 5]
    assert topology.operator("O3").joins is name.endswith("joined")


def test_figure_4_decomposes_as_printed() -> None:
    parts = decompose(named_topology("replication-fig4"))
    assert [(part.kind, part.operators) for part in parts] == [
        (SubKind.STRUCTURED, (3, 4, 5)),
        (SubKind.FULL, (0, 1, 2)),
    ]


def test_figure_6_halves_and_keeps_a_window_as_state() -> None:
    topology = named_topology("replication-fig6")
    assert topology.parallelism.tolist() == [16, 8, 4, 2, 1]
    assert (np.diff(topology.up_start)[16:] == 2).all()
    rates = rates_of(topology)
    assert rates.output[0] == 1000
    for number, operator in enumerate(topology.operators[1:], start=1):
        entering = rates.input[topology.operator_of == number].sum()
        assert operator.state_bytes == entering * 30 * operator.tuple_bytes


def test_hot_pages_replays_the_day_48_times_as_fast() -> None:
    topology = named_topology("ppa-q1")
    assert rates_of(topology).input[:8].sum() == pytest.approx(73_291_868 * 48 / 86_400, rel=1e-5)
    assert topology.parallelism.tolist()[-1] == 1


def test_incidents_follow_the_users() -> None:
    topology = named_topology("ppa-q2")
    rates = rates_of(topology)
    assert rates.input[:8].sum() == pytest.approx(20_000)
    assert rates.output[:8].sum() == pytest.approx(1_000), "a speed for each of 1,000 segments a second"
    assert rates.output[8:12].sum() == pytest.approx(0.5, rel=1e-4), "an incident every two seconds"
    assert sum(topology.operator("O1").weights or ()) == pytest.approx(100_000, rel=1e-5)
    # By hand: with users_k = c k^-0.5, the first 125 of 1,000 segments hold sum(k^-0.5, 125) / sum(k^-0.5, 1000).
    first = sum(k**-0.5 for k in range(1, 126)) / sum(k**-0.5 for k in range(1, 1001))
    assert rates.input[0] == pytest.approx(20_000 * first, rel=1e-4)
    assert topology.operator("O3").joins


@pytest.mark.parametrize(("name", "edges"), [("sentiment-50-20-20", 560), ("sentiment-30-30-30", 1050)])
def test_sentiment_has_the_printed_edges(name: str, edges: int) -> None:
    for variant in (name, f"{name}-unequal"):
        topology = named_topology(variant)
        assert topology.task_edges == edges
        assert len(topology) == 93
        assert shapes_of(topology).full


def test_signal_guru_has_nine_steps_and_55_tasks() -> None:
    for name in ("signal-guru", "signal-guru-unequal"):
        topology = named_topology(name)
        assert len(topology) == 55
        assert int(topology.operator_level.max()) + 1 == len(topology.operators) == 9
        assert len(set(topology.parallelism.tolist())) == 9, "another parallelism in each step"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("line", "lines"),
        ("lines", "lines"),
        ("tree", "tree-to-sink"),
        ("replication-fig3a", "structured"),
        ("replication-fig3b", "structured"),
        ("replication-fig4", "general"),
        ("fast-recover-keywords", "chain"),
        ("chain-8", "chain"),
        ("chain-15", "chain"),
        ("tree-15", "tree-from-root"),
    ],
)
def test_shapes_are_those_the_papers_name(name: str, shape: str) -> None:
    assert shape in shapes_of(named_topology(name)).names()


def test_lines_that_meet_before_the_sink_are_a_tree_and_not_lines() -> None:
    assert not shapes_of(named_topology("tree")).lines
    assert not shapes_of(named_topology("replication-fig6")).lines


@pytest.mark.parametrize("name", ["line", "lines", "tree", "signal-guru", "sentiment-50-20-20", "sentiment-30-30-30"])
def test_reprocessing_times_are_one_or_spread_over_one_to_ten(name: str) -> None:
    assert (named_topology(name).reprocess_seconds == 1).all()
    unequal = named_topology(f"{name}-unequal").reprocess_seconds
    assert set(unequal.tolist()) <= set(range(1, 11))
    assert len(set(unequal.tolist())) > 4


def test_fast_recover_topologies_have_its_units() -> None:
    words = named_topology("fast-recover-keywords")
    assert words.operator("counter").parallelism == 5
    assert rates_of(words).input[:3].sum() == pytest.approx(3000 / 60)
    for name, operators, per_minute in (("chain-15", 15, 3000), ("tree-15", 15, 1000), ("chain-8", 8, 3000)):
        topology = named_topology(name)
        assert len(topology.operators) == operators
        assert topology.source_rate.sum() == pytest.approx(per_minute / 60, rel=1e-5)
        for one in topology.operators:
            assert 2 <= one.parallelism <= 6
            assert 0.1 <= one.selectivity <= 1
            assert 10e6 <= one.state_bytes <= 20e6
            assert one.tuple_seconds == 0.0006
            assert one.tuple_bytes == 1000
            assert 0 < one.failure_rate < 1 / 60

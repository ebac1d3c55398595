"""The backup experiment: what it measures adds up, and the paper's printed figures are those of Table III."""

from __future__ import annotations

from dataclasses import replace

from holdfast_lab.experiments.backups import SETTINGS, latencies_of, measure_setting, summarise, too_slow
from holdfast_lab.topologies import named_topology


def test_every_latency_from_the_largest_time_to_the_longest_path() -> None:
    assert list(latencies_of(named_topology("line"))) == list(range(1, 17))
    assert list(latencies_of(named_topology("sentiment-50-20-20"))) == list(range(1, 7))


def test_one_setting_of_each_figure() -> None:
    for name, algorithms in (
        ("Tree-u", ["exact", "exhaustive", "tree", "dag", "share"]),
        ("Senti-560", ["exact", "dag", "share"]),
    ):
        setting = next(one for one in SETTINGS if one.name == name)
        points = list(measure_setting(setting, repeat=1))
        assert all(point.proven and point.worst <= point.latency for point in points)
        assert all(point.count >= point.optimum for point in points)
        assert {point.figure for point in points} == {setting.figure}
        lines = summarise(setting, points)
        assert [line.algorithm for line in lines] == algorithms
        best = lines[0]
        assert best.extra_percent == best.largest_extra == 0
        assert best.backups == sum(point.optimum for point in points if point.algorithm == "exact")


def test_table_iii_as_printed() -> None:
    printed = {one.name: one.printed_ms for one in SETTINGS if one.printed_ms}
    assert printed["Tree-n"] == {"exhaustive": 904, "tree": 0.9, "dag": 1.8, "share": 10}
    assert printed["Senti-1050"] == {"exhaustive": 108220, "dag": 501, "share": 29}
    assert len(printed) == 8


def test_only_exact_on_general_graphs_can_be_too_slow() -> None:
    setting = next(one for one in SETTINGS if one.name == "Senti-560")
    points = list(measure_setting(setting, repeat=1))
    slowed = [replace(one, seconds=5.0 if one.algorithm == "exact" else 0.01) for one in points]
    assert [one.algorithm for one in too_slow(slowed)] == ["exact"] * 6
    assert too_slow([replace(one, seconds=0.2) for one in points]) == []
    # As fast as dag is fast enough, however slow.
    assert too_slow([replace(one, seconds=9.0) for one in points]) == []

"""The same seed gives the same faults; every setting shows in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drill.made_up import event, one_node_killed
from holdfast.drill.checkers import Verdict, check_faults
from holdfast.drill.measures import measure
from holdfast.drill.mixed import draw_settings
from holdfast.drill.scenarios import SCENARIOS
from holdfast.drill.schedule import FaultKind, left_out, make_schedule
from holdfast.drill.settings import (
    DrillSettings,
    DrillStrategy,
    Uniform,
    check_settings,
    read_arrivals,
    read_settings,
)
from holdfast.errors import BadInput

ASKED = DrillSettings("traffic", nodes=6, kill=3, arrivals=(5.0, 10.0, 30.0), fail_at=20.0)


def of_kind(asked: DrillSettings, kind: FaultKind) -> list[tuple[float, str | None]]:
    return [(one.at, one.node) for one in make_schedule(asked) if one.kind is kind]


def test_kills_at_once_and_replacements_one_by_one() -> None:
    kills = of_kind(ASKED, FaultKind.KILL)
    assert [at for at, _ in kills] == [20.0] * 3
    assert len({node for _, node in kills}) == 3
    assert of_kind(ASKED, FaultKind.ADD_NODE) == [(25.0, "node-7"), (30.0, "node-8"), (50.0, "node-9")]


def test_staggered_kills_and_the_best_case() -> None:
    assert [at for at, _ in of_kind(replace(ASKED, stagger=4.0), FaultKind.KILL)] == [20.0, 24.0, 28.0]
    best = replace(ASKED, strategy=DrillStrategy.BEST_CASE)
    assert [at for at, _ in of_kind(best, FaultKind.ADD_NODE)] == [35.0] * 3


def test_frozen_nodes_thaw_and_are_not_the_killed_ones() -> None:
    asked = replace(ASKED, freeze=2, thaw_after=12.0)
    frozen = of_kind(asked, FaultKind.FREEZE)
    assert of_kind(asked, FaultKind.THAW) == [(32.0, node) for _, node in frozen]
    assert not {node for _, node in frozen} & {node for _, node in of_kind(asked, FaultKind.KILL)}


@given(st.integers(0, 1000), st.integers(1, 8), st.integers(0, 8), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_any_schedule_can_be_done(seed: int, nodes: int, kill: int, freeze: int, second: int, driver: bool) -> None:
    asked = DrillSettings(
        "traffic",
        seed=seed,
        nodes=nodes,
        kill=kill,
        freeze=freeze,
        second_wave=second,
        kill_driver=driver,
        arrivals=Uniform(2.0, 40.0),
        drop_packets=0.1,
    )
    try:
        check_settings(asked)
    except BadInput:
        return
    faults = make_schedule(asked)
    assert faults == make_schedule(read_settings(asked.document())), "the same from the same settings"
    assert [one.at for one in faults] == sorted(one.at for one in faults)
    there = {f"node-{number}" for number in range(1, nodes + 1)}
    frozen: set[str] = set()
    for one in faults:
        if one.kind is FaultKind.ADD_NODE:
            assert one.node not in there
            there.add(str(one.node))
        elif one.node is not None and one.kind not in {FaultKind.FULL_SPEED, FaultKind.DELIVER_PACKETS}:
            assert one.node in there, "nothing is done to a node that is not there"
            if one.kind is FaultKind.KILL:
                there.remove(one.node)
            elif one.kind is FaultKind.FREEZE:
                frozen.add(one.node)
            elif one.kind is FaultKind.THAW:
                frozen.remove(one.node)
    assert not frozen
    assert len(there) == nodes, "every killed node is replaced"


def test_a_second_wave_comes_during_the_recovery_and_may_take_what_has_just_come() -> None:
    victims = set()
    for seed in range(60):
        asked = replace(ASKED, seed=seed, second_wave=2)
        at = max(when for when, _ in of_kind(asked, FaultKind.KILL))
        assert 20.0 < at < 50.0
        victims |= {node for when, node in of_kind(asked, FaultKind.KILL) if when == at}
    assert {"node-7", "node-8"} & victims


def test_faults_for_which_no_node_is_there_are_named() -> None:
    assert left_out(ASKED, make_schedule(ASKED)) is None
    # All three nodes die, and what replaces them has not settled when the second wave comes.
    asked = DrillSettings("traffic", nodes=3, kill=3, arrivals=(5.0, 5.0, 5.0), second_wave=2, drop_packets=0.1)
    check_settings(asked)
    schedule = make_schedule(asked)
    assert sum(one.kind is FaultKind.KILL for one in schedule) == 3, "none of the second wave"
    words = left_out(asked, schedule)
    assert words == "only 3 of 5 kills (with the second wave) had a node that was there"
    assert left_out(replace(asked, second_wave=0), schedule) == (
        "only 0 of 1 nodes that lose messages had a node that was there"
    )
    done = [event(one.at, "fault", what=str(one.kind), node=one.node) for one in schedule]
    history = sorted([*one_node_killed(), *done], key=lambda one: one.at)
    check = check_faults(history, len(schedule), measure(history), harmful=3, left_out=words)
    assert (check.verdict, check.reason) == (Verdict.UNKNOWN, words)


def test_mixed_drills_ask_for_no_fault_without_a_node() -> None:
    base = DrillSettings("mixed", nodes=6, kill=0, arrivals=Uniform(3.0, 15.0), batches=50, fail_at=12.0)
    for seed in range(200):
        drawn = draw_settings(replace(base, seed=seed))
        assert left_out(drawn, make_schedule(drawn)) is None


def test_the_driver_comes_back() -> None:
    asked = replace(ASKED, kill_driver=True)
    ((killed, _),), ((started, _),) = (of_kind(asked, kind) for kind in (FaultKind.KILL_DRIVER, FaultKind.START_DRIVER))
    assert 20 < killed < started


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kill": 7, "arrivals": Uniform(1, 2)}, "--kill"),
        ({"arrivals": (1.0,)}, "--arrivals"),
        ({"slow": 4}, "--slow"),
        ({"second_wave": 7}, "--second-wave"),
        ({"drop_packets": 1.0}, "--drop-packets"),
        ({"batches": 20}, "--batches"),
        ({"fail_at": -1.0}, "--fail-at"),
        ({"nodes": 0}, "--nodes"),
        ({"capacity": 0.0}, "--capacity"),
    ],
)
def test_what_cannot_be_done_is_refused(change: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_settings(replace(ASKED, **change))  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("given", ["soon", "1,x", "uniform:5", "uniform:9-3", "-1", "uniform:1-inf", None])
def test_arrivals_that_cannot_be_read(given: object) -> None:
    with pytest.raises(BadInput, match="uniform:10-60"):
        read_arrivals(given)


def test_arrivals() -> None:
    assert read_arrivals("10, 20,30") == (10.0, 20.0, 30.0)
    assert read_arrivals("uniform:10-60") == Uniform(10.0, 60.0)


def test_mixed_drills_can_be_done_and_bring_every_kind_of_fault() -> None:
    base = DrillSettings("mixed", nodes=6, kill=0, arrivals=Uniform(3.0, 15.0), batches=50, fail_at=12.0)
    drawn = [draw_settings(replace(base, seed=seed)) for seed in range(1, 31)]
    for one in drawn:
        check_settings(one)
        assert 2 <= one.kill <= 5
    assert {one.scenario for one in drawn} == set(SCENARIOS)
    assert {one.kill for one in drawn} == {2, 3, 4, 5}
    kinds = {fault.kind for one in drawn for fault in make_schedule(one)}
    assert kinds == set(FaultKind)
    assert draw_settings(replace(base, seed=7)) == draw_settings(replace(base, seed=7))


def test_nodes_to_kill_may_be_named_by_what_they_have() -> None:
    faults = make_schedule(replace(ASKED, kill=2, arrivals=(5.0, 6.0), kill_hosting=("O0[0]", "O1[0]")))
    kills = [one for one in faults if one.kind is FaultKind.KILL]
    assert [(one.node, one.hosting) for one in kills] == [(None, ("O0[0]", "O1[0]"))] * 2

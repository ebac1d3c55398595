"""The study of large rings, small: figures add up, one seed is one result, and the command prints what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput
from holdfast.planning.fragments import choice as fragments
from holdfast.store.ring.leaf_set import leaf_set_size
from holdfast.store.ring.machine import RingSettings
from holdfast_lab.ring_simulation.ring import SimulatedRing
from holdfast_lab.ring_simulation.scenario import RingOutcome, RingScenario, simulate_ring
from holdfast_lab.ring_simulation.states import SimulatedStates
from holdfast_lab.ring_simulation.study import grow, place_states

SMALL = RingScenario(
    peers=60, applications=20, lookups=50, churn_seconds=120.0, coding=Coding(4, 4), other_codings=(), seed=7
)


@pytest.fixture(scope="module")
def outcome() -> RingOutcome:
    return simulate_ring(SMALL)


def test_figures_add_up(outcome: RingOutcome) -> None:
    balance = outcome.balance
    assert balance.fragments == 20 * 8
    assert sum(balance.histogram) == 60
    assert sum(held * peers for held, peers in enumerate(balance.histogram)) == 160
    assert balance.warnings == 0
    assert all(one.right == one.lookups == 50 for one in outcome.routing)
    assert outcome.churn.joins == outcome.churn.leaves + outcome.churn.crashes == 6
    assert outcome.churn.lost_states == 0
    assert outcome.churn.false_losses == 0
    assert outcome.churn.detection_longest <= SMALL.ring_settings.detection
    assert outcome.recovery.settled_after is not None
    assert outcome.recovery.lookups.wrong == 0
    assert outcome.recovery.full_again == outcome.recovery.survived


def test_what_survives_follows_eq_3(outcome: RingOutcome) -> None:
    random = [one for one in outcome.survival if one.predicted is not None]
    assert [one.predicted for one in random] == sorted((one.predicted for one in random), reverse=True)
    for one in random:
        assert one.predicted is not None
        assert abs(one.survived / one.states - one.predicted) < 0.3  # 20 states: a coarse check that cannot flip
    domain = next(one for one in outcome.survival if one.what.startswith("a whole domain"))
    assert domain.survived == domain.states  # at most k = 4 fragments lie in one domain


def test_one_seed_is_one_result(outcome: RingOutcome) -> None:
    assert simulate_ring(SMALL) == outcome


def test_fragments_are_rebuilt_and_too_many_losses_are_told() -> None:
    ring = SimulatedRing(RingSettings(leaf_size=24, keep_alive=10.0, table_period=40.0), seed=3)
    grow(ring, 40)
    states, _ = place_states(ring, 10, Coding(3, 2), repair_seconds=5.0, audit=100.0)
    state = states.states[0]
    dead = [holder.address for index, holder in state.holders.items() if index in (1, 4)]
    for address in dead:
        ring.crash(address)
    assert states.alive(state) == 3
    states.run(ring.settings.detection + 30)
    assert states.alive(state) == 5
    assert states.counts.rebuilt >= 2
    assert not state.lost
    for holder in list(state.holders.values())[:3]:
        ring.crash(holder.address)
    states.run(ring.settings.detection + 130)
    assert state.lost
    assert states.counts.lost_states >= 1
    assert isinstance(states, SimulatedStates)


def test_both_places_that_know_the_leaf_set_size_agree() -> None:
    for n in range(1, 33):
        assert leaf_set_size(n) == fragments.leaf_set_size(Coding(1, n - 1))


def test_the_command_writes_and_prints_the_same_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "ring", "--peers", "30", "--applications", "5", "--lookups", "20", "--churn-seconds", "60"]
    arguments += ["--data-fragments", "4", "--parity-fragments", "4", "--out", str(tmp_path / "sim")]
    assert run([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "sim" / "result.json").read_text())
    assert printed["balance"]["fragments"] == 40
    assert printed["scenario"]["seed"] == 1
    assert run(arguments) == 0
    assert "Correlated failures" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--loss", "1.5"], ["--crash", "1"], ["--keep-alive", "0"]])
def test_bad_options_are_named(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "ring", "--peers", "10", *option]) == 2
    assert option[0] in capsys.readouterr().err


def test_a_ring_needs_two() -> None:
    with pytest.raises(BadInput, match="--peers"):
        RingScenario(peers=1)

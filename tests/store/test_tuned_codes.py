"""Codes that agents tune: what counts as a loss, what slow peers weigh, and what is said of a change."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.erasure.encoding import describe
from holdfast.erasure.fragment import StateHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.agent.acknowledging import losses_wanted
from holdfast.store.agent.agent_files import AgentSettings, CodeSettings, agent_codes, enter_ring, with_code, write_code
from holdfast.store.agent.spool import SaveAnswer, Spool
from holdfast.store.client.peer_speeds import PeerSpeeds, model_weights
from holdfast.store.client.tuning import CodeChoice, CodingTuner, SaveMeasurement, TuningGoals, peers_to_code_for
from holdfast.store.ring.ids import RingId
from holdfast.store.ring.messages import Contact
from holdfast_lab.testing.agents_on_loopback import AgentsOnLoopback

SIZE = 1_000_000


def tuner(chosen: list[CodeChoice] | None = None) -> CodingTuner:
    return CodingTuner(TuningGoals(reliability=0.999, gone=1), (chosen if chosen is not None else []).append)


def header(coding: Coding) -> StateHeader:
    return describe(bytes(SIZE), StateId("a", "b"), BatchId(1), Epoch(1), coding)


@pytest.mark.parametrize(("peers", "code"), [(1, (1, 0)), (2, (1, 1)), (4, (2, 2)), (6, (3, 3)), (16, (10, 4))])
def test_the_first_code_is_about_half_on_small_rings_and_leaner_on_large_ones(
    peers: int, code: tuple[int, int]
) -> None:
    assert tuner().choose(SIZE, peers) == Coding(*code)


def test_saves_that_go_well_are_no_evidence_that_nodes_do_not_fall_together() -> None:
    chosen: list[CodeChoice] = []
    one = tuner(chosen)
    first = one.choose(SIZE, 8)
    for _ in range(300):
        one.saved(header(one.choose(SIZE, 8)), 8, SaveMeasurement(0.001, 0.01, 8, 0))
    assert one.choose(SIZE, 8) == first
    assert len(chosen) == 1, "the first choice is said once"


def test_a_group_that_falls_together_buys_parity_at_once_and_says_why() -> None:
    chosen: list[CodeChoice] = []
    one = tuner(chosen)
    before = one.choose(SIZE, 16)
    one.peers_went(16, 6)
    after = one.choose(SIZE, 16)
    assert after.parity > before.parity
    assert "limits" in chosen[-1].reason
    assert (chosen[-1].data, chosen[-1].parity) == (after.data, after.parity)
    assert chosen[-1].recovery_seconds > 0
    assert one.choose(4 * SIZE * 100, 16).parity >= after.parity, "sizes that are new have learned from it too"


def test_single_losses_change_nothing_and_noise_neither() -> None:
    one = tuner()
    before = one.choose(SIZE, 16)
    for number in range(60):
        one.peers_went(16, 1)
        rate = 0.01 * (1.2 if number % 2 else 0.8)
        one.saved(header(one.choose(SIZE, 16)), 16, SaveMeasurement(0.001, rate, 16, 0))
    assert one.choose(SIZE, 16) == before


def test_predictions_follow_what_was_measured() -> None:
    one = tuner()
    coding = one.choose(SIZE, 6)
    guess = one.predicted_seconds(header(coding), 6)
    for _ in range(10):
        one.loaded(header(coding), 6, 2.0, 0.001, 0)
    assert guess < 0.5
    assert one.predicted_seconds(header(coding), 6) == pytest.approx(2.0, rel=0.2)


def peers(count: int) -> list[Contact]:
    return [Contact(RingId(number), f"peer:{number}") for number in range(count)]


def test_a_slow_peer_weighs_its_share_and_others_one() -> None:
    speeds = PeerSpeeds()
    assert speeds.weighed(peers(3)) == peers(3), "nothing was measured"
    for number, seconds in enumerate((1.0, 1.3, 0.8, 10.0)):
        speeds.measured(f"peer:{number}", 1e6, seconds)
    weights = [one.weight for one in speeds.weighed(peers(5))]
    assert weights[:3] == [1.0, 1.0, 1.0]
    assert 0.05 < weights[3] < 0.2
    assert weights[4] == 1.0, "one that was not measured is taken for usual"
    assert model_weights(speeds.weighed(peers(5)))[-1] == weights[3]
    speeds.measured("peer:0", 0, 1.0)
    speeds.measured("peer:0", 1.0, 0.0)


def test_a_code_is_for_all_that_the_driver_knows() -> None:
    assert peers_to_code_for(2, 6) == 6
    assert peers_to_code_for(6, 2) == 6
    assert losses_wanted(Coding(3, 3), 2, 6) == 3
    assert losses_wanted(Coding(3, 3), 2, 6, 0.5) == 3
    assert losses_wanted(Coding(3, 3), 6, 6, None, Coding(3, 1)) == 1


def test_a_note_that_cannot_be_read_changes_no_settings() -> None:
    given = AgentSettings(survive=0.25)
    assert with_code(given, None) is given
    assert with_code(given, {"survive": 7}) is given
    assert with_code(given, {"strange": 1}) is given
    assert with_code(given, asdict(CodeSettings(survive=None))).survive is None


def told(spool: Spool, name: str, seconds: float = 60.0) -> SaveAnswer:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        answer = spool.saved(name)
        if answer is not None and answer.ok:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"{name}: {spool.saved(name)}")


def test_agents_tune_until_somebody_fixes_the_code_and_old_snapshots_stay_readable(tmp_path: Path) -> None:
    contents = b"0123456789" * 5000
    with AgentsOnLoopback(4, tmp_path) as agents:
        spool, other = agents.spools[0], agents.spools[1]
        spool.save("run/O1-0/1.1", contents, epoch=1, durable=False)
        assert told(spool, "run/O1-0/1.1").survives == 2
        (chosen,) = agent_codes(spool.folder)
        assert (chosen["data"], chosen["parity"]) == (2, 2)
        assert chosen["recovery_seconds"] > 0
        write_code(spool.folder, CodeSettings(3, 1))
        until = time.monotonic() + 60
        for number in range(2, 1000):
            name = f"run/O1-0/{number}.1"
            spool.save(name, contents, epoch=1, durable=False)
            if told(spool, name).survives == 1:
                break
            assert time.monotonic() < until, "the agent did not take the code over"
            time.sleep(0.1)
        agents.kill([3])
        enter_ring(spool.folder, [str(agents.address(number)) for number in range(3)])
        for wanted in ("run/O1-0/1.1", name):
            while (data := other.fetched(wanted)) is None:
                other.fetch(wanted)
                assert other.lost(wanted) is None
                assert time.monotonic() < until + 60
                time.sleep(0.02)
            assert bytes(data) == contents
            origin = other.origin(wanted)
            assert origin is not None
            assert origin.source == "peers"
            assert origin.bytes >= len(contents)
            assert origin.predicted_seconds is not None
        assert {(one.data, one.parity) for one in map(other.origin, ("run/O1-0/1.1", name)) if one} == {(2, 2), (3, 1)}

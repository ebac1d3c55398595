"""When a save is acknowledged: the decision, and agents on real sockets that reach too few others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.erasure.layout import Coding
from holdfast.store.agent.acknowledging import judge, losses_survived, losses_to_survive
from holdfast.store.agent.agent_files import AgentSettings, agent_degraded, enter_ring
from holdfast.store.client.tuning import coding_to_survive
from holdfast_lab.testing.agents_on_loopback import AgentsOnLoopback
from store.test_agents import contents, ok, save, told, wait


@given(st.integers(1, 32), st.floats(0, 0.99))
def test_a_save_on_all_peers_of_a_ring_is_acknowledged(peers: int, share: float) -> None:
    coding = coding_to_survive(peers, share)
    assert coding is not None
    survives = losses_survived([f"peer{number}" for number in range(peers)], coding.data)
    verdict = judge(survives, losses_to_survive(peers, share), tolerant=share > 0)
    assert verdict.acknowledged
    assert verdict.survives == coding.parity
    assert (verdict.line is not None) == (share > 0 and coding.parity == 0)


@given(st.integers(2, 32), st.integers(1, 31), st.floats(0.01, 0.99))
def test_a_save_on_one_side_of_a_cut_is_not(peers: int, reached: int, share: float) -> None:
    """The coding fits the peers that are reached; what is wanted, those that there are."""
    reached = min(reached, peers)
    coding, wanted = coding_to_survive(reached, share), losses_to_survive(peers, share)
    assert coding is not None
    survives = losses_survived([f"peer{number}" for number in range(reached)], coding.data)
    verdict = judge(survives, wanted, tolerant=True)
    assert verdict.acknowledged == (survives >= wanted)
    assert not verdict.acknowledged or verdict.survives >= wanted


@pytest.mark.parametrize(
    ("holders", "data", "survives"),
    [(["a"], 1, 0), (["a", "b"], 1, 1), (["a", "a", "b"], 1, 1), (["a", "a", "b"], 2, 0), (["a"], 2, -1), ([], 1, -1)],
)
def test_a_holder_of_several_fragments_takes_all_with_it(holders: list[str], data: int, survives: int) -> None:
    assert losses_survived(holders, data) == survives


def test_what_is_wanted_follows_what_is_set() -> None:
    assert losses_to_survive(4, 0.5) == 2
    assert losses_to_survive(4, 0.5, Coding(3, 1)) == 1
    assert losses_to_survive(1, 0.5) == 0
    assert losses_to_survive(100, 0.5) == 1
    assert losses_to_survive(100, 0.0) == 0
    assert not judge(-1, 0, tolerant=False).acknowledged, "what is lost already is never acknowledged"


def test_an_agent_that_is_alone_acknowledges_nothing_while_the_driver_knows_others(tmp_path: Path) -> None:
    with AgentsOnLoopback(1, tmp_path, AgentSettings(wait_for_ring=True)) as agents:
        spool, alone = agents.spools[0], [str(agents.address(0))]
        assert save(spool, "run/O1-0/1.1").survives == 0, "one agent is all there is"
        wait(lambda: "no second agent" in str(agent_degraded(spool.folder)))
        enter_ring(spool.folder, [*alone, "127.0.0.1:1"])
        spool.save("run/O1-0/2.1", contents("b", 1000), epoch=1, durable=False)
        refused = told(spool, "run/O1-0/2.1", "1 are wanted")
        assert not refused.final
        enter_ring(spool.folder, alone)  # the driver has given the other one up
        ok(spool, "run/O1-0/2.1")

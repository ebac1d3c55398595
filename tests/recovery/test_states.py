"""The table of states: what it allows, what it refuses, and the page that draws it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import CheckFailed
from holdfast.ids import Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.states import LIVE_STATES, PLACED_STATES, TRANSITIONS, Cause, History, PartitionState, diagram

P = PartitionId(OperatorId("a"), 0)


def test_every_state_is_reached_and_left() -> None:
    assert set(TRANSITIONS.values()) == set(PartitionState)
    assert {state for state, _ in TRANSITIONS} == set(PartitionState)
    assert {cause for _, cause in TRANSITIONS} == set(Cause)


def test_whatever_is_placed_can_be_lost() -> None:
    for state in PLACED_STATES:
        assert TRANSITIONS[state, Cause.NODE_LOST] is PartitionState.LOST
        assert TRANSITIONS[state, Cause.STATE_MISSING] is PartitionState.LOST
        assert TRANSITIONS[state, Cause.ROLLED_BACK] is PartitionState.RESTORING
    assert LIVE_STATES < PLACED_STATES


@pytest.mark.parametrize("state", PartitionState)
@pytest.mark.parametrize("cause", Cause)
def test_a_history_follows_the_table_and_tells_itself(state: PartitionState, cause: Cause) -> None:
    history = History(P)
    history.apply(Cause.PLACED, Epoch(1), NodeId("n1"))
    history.state = state
    if (state, cause) in TRANSITIONS:
        assert history.apply(cause, Epoch(2), NodeId("n2")) is TRANSITIONS[state, cause]
        assert history.transitions[-1].epoch == 2
        return
    with pytest.raises(CheckFailed) as raised:
        history.apply(cause, Epoch(2), None)
    message = str(raised.value)
    assert f"a[0] is {state} and cannot be {cause} in epoch 2" in message
    assert "epoch 1: placed, restoring on n1" in message
    assert history.state is state


def test_a_long_history_keeps_its_end() -> None:
    history = History(P)
    for number in range(100):
        history.apply(Cause.PLACED, Epoch(number), NodeId("n"))
        history.apply(Cause.NODE_LOST, Epoch(number), None)
    assert len(history.transitions) == 64
    assert history.transitions[-1].epoch == 99


def test_the_page_draws_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "failure.md").read_text()
    drawn = page.split("```mermaid\n")[1].split("\n```")[0]
    assert drawn == diagram()

"""Deliberate bugs of the pause of live queries at the bound of outboxes. The simulator must find each; see bugs.py."""

from __future__ import annotations

from typing import Any

from holdfast.recovery import holding_back, pausing
from simulation.bugs import Bug, Patch


def live_query_pauses_for_what_can_be_dropped(patch: Patch) -> None:
    """A live query pauses before the checkpoint at which senders could drop what they keep: it never comes there."""
    patch.setattr(pausing, "can_be_dropped", lambda state, partition: False)


def paused_for_nobody_any_more(patch: Patch) -> None:
    """A live query that pauses goes on only when nothing waits any more, or when outboxes hold half of their bound."""

    def none(state: Any) -> set[Any]:
        return set()

    patch.setattr(holding_back, "paused_in_vain", none)


PAUSING_BUGS = [
    Bug(put_in.__name__, put_in.__doc__ or "", put_in)
    for put_in in (live_query_pauses_for_what_can_be_dropped, paused_for_nobody_any_more)
]

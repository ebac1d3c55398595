"""Deliberate bugs in which queries lead and which catch up. Each puts itself in place of the right rule."""

from __future__ import annotations

import pytest

from holdfast.runtime.coordinator.status import RunStatus
from simulation.bugs import Bug


def nobody_leads(patch: pytest.MonkeyPatch) -> None:
    """Sources follow the log itself where all queries are slow: it grows without bound."""

    def leading(self: RunStatus) -> object:
        queries = self.queries()
        behind = {p for p, one in queries.items() if self.logged - one.frontier >= self._catching_up.lag}
        return min((one.frontier for p, one in queries.items() if p not in behind), default=self.logged)

    patch.setattr(RunStatus, "leading_frontier", property(leading))


def nobody_catches_up(patch: pytest.MonkeyPatch) -> None:
    """Live queries wait for those that are behind, as they did before decision 0270."""
    patch.setattr(RunStatus, "_catch_ups", lambda self, queries: {})


CATCHING_UP_BUGS = [Bug(put_in.__name__, put_in.__doc__ or "", put_in) for put_in in (nobody_leads, nobody_catches_up)]

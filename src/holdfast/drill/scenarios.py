"""What drills run: applications with queries of different priorities, and their seeded input. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.application import Application
from holdfast.drill import chain
from holdfast.errors import BadInput
from holdfast.examples import hashtags, traffic
from holdfast.examples.registry import Batches
from holdfast.ids import OperatorId

HASHTAG_PRIORITIES = (2, 9, 4, 6, 1, 7, 3, 10, 5, 8, 4, 9, 2, 6, 10)
"""Of O0 to O14: all from 1 to 10 (incremental recovery, sec. 6.3), not in the order of the topology."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """An application and its input."""

    name: str
    title: str
    application: Callable[[], Application]
    batches: Callable[[int, int, int], Batches]
    """Of a seed, a number of batches and rows per batch."""


def hashtags_by_priority() -> Application:
    """Return the hashtags of incremental recovery, Fig. 8, with a priority for each of the fifteen queries."""
    app = hashtags.application()
    for number, priority in enumerate(HASHTAG_PRIORITIES):
        app.mark_output(OperatorId(f"O{number}"), priority, None)
    return app


SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for one in (
        Scenario("traffic", traffic.TITLE, traffic.application, traffic.batches),
        Scenario("hashtags", hashtags.TITLE, hashtags_by_priority, hashtags.batches),
        Scenario("chain", chain.TITLE, chain.application, chain.batches),
    )
}


def find_scenario(name: str) -> Scenario:
    """Return a scenario; an unknown name is refused with those there are."""
    if name not in SCENARIOS:
        raise BadInput(
            f"there is no scenario {name!r}", field="SCENARIO", remedy=f"there are {', '.join(SCENARIOS)}, mixed"
        )
    return SCENARIOS[name]

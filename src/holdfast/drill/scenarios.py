"""What drills run: scenarios and examples with seeded input, or a user's application with recorded input.

Runs anywhere. A user's application runs without its own sinks and readers: a drill feeds it recorded rows and collects
its outputs in the drill's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from holdfast.application import Application
from holdfast.application.resolving import unresolved_sources, with_columns
from holdfast.drill import chain, merge_tree
from holdfast.drill.feeds import feeds_of, reads_sources, with_feeds
from holdfast.drill.inputs import read_batches, recorded_columns
from holdfast.drill.settings import DrillSettings
from holdfast.errors import BadInput
from holdfast.examples import hashtags, traffic
from holdfast.examples.registry import EXAMPLES, Batches
from holdfast.ids import OperatorId
from holdfast.loading import find_application, names_application
from holdfast.topology.checks import suggestion

HASHTAG_PRIORITIES = (2, 9, 4, 6, 1, 7, 3, 10, 5, 8, 4, 9, 2, 6, 10)
"""Of the fifteen queries, in their order: all from 1 to 10 (incremental recovery, sec. 6.3), not by the topology."""


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
        app.mark_output(OperatorId(hashtags.query_name(number)), priority, None)
    return app


SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for one in (
        Scenario("traffic", traffic.TITLE, traffic.application, traffic.batches),
        Scenario("hashtags", hashtags.TITLE, hashtags_by_priority, hashtags.batches),
        Scenario("chain", chain.TITLE, chain.application, chain.batches),
    )
}

TREES: dict[str, Scenario] = {
    name: Scenario(name, f"{merge_tree.TITLE} of {window:g} s", merge_tree.of_window(window), merge_tree.batches)
    for name, window in (("merge-tree", 30.0), ("merge-tree-10", 10.0))
}
"""Trees of merges with windows of several lengths; `mixed` does not draw them."""
MIXED = "mixed"
"""What is given for a scenario to draw it from the seed."""


def is_application(name: str) -> bool:
    """Whether a drill's argument names an application of the user's: it has no generator of its input."""
    return name not in SCENARIOS | TREES and name not in EXAMPLES and names_application(name)


def find_scenario(name: str) -> Scenario:
    """Return a scenario, or an example as one; an unknown name is refused with those there are."""
    if (found := (SCENARIOS | TREES).get(name)) is not None:
        return found
    if name in EXAMPLES:
        one = EXAMPLES[name]
        return Scenario(name, one.title, one.application, one.batches)
    beside = f"write {name}.py for the file; " if Path(f"{name}.py").is_file() else ""
    known = suggestion(name, list(dict.fromkeys([*SCENARIOS, *TREES, MIXED, *EXAMPLES])))
    raise BadInput(
        f"there is no scenario {name!r}",
        field="APP|SCENARIO",
        remedy=f"{beside}give my_app.py, my_app.py:name, package.module:name or a scenario; {known}",
    )


def scenario_of(asked: DrillSettings) -> Scenario:
    """Return what a drill runs; with an input of its own, the batches come from there, whatever the seed."""
    if is_application(asked.scenario):
        found = Scenario(
            asked.scenario, asked.scenario, lambda: without_sinks(_load(asked.scenario, Path.cwd())), _no_input
        )
    else:
        found = find_scenario(asked.scenario)
        if reads_sources(asked):
            # Sources that are read in place may have one operator more: the exchange that brings rows to their keys.
            found = replace(found, application=partial(_reading, found.application, asked))
    if asked.input is None:
        return found
    application = partial(_with_recorded_columns, found.application, Path(asked.input))
    return Scenario(found.name, found.title, application, partial(_recorded, application, Path(asked.input)))


def _reading(application: Callable[[], Application], asked: DrillSettings) -> Application:
    app = application()
    return with_feeds(app, feeds_of(app, asked))


@cache
def _load(name: str, working_directory: Path) -> Application:
    """Execute a user's file once in a process and working directory, however often its application is asked for."""
    return find_application(name)


def without_sinks(app: Application) -> Application:
    """Return the application without its sinks: a drill must not write where the application really writes."""
    bare = copy(app)
    bare.sinks = {}
    return bare


def _with_recorded_columns(application: Callable[[], Application], folder: Path) -> Application:
    """Return the application with the columns of the recorded rows, where a source declares none."""
    app = application()
    open_ones = unresolved_sources(app)
    return with_columns(app, recorded_columns(app, folder, open_ones)) if open_ones else app


def _recorded(application: Callable[[], Application], folder: Path, seed: int, count: int, rows: int) -> Batches:
    return read_batches(application(), folder, count, rows)


def _no_input(seed: int, count: int, rows: int) -> Batches:
    raise BadInput(
        "an application's input is recorded first", field="input", remedy="record it with `prepare_input`, or name one"
    )

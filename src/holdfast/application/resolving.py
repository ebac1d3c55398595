"""The columns of an application whose sources name theirs only at the start. Runs anywhere.

Columns follow from the sources' through windows and joins; a `map` or `flat_map` without a schema leaves them unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from holdfast.application import steps
from holdfast.application.build import Application
from holdfast.application.columns import TIMES, Schema, need_columns, need_kind
from holdfast.application.conditions import check_condition
from holdfast.application.derived_columns import aggregate_columns, distinct_columns, join_columns, top_columns
from holdfast.errors import BadInput
from holdfast.ids import OperatorId


def unresolved_sources(app: Application) -> list[OperatorId]:
    """Return the sources whose columns are not known yet."""
    return [name for name, step in app.steps.items() if isinstance(step, steps.Source) and app.columns[name] is None]


def with_columns(app: Application, known: Mapping[str, Schema]) -> Application:
    """Return the application with the columns of these sources, and all that follow from them.

    What was not checked while the columns were unknown is checked now: keys, event times, conditions, aggregates,
    joins.
    """
    resolved = copy(app)
    resolved.columns = dict(app.columns)
    try:
        for name, step in app.steps.items():  # in the order they were written: inputs before consumers
            if resolved.columns[name] is None:
                resolved.columns[name] = _columns(resolved, name, step, known)
            _check_keys(resolved, name)
    except BadInput as error:
        raise error.placed(f"application {app.name}") from None
    return resolved


def _columns(app: Application, name: OperatorId, step: steps.Step, known: Mapping[str, Schema]) -> Schema | None:
    feeds = [app.columns[feed.source] for feed in app.operator(name).inputs]
    match step:
        case steps.Source():
            columns = known.get(name)
            if columns is not None and step.event_time is not None:
                need_kind(columns, step.event_time, TIMES, "a time or a number of seconds", field=f"{name}.event_time")
            return columns
        case steps.Filter():
            check_condition(step.condition, feeds[0], field=name)
            return feeds[0]
        case steps.Spread():
            return feeds[0]
        case steps.WindowAggregate():
            return aggregate_columns(feeds[0], step.keys, step.window, step.aggregates, field=name)
        case steps.TopK():
            return top_columns(feeds[0], step.keys, step.window, step.by, field=name)
        case steps.Distinct():
            return distinct_columns(feeds[0], step.columns, step.window, field=name)
        case steps.WindowJoin():
            return join_columns(feeds[0], feeds[1], step.keys, field=name)
    return None  # a function of the user's makes the rows


def _check_keys(app: Application, name: OperatorId) -> None:
    """Refuse keys that the rows do not have: a source's own rows, or those an operator takes."""
    feeds = [feed.source for feed in app.operator(name).inputs] or [name]
    for feed, keys in zip(feeds, app.keys[name], strict=True):
        need_columns(app.columns[feed], keys, field=f"{name}.key_by" if feed != name else f"{name}.key")

"""Settings of Kafka clients stay out of a run's directory: they may be secrets. Runs on the driver.

A run keeps its application, for the day on which another layout takes over. What is kept has no settings of clients;
whoever loads it takes them from the application that is being started.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from holdfast.application import Application, KafkaTopic, steps
from holdfast.ids import OperatorId


def without_settings(app: Application) -> Application:
    """Return an application as it may be kept."""
    return _changed(app, {})


def with_settings_of(old: Application, new: Application) -> Application:
    """Return an application that was kept, with the settings of the one that is being started."""
    return _changed(old, {name: reader for name, step in new.steps.items() if (reader := _topic(step)) is not None})


def _changed(app: Application, known: dict[OperatorId, KafkaTopic]) -> Application:
    found = copy(app)
    found.steps = {name: _step(step, known.get(name)) for name, step in app.steps.items()}
    return found


def _step(step: steps.Step, known: KafkaTopic | None) -> steps.Step:
    reader = _topic(step)
    if reader is None or not isinstance(step, steps.Source):
        return step
    settings = () if known is None else known.settings
    servers = reader.servers if known is None else known.servers
    return replace(step, reader=replace(reader, settings=settings, servers=servers))


def _topic(step: steps.Step) -> KafkaTopic | None:
    return step.reader if isinstance(step, steps.Source) and isinstance(step.reader, KafkaTopic) else None

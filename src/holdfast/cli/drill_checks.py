"""What `holdfast drill` refuses before it starts anything, besides what the settings themselves say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.drill.settings import DrillSettings


def check_plans(asked: DrillSettings, scenarios: set[str], *, random_plans: bool) -> None:
    """Refuse plans to draw that nothing draws or that are given already, and one file for several topologies."""
    from holdfast.drill.scenarios import MIXED
    from holdfast.errors import BadInput

    if random_plans and asked.scenario != MIXED:
        raise BadInput(
            "only mixed drills draw plans", field="--random-plans", remedy="give mixed, or a plan with --plan"
        )
    if random_plans and (asked.plan is not None or asked.recovery or asked.overhead is not None):
        given = "--plan" if asked.plan is not None else "--recovery" if asked.recovery else "--overhead"
        raise BadInput(f"does not go with {given}: plans are drawn", field="--random-plans", remedy="leave one out")
    if asked.plan not in (None, "auto") and len(scenarios) > 1:
        raise BadInput(
            f"{asked.plan} cannot be a plan for {', '.join(sorted(scenarios))}: a plan is made for one topology",
            field="--plan",
            remedy="give --random-plans to draw one for each drill, --plan auto, or one scenario",
        )


def check_application(asked: DrillSettings) -> None:
    """Refuse what an application cannot have in a drill, or an input that is missing, before anything is started."""
    from holdfast.application import steps
    from holdfast.drill.inputs import is_recorded, read_input
    from holdfast.drill.scenarios import is_application, scenario_of
    from holdfast.errors import BadInput

    if asked.feed == "kafka" and is_application(asked.scenario):
        raise BadInput(
            "an application's sources are fed as it reads them",
            field="--feed kafka",
            remedy="leave it out: sources with hf.kafka read a topic of the drill",
        )
    if asked.strategy == "structured-streaming" and is_application(asked.scenario):
        raise BadInput(
            "runs the traffic scenario only, not an application",
            field="--strategy structured-streaming",
            remedy="leave it out, or drill traffic",
        )
    if asked.input is not None:
        app = scenario_of(replace(asked, input=None)).application()
        if not is_recorded(Path(asked.input)):
            read_input(app, Path(asked.input), asked.batches * asked.rows)
    elif is_application(asked.scenario):
        app = scenario_of(asked).application()
        for name, step in app.steps.items():
            if isinstance(step, steps.Source) and step.reader is None:
                raise BadInput(
                    "has no reader, so there is nothing to record",
                    where=asked.scenario,
                    field=name,
                    remedy="give its rows with --input DIR, or the source a reader",
                )

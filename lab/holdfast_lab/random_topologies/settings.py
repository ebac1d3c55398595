"""The settings of a recipe: read off its signature, so that help, checks and defaults are written once. Runs anywhere.

A recipe is a function `(seed, *, setting: Annotated[type, "what it is"] = default) -> Topology`; types are int, float,
bool, or a Literal of texts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from holdfast.errors import BadInput
from holdfast.topology import checks
from holdfast.topology.model import Topology

Value = int | float | bool | str
MOST_COUNTED = 10_000
"""Operators, queries or partitions that one setting may ask for; above it a recipe would run for minutes."""
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a recipe."""

    name: str
    kind: type
    default: Value
    help: str
    choices: tuple[str, ...] = ()

    def read(self, given: object) -> Value:
        """Read a value, from text or as it is; refuse what does not fit, saying what would."""
        if self.choices:
            if given not in self.choices:
                raise BadInput(
                    f"{checks.describe(given)} is not a choice",
                    field=self.name,
                    remedy=f"use {', '.join(self.choices[:-1])} or {self.choices[-1]}",
                )
            return str(given)
        if self.kind is bool:
            known = _TRUTH.get(str(given).strip().lower())
            if known is None:
                raise BadInput(f"{checks.describe(given)} is neither true nor false", field=self.name)
            return known
        value = self._number(given)
        if value is None or not math.isfinite(value):
            raise BadInput(
                f"{checks.describe(given)} is not {'a whole number' if self.kind is int else 'a number'}",
                field=self.name,
                remedy=f"write for example {self.name}={self.default}",
            )
        return value

    def _number(self, given: object) -> int | float | None:
        if isinstance(given, bool) or not isinstance(given, int | float | str):
            return None
        try:
            value = float(given) if self.kind is float else int(given)
        except (OverflowError, ValueError):
            return None
        return value if isinstance(given, str) or value == given else None


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to make random topologies."""

    name: str
    function: Callable[..., Topology]
    help: str
    """What comes out, in one line."""
    origin: str
    """The paper and section it follows."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Return what can be set, with defaults."""
        hints = get_type_hints(self.function, include_extras=True)
        found = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                continue
            kind, text = get_args(hints[name])[:2]
            choices = tuple(get_args(kind)) if get_origin(kind) is Literal else ()
            found.append(Setting(name, str if choices else kind, parameter.default, text, choices))
        return tuple(found)

    def build(self, seed: int, given: Mapping[str, object] | None = None) -> Topology:
        """Make the topology of this seed, with settings as given (texts are read) and defaults for the rest."""
        if problem := checks.whole_problem(seed, 0):
            raise BadInput(problem, field="seed", remedy="give a whole number of 0 or more")
        known = {setting.name: setting for setting in self.settings}
        values: dict[str, Any] = {}
        for name, value in (given or {}).items():
            if name not in known:
                raise BadInput(
                    f"recipe {self.name} has no setting {name!r}",
                    field=name,
                    remedy=checks.suggestion(name, list(known)),
                )
            values[name] = known[name].read(value)
        return self.function(seed, **values)


def counts(**values: int) -> None:
    """Refuse numbers of things that are below one or too large."""
    at_least(1, **values)
    for name, value in values.items():
        if value > MOST_COUNTED:
            raise BadInput(f"{value:,} is too many", field=name, remedy=f"use at most {MOST_COUNTED:,}")


def at_least(least: float, **values: float) -> None:
    """Refuse settings below a limit."""
    for name, value in values.items():
        if value < least:
            raise BadInput(f"must be {least:g} or more, not {value:g}", field=name, remedy=f"write {name}={least:g}")


def share(**values: float) -> None:
    """Refuse settings that are not a share between 0 and 1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise BadInput(f"must be from 0 to 1, not {value:g}", field=name, remedy=f"write for example {name}=0.5")


def ordered(**values: float) -> None:
    """Refuse a lowest value above the highest one; give two settings, lowest first."""
    (low_name, low), (high_name, high) = values.items()
    if low > high:
        raise BadInput(
            f"{low:g} is above {high_name} {high:g}", field=low_name, remedy=f"keep {low_name} at most {high_name}"
        )

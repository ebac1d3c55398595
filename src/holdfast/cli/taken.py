"""What a plan command takes from a profile in the place of options that are not given, and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import BadInput

MEASURED, ASSUMED = "measured", "assumed"


class Taken:
    """Values for options that were not given: a profile is enough, any other topology is not."""

    def __init__(self, measured: Mapping[str, Any] | None) -> None:
        """`measured`: what the profile says of its measurement; None: the topology is no profile."""
        self._measured = measured
        self._found: dict[str, tuple[float, str]] = {}

    def value(self, option: str, given: float | None, known: float | None, otherwise: float, why: str) -> float:
        """Return what was given, else what was measured (`known`), else a value with the reason for it."""
        if given is not None:
            return given
        if self._measured is None:
            raise BadInput(
                "is missing", field=option, remedy="give it, or plan for a file that `holdfast profile` wrote"
            )
        value, source = (otherwise, f"{ASSUMED}: {why}") if known is None else (known, MEASURED)
        self._found[option] = value, source
        return value

    def document(self) -> dict[str, Any]:
        """Return what was taken, by option, as JSON has it: nothing where all was given."""
        if not self._found:
            return {}
        return {"taken": {name: {"value": value, "from": source} for name, (value, source) in self._found.items()}}

    def lines(self) -> list[str]:
        """Return a line for people where something was taken."""
        if not self._found:
            return []
        words = ", ".join(f"{name} {value:.4g} ({source})" for name, (value, source) in self._found.items())
        return [f"not given: {words}"]

"""The closed set of ways a Holdfast command ends other than well, each with its exit status.

Runs anywhere. Every error is one line that says what was wrong, where, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class HoldfastError(Exception):
    """What all of them are; `status` is the exit status of the command that meets it."""

    status: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str | None = None, field: str | None = None, remedy: str | None = None):
        self.what = what
        self.where = where
        self.field = field
        self.remedy = remedy
        super().__init__(what)

    def __str__(self) -> str:
        # Each part is cut on its own, so that a long one never pushes the next out of the line.
        place = [one_line(self.where or "", 1000), one_line(self.field or "", 300)]
        line = ": ".join([*filter(None, place), one_line(self.what)])
        return f"{line}; {one_line(self.remedy)}" if self.remedy else line

    def placed(self, where: str) -> HoldfastError:
        """Return the same error, naming the file it was met in."""
        return type(self)(self.what, where=where, field=self.field, remedy=self.remedy)


class CheckFailed(HoldfastError):
    """A check ran and said no (status 1)."""

    status = 1


class BadInput(HoldfastError):
    """The input or the usage is wrong (status 2)."""

    status = 2


class NoPlan(HoldfastError):
    """No plan meets what was asked for (status 3)."""

    status = 3


class Undecided(HoldfastError):
    """It could not be decided within the limits (status 4)."""

    status = 4


EXTRAS = {
    "ortools": "plan",
    "matplotlib": "plots",
    "pyspark": "spark",
    "py4j": "spark",
    "pandas": "spark",
    "obstore": "objects",
    "deltalake": "delta",
    "opentelemetry": "otel",
    "confluent_kafka": "kafka",
    "fastavro": "avro",
}
"""Which extra of the package brings a module that is not always there."""


def missing_extra(error: ModuleNotFoundError) -> BadInput | None:
    """Say which extra brings a module that was not found; None where it is none of those."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return BadInput(f"{module} is not installed", remedy=f"run `pip install 'holdfast[{EXTRAS[module]}]'`")


def one_line(text: str, longest: int = 500) -> str:
    """Fold anything into one printable line, cut where it is very long."""
    folded = "".join(c if c.isprintable() else " " for c in text)
    folded = " ".join(folded.split())
    return folded if len(folded) <= longest else folded[: longest - 1] + "…"

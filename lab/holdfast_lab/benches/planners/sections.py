"""What a section of the planners' bench is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

Facts = Mapping[str, object]
"""What is worth printing about an answer: its priority, whether it is optimal, …"""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure. It runs in a process of its own, so `prepare` must not need anything but imports."""

    name: str
    size: int
    """What growth is measured over."""
    prepare: Callable[[], Callable[[], Facts]]
    """Make the input; return what is timed."""
    series: str = ""
    """Cases of one series are compared with each other: growth is within a series."""
    limit_seconds: float | None = None
    """What we promise for the median, where we promise something."""


@dataclass(frozen=True, slots=True)
class Section:
    """The cases of one kind of plan."""

    name: str
    title: str
    cases: Callable[[], list[Case]]


def all_sections() -> dict[str, Section]:
    """Return the sections by name: every module of this package that has one."""
    package = __name__.rpartition(".")[0]
    path = import_module(package).__path__
    modules = (import_module(f"{package}.{found.name}") for found in iter_modules(path))
    sections = [module.SECTION for module in modules if hasattr(module, "SECTION")]
    return {section.name: section for section in sorted(sections, key=lambda one: one.name)}

"""The lab: experiments, benches, baselines and the papers' topologies, a package of its own that is not in the wheel.

Runs anywhere. Only this module names it: what needs the lab asks here, and ends with one clear line where it is
missing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from holdfast.errors import BadInput

PACKAGE = "holdfast_lab"


def has_lab() -> bool:
    """Whether the lab is installed: in a checkout, after `make setup`."""
    return find_spec(PACKAGE) is not None


def lab_module(name: str, *, needed_by: str) -> ModuleType:
    """Import a module of the lab; without the lab, say what needs it and where it is."""
    if not has_lab():
        raise BadInput(
            "is part of the lab, which is not in the wheel",
            where=needed_by,
            remedy="run it from a checkout of the repository, after `make setup`",
        )
    return import_module(f"{PACKAGE}.{name}")

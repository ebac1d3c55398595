"""Modules of the user's own travel to the nodes with the application, by value. Runs on the driver."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def send_by_value(modules: Iterable[str]) -> None:
    """Pickle functions of these modules by value: executors cannot import them from the driver's folders."""
    from pyspark import cloudpickle

    for name in modules:
        if (module := sys.modules.get(name)) is not None:
            cloudpickle.register_pickle_by_value(module)

"""Modules of the user's own travel to the nodes with the application, by value. Runs on the driver.

Executors cannot import what lies beside the user's program; and an application that is kept with its run must not
change when its files do. So functions and classes of such modules are pickled by value, and with them whatever they
refer to. What is installed (the standard library, packages in site-packages, Holdfast) is imported by the nodes
themselves.
"""

from __future__ import annotations

import io
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType

_INSTALLED = ("holdfast", "holdfast_lab")


def pickled(value: object) -> bytes:
    """Return a value as bytes for the nodes, with the user's own modules by value."""
    from pyspark import cloudpickle

    class OwnByValue(cloudpickle.Pickler):  # type: ignore[misc]
        """Registers each module of the user's own when the first thing of it is met."""

        def reducer_override(self, obj: object) -> object:
            if isinstance(obj, type | FunctionType | ModuleType):
                name = obj.__name__ if isinstance(obj, ModuleType) else obj.__module__
                if is_own(name):
                    cloudpickle.register_pickle_by_value(sys.modules[name])
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    OwnByValue(buffer).dump(value)
    return buffer.getvalue()


def send_by_value(function: object) -> None:
    """Let PySpark pickle by value what a function refers to, too: functions of columns that a reader applies."""
    with suppress(Exception):  # a reader stays on the driver: it may refer to what cannot be pickled
        pickled(function)


def is_own(name: str | None) -> bool:
    """Whether a module is the user's own: imported from a file that is not installed."""
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    if name is None or file is None or name == "__main__" or name.partition(".")[0] in _INSTALLED:
        return False  # cloudpickle takes the main module by value in any case
    path = Path(file).absolute()
    return not {"site-packages", "dist-packages"}.intersection(path.parts) and not any(
        path.is_relative_to(sysconfig.get_path(one)) for one in ("stdlib", "platstdlib")
    )

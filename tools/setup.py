"""Build .venv from the lock files; bring a Java where the machine has none.

Runs with nothing but Python 3.11+ and its standard library. It is quick when there is nothing to do, so that
`make demo` and `make test` can always call it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".holdfast-setup"
LOCKS = ("requirements-build.lock", "requirements.lock")
JAVA_LOCK = "requirements-java.lock"


def fingerprint() -> str:
    """What the environment was built from: the locks, the project file, this Python."""
    digest = hashlib.sha256(sys.version.encode())
    for name in (*LOCKS, "pyproject.toml", "lab/pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    digest.update(str(ROOT).encode())
    return digest.hexdigest()


def run(*command: str | Path) -> None:
    """Run a command in the project; stop with one line when it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        words = " ".join(str(part) for part in command[1:4])
        sys.exit(f"setup: `{words} …` failed with status {done.returncode}; mend what it says above, then `make setup`")


def pip_install(*arguments: str) -> None:
    """Install into .venv, quietly."""
    run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def build() -> None:
    """Make the environment anew."""
    print("setup: building .venv from the lock files (a few minutes the first time)", flush=True)
    run(sys.executable, "-m", "venv", "--clear", VENV)
    pip_install("--require-hashes", "-r", LOCKS[0])
    # pyspark comes as a source archive: it is built with the setuptools locked above, not with one fetched unseen.
    pip_install("--require-hashes", "--no-build-isolation", "-r", LOCKS[1])
    pip_install("--no-build-isolation", "--no-deps", "-e", ".", "-e", "lab")


def java_found() -> bool:
    """Ask the installed package whether it can find a Java that Spark runs on."""
    done = subprocess.run([str(PYTHON), "-m", "holdfast.spark.java"], cwd=ROOT, check=False, capture_output=True)
    return done.returncode == 0


def main() -> None:
    """Set up whatever is missing."""
    if sys.version_info < (3, 11):  # noqa: UP036  this script meets any Python
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"setup: Holdfast needs Python 3.11 or newer, this is {version}; try `make setup PYTHON=python3.12`")
    wanted = fingerprint()
    if not STAMP.exists() or STAMP.read_text() != wanted:
        build()
        STAMP.write_text(wanted)
        print("setup: .venv is ready", flush=True)
    if not java_found():
        print("setup: no Java 17 or newer on this machine; bringing one from the Python package index", flush=True)
        pip_install("--require-hashes", "-r", JAVA_LOCK)
        if not java_found():
            sys.exit("setup: the Java from the package index does not start here; install Java 17+, then `make setup`")


if __name__ == "__main__":
    main()

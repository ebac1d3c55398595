"""Tests of running applications, on other versions of Spark than the locked one.

Run: `python tools/try_spark_versions.py 4.0.5 4.1.4 4.2.1`. Each version is fetched from the Python package index into
a folder of its own, goes before the installed one on the path, and runs the cluster tests named with `--tests`. Ends
with status 1 if a test fails on one of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = ("tests/spark/test_run.py", "tests/spark/test_ingest.py", "tests/spark/test_run_command.py")
ROOT = Path(__file__).parent.parent


def main() -> int:
    """Fetch each version, run the tests on it, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+", help="of pyspark, like 4.0.5")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="what pytest is given")
    options = parser.parse_args()
    failed = []
    for version in options.versions:
        with tempfile.TemporaryDirectory(prefix=f"holdfast-spark-{version}-") as folder:
            fetch = [sys.executable, "-m", "pip", "install", "-qq", "--target", folder, f"pyspark=={version}"]
            subprocess.run(fetch, check=True)
            surroundings = os.environ | {"PYTHONPATH": folder}
            seen = subprocess.run(
                [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"],
                check=True,
                capture_output=True,
                text=True,
                env=surroundings,
            ).stdout.strip()
            if seen != version:
                print(f"{version}: {seen} was found in its place")
                return 1
            # Older ones leave sockets for the collector to close, and Python warns of it.
            calm = ["-p", "no:cacheprovider", "-o", "filterwarnings=default"]
            tests = [sys.executable, "-m", "pytest", "-q", *calm, *options.tests]
            done = subprocess.run(tests, check=False, capture_output=True, text=True, env=surroundings, cwd=ROOT)
            print(f"Spark {version}: {(done.stdout.strip().splitlines() or [done.stderr[-400:]])[-1]}", flush=True)
            if done.returncode:
                failed.append(version)
                print(done.stdout[-4000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

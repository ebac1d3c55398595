"""Records what an application's sources deliver, in a process of its own, before a drill. Runs beside the cluster.

`python -m holdfast.drill.recorder JOB` loads the application, reads its sources in a session of its own (`local[2]`:
the cluster that the drill breaks is not needed for it) and writes the rows as a folder that drills read. Its JVM ends
with it. What goes wrong is in a file beside the job, as the parts of the one line that the drill prints.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.drill.inputs import need_rows, write_input
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.loading import find_application
from holdfast.spark.process_reaper import ProcessReaper

MASTER = "local[2]"
RECORD_SECONDS = 600.0
"""How long it may take in all."""


def record(given: str, folder: Path, work: Path, limit: int) -> None:
    """Record at most so many rows of each source of an application into a folder; logs go into `work`."""
    job, log, problem = work / "recorder.json", work / "recorder.log", work / "recorder-problem.json"
    job.write_text(json.dumps({"app": given, "folder": str(folder), "limit": limit, "problem": str(problem)}))
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.drill.recorder", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    reaper = ProcessReaper()
    reaper.watch_group(process.pid)
    try:
        status = process.wait(RECORD_SECONDS)
    except subprocess.TimeoutExpired:
        raise CheckFailed(
            f"recording took more than {RECORD_SECONDS:.0f} s",
            where=given,
            remedy=f"see {log}, or give rows with --input DIR",
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):  # its JVM may be there still, it may not
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reaper.close()
    if problem.exists():
        raise _error(json.loads(problem.read_text()))
    if status:
        lines = log.read_text(errors="replace").strip().splitlines() or ["it logged nothing"]
        raise CheckFailed(f"recording its sources failed: {lines[-1]}", where=given, remedy=f"see {log}")


def _error(parts: dict[str, str | None]) -> HoldfastError:
    kind = BadInput if parts["kind"] == "BadInput" else CheckFailed
    return kind(str(parts["what"]), where=parts["where"], field=parts["field"], remedy=parts["remedy"])


def main(arguments: list[str]) -> int:
    """Do one job; status 0 where every source has rows."""
    from holdfast.spark.record_sources import record_sources
    from holdfast.spark.session import start_session, stop_session

    path = Path(arguments[0])
    job = json.loads(path.read_text())
    checkpoints = path.with_name("recorder-checkpoints")
    try:
        app = find_application(job["app"])
        spark = start_session(f"holdfast recording {app.name}", MASTER)
        try:
            tables = record_sources(app, spark, checkpoints, job["limit"])
        finally:
            stop_session(spark)
            shutil.rmtree(checkpoints, ignore_errors=True)
        need_rows({name: table.num_rows for name, table in tables.items()}, f"application {app.name}")
        write_input(tables, Path(job["folder"]))
    except HoldfastError as error:
        parts = {"what": error.what, "where": error.where, "field": error.field, "remedy": error.remedy}
        Path(job["problem"]).write_text(json.dumps({"kind": type(error).__name__, **parts}))
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Spark's classes in a form that a JVM maps instead of reading and checking them: half the CPU of a JVM's start.

Runs on the driver's machine. An embedded cluster of three nodes starts eight JVMs that load the same classes. Java's
class-data sharing keeps them in one file, made on request for a Java and a Spark (`python -m
holdfast.spark.class_archive`): a small run records which classes its JVMs load, then `java -Xshare:dump` writes them.
The file is beside the installed packages, so that only who may replace those may replace it. A JVM whose Java or class
path is another one starts without it, as does one where there is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import CheckFailed, HoldfastError, one_line
from holdfast.spark.java import find_java_home

DUMP_SECONDS = 600.0
_FLAG = "-XX:SharedArchiveFile="


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive, and the class path that it is for."""

    file: Path
    class_path: str

    @property
    def option(self) -> str:
        """What a JVM is started with."""
        return f"{_FLAG}{self.file}"


def spark_home() -> Path:
    """Return where PySpark has its jars."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def find_archive(java: Path, home: Path) -> ClassArchive | None:
    """Return the archive for this Java and this Spark; None where none was made."""
    file = archive_file(java, home)
    try:
        return (
            ClassArchive(file, json.loads(file.with_suffix(".json").read_bytes())["class_path"])
            if file.exists()
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def archive_file(java: Path, home: Path, prefix: Path | None = None) -> Path:
    """Return where the archive for this Java and this Spark is, or would be."""
    jars = sorted((one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in (home / "jars").glob("*.jar"))
    release = java.resolve() / "release"
    about = [str(java.resolve()), release.read_text() if release.exists() else "", str(home), jars]
    key = hashlib.blake2b(json.dumps(about).encode(), digest_size=8).hexdigest()
    return (prefix or Path(sys.prefix)) / "share" / "holdfast" / "classes" / f"{key}.jsa"


def with_archive(settings: Mapping[str, str], java: Path, home: Path) -> dict[str, str]:
    """Return settings of a session whose driver and executors, on this machine, use the archive where there is one."""
    found = find_archive(java, home)
    changed = dict(settings)
    if found is not None:
        for key in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
            if _FLAG not in changed.get(key, ""):
                changed[key] = f"{changed.get(key, '')} {found.option}".strip()
    return changed


def make_archive(log: Callable[[str], object] = print) -> Path:
    """Record which classes a small run loads, and write them down; return the archive."""
    java, home = find_java_home(), spark_home()
    file = archive_file(java, home)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # what is recorded must be loaded, not mapped
    with tempfile.TemporaryDirectory(prefix="holdfast-classes-") as folder:
        log("recording which classes a run on an embedded cluster loads")
        class_path = _record(Path(folder))
        names = {
            line
            for one in Path(folder).glob("*.lst")
            for line in one.read_text(errors="replace").splitlines()
            if line and not line.startswith(("#", "@"))
        }
        listed = Path(folder) / "classes"
        listed.write_text("\n".join(sorted(names)) + "\n")
        log(f"writing {len(names):,} classes to {file}")
        _dump(java, listed, file, class_path)
    return file


def _dump(java: Path, listed: Path, file: Path, class_path: str) -> None:
    part = file.with_name(f"{file.stem}-{os.getpid()}.part")
    command = [str(java / "bin" / "java"), "-Xshare:dump", f"-XX:SharedClassListFile={listed}", f"{_FLAG}{part}"]
    command += ["-XX:+UseSerialGC", "-Xlog:disable", "-cp", class_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_SECONDS, check=False)
    if ended.returncode or not part.exists():
        part.unlink(missing_ok=True)
        last = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:] or ["nothing was printed"]
        raise CheckFailed(
            f"java -Xshare:dump failed: {last[0]}", where=str(file), remedy="starts are slower without it"
        )
    file.with_suffix(".json").write_text(json.dumps({"class_path": class_path}))
    part.replace(file)


def _record(folder: Path) -> str:
    """Run a small application on an embedded cluster of one node, whose JVMs list their classes; return the path."""
    import holdfast as hf
    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast.spark.session import quiet_logs, start_session, stop_session

    def listing(name: str) -> str:
        return f"-XX:DumpLoadedClassList={folder / name}.lst"

    rows = folder / "rows"
    rows.mkdir()
    (rows / "0.csv").write_text("".join(f"2026-01-01T00:00:{second:02d},a,1.5\n" for second in range(60)))
    app = hf.Application("classes")
    source = app.source(
        "rows",
        hf.files(str(rows), format="csv"),
        schema="ts timestamp, page string, ms double",
        event_time="ts",
        lateness="1 second",
    )
    source.key_by("page").window(hf.tumbling("10 seconds")).agg(n=hf.count()).output("pages", sink=hf.memory())
    with EmbeddedCluster(1, jvm_options=lambda name: [listing(name)]) as cluster:
        spark = start_session(
            "holdfast classes",
            cluster.master_url,
            settings={
                "spark.holdfast.store.secretFile": str(cluster.secret_file),
                "spark.driver.extraJavaOptions": f"{listing('driver')} {quiet_logs()}",
                "spark.executor.extraJavaOptions": listing("executor"),
            },
        )
        try:
            run = hf.start(app, spark, directory=folder / "run", available_now=True)
            run.awaitTermination()
            jvm = spark.sparkContext._jvm
            assert jvm is not None
            return str(jvm.java.lang.System.getProperty("java.class.path"))
        finally:
            stop_session(spark)


def main(arguments: Sequence[str]) -> int:
    """Make the archive. `--if-missing`: only where there is none; a failure is one line, and the status is 0."""
    if_missing = list(arguments) == ["--if-missing"]
    if arguments and not if_missing:
        print("usage: python -m holdfast.spark.class_archive [--if-missing]", file=sys.stderr)  # noqa: T201
        return 2
    try:
        if not if_missing or find_archive(find_java_home(), spark_home()) is None:
            make_archive()
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)  # noqa: T201
        return 0 if if_missing else error.status
    except Exception as error:
        if not if_missing:
            raise
        line = one_line(f"{type(error).__name__}: {error}", 200)
        print(f"holdfast: no class archive, JVMs start slower: {line}", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

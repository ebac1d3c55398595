"""A second reader of Delta tables, for tests: Delta Kernel, the Java library of the Delta project, not of delta-rs.

It is light where PySpark is: three jars from Maven (3 MB) beside Hadoop's and Parquet's, which PySpark brings, and it
does not depend on the version of Spark, as Delta's connector does. The jars stay in the user's cache folder:
`python -m holdfast_lab.delta_kernel` fetches them beforehand. The program below is compiled by `java` as it starts.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import BadInput, one_line

VERSION = "4.2.0"
JARS = ("delta-kernel-api", "delta-kernel-defaults", "delta-storage")
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
FETCH_SECONDS = 200
READ_SECONDS = 120

_SOURCE = """
import io.delta.kernel.*;
import io.delta.kernel.data.*;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.engine.*;
import io.delta.kernel.internal.InternalScanFileUtils;
import io.delta.kernel.internal.data.ScanStateRow;
import io.delta.kernel.internal.util.Utils;
import io.delta.kernel.types.*;
import io.delta.kernel.utils.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.hadoop.conf.Configuration;

public class DeltaRows {
  static final com.fasterxml.jackson.databind.ObjectMapper JSON = new com.fasterxml.jackson.databind.ObjectMapper();

  public static void main(String[] given) throws Exception {
    var out = new java.io.PrintStream(System.out, false, StandardCharsets.UTF_8);
    Engine engine = DefaultEngine.create(new Configuration());
    Snapshot snapshot = Table.forPath(engine, given[0]).getLatestSnapshot(engine);
    Map<String, Object> versions = new TreeMap<>();
    for (int at = 1; at < given.length; at++)
      versions.put(given[at], ((io.delta.kernel.internal.SnapshotImpl) snapshot)
          .getLatestTransactionVersion(engine, given[at]).orElse(null));
    out.println(JSON.writeValueAsString(versions));
    Scan scan = snapshot.getScanBuilder().build();
    Row state = scan.getScanState(engine);
    StructType physical = ScanStateRow.getPhysicalDataReadSchema(state);
    try (var files = scan.getScanFiles(engine)) {
      while (files.hasNext()) try (var rows = files.next().getRows()) {
        while (rows.hasNext()) {
          Row file = rows.next();
          FileStatus status = InternalScanFileUtils.getAddFileStatus(file);
          CloseableIterator<ColumnarBatch> data = engine.getParquetHandler()
              .readParquetFiles(Utils.singletonCloseableIterator(status), physical, Optional.empty())
              .map(FileReadResult::getData);
          try (var found = Scan.transformPhysicalData(engine, state, file, data)) {
            while (found.hasNext()) try (var some = found.next().getRows()) {
              while (some.hasNext()) out.println(JSON.writeValueAsString(values(some.next())));
            }
          }
        }
      }
    }
    out.flush();
  }

  static Map<String, Object> values(Row row) {
    Map<String, Object> found = new LinkedHashMap<>();
    int at = 0;
    for (StructField field : row.getSchema().fields()) {
      found.put(field.getName(), row.isNullAt(at) ? null : value(row, at, field.getDataType()));
      at++;
    }
    return found;
  }

  static Object value(Row row, int at, DataType type) {
    if (type instanceof StringType) return row.getString(at);
    if (type instanceof LongType || type instanceof TimestampType || type instanceof TimestampNTZType)
      return row.getLong(at);
    if (type instanceof IntegerType || type instanceof DateType) return row.getInt(at);
    if (type instanceof ShortType) return row.getShort(at);
    if (type instanceof ByteType) return row.getByte(at);
    if (type instanceof DoubleType) return row.getDouble(at);
    if (type instanceof FloatType) return row.getFloat(at);
    if (type instanceof BooleanType) return row.getBoolean(at);
    throw new IllegalArgumentException("no tests have columns of type " + type);
  }
}
"""


def read_with_kernel(table: Path, transactions: Sequence[str] = ()) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return a table's rows, in no order, and the versions of application transactions that it has.

    Dates are days and times microseconds since 1970.
    """
    java, path = _find_java(), os.pathsep.join((*map(str, sorted(find_jars().glob("*.jar"))), f"{_pyspark_jars()}/*"))
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        program = Path(folder, "DeltaRows.java")
        program.write_text(_SOURCE)
        done = subprocess.run(
            [str(java), *small, "-cp", path, str(program), str(table.resolve()), *transactions],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=READ_SECONDS,
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it printed nothing"]
        raise OSError(f"Delta Kernel could not read {table}: {one_line(lines[0], 300)}")
    first, *rows = done.stdout.splitlines()
    versions = {name: version for name, version in json.loads(first).items() if version is not None}
    return [json.loads(row) for row in rows], versions


def check_available(*, fetch: bool = True) -> None:
    """Refuse with one line where it cannot be had here."""
    find_jars(fetch=fetch)
    _find_java()
    _pyspark_jars()


def find_jars(*, fetch: bool = True) -> Path:
    """Return the folder of its jars; fetches them where it is not there. `BadInput` where they cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    kept = cache / f"delta-kernel-{VERSION}"
    if kept.exists():
        return kept
    if not fetch:
        raise BadInput(
            "no Delta Kernel: its jars are not there", remedy="run `python -m holdfast_lab.delta_kernel` once"
        )
    maven = shutil.which("mvn")
    if maven is None:
        raise BadInput("no Delta Kernel: Maven (mvn) is not on the PATH", remedy="install it")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "delta-kernel.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            for name in JARS:
                _fetch(maven, Path(folder), name)
            Path(folder, "jars").rename(kept)
    return kept


def _fetch(maven: str, folder: Path, name: str) -> None:
    artifact = f"io.delta:{name}:{VERSION}"
    for goal in (
        (f"{PLUGIN}:get", f"-Dartifact={artifact}", "-Dtransitive=false"),
        (f"{PLUGIN}:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder / 'jars'}"),
    ):
        try:
            done = subprocess.run(
                [maven, "-q", "-B", *goal],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BadInput(
                f"no Delta Kernel: fetching {artifact} took more than {FETCH_SECONDS} s",
                remedy="run `python -m holdfast_lab.delta_kernel` again: Maven keeps what it has",
            ) from None
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["no output"]
            raise BadInput(
                f"no Delta Kernel: Maven failed: {one_line(lines[0], 200)}",
                remedy="let Maven reach Maven Central or a mirror of it",
            )


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise BadInput("no Delta Kernel: there is no Java on the PATH", remedy="install a JDK, 17 or later")
    listed = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    if "jdk.compiler" not in listed.stdout:
        raise BadInput(f"no Delta Kernel: {java} has no compiler", remedy="install a JDK, 17 or later")
    return Path(java)


def _pyspark_jars() -> Path:
    try:
        import pyspark
    except ModuleNotFoundError:
        raise BadInput("no Delta Kernel: PySpark is not installed", remedy="install the extra `spark`") from None
    return Path(pyspark.__file__).parent / "jars"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_jars()}\n")
    except BadInput as missing:
        sys.exit(str(missing))

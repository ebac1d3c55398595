"""The archive of Spark's classes: which one belongs to a Java and a Spark, and who is started with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import CheckFailed
from holdfast.spark import class_archive
from holdfast.spark.class_archive import archive_file, find_archive, with_archive

DRIVER, EXECUTOR = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `java` that writes what it was asked for into the archive, or fails."""
    monkeypatch.setattr(class_archive.sys, "prefix", str(tmp_path / "env"))
    (tmp_path / "java" / "bin").mkdir(parents=True)
    program = tmp_path / "java" / "bin" / "java"
    program.write_text(
        "#!/bin/sh\nfor one do case $one in -XX:SharedArchiveFile=*) out=${one#*=};; esac; done\n"
        'if [ -e "$0.fails" ]; then echo "no memory" >&2; exit 1; fi\necho "$@" >"$out"\n'
    )
    program.chmod(0o755)
    return tmp_path / "java"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "core.jar").write_text("1")
    return tmp_path / "spark"


def dumped(java: Path, home: Path) -> Path:
    file = archive_file(java, home)
    file.parent.mkdir(parents=True, exist_ok=True)
    class_archive._dump(java, home / "list", file, "a.jar:b.jar")
    return file


def test_an_archive_is_for_one_java_and_one_spark(java: Path, home: Path) -> None:
    assert find_archive(java, home) is None
    file = dumped(java, home)
    found = find_archive(java, home)
    assert found is not None
    assert (found.file, found.class_path, found.option) == (file, "a.jar:b.jar", f"-XX:SharedArchiveFile={file}")
    assert "-cp a.jar:b.jar" in file.read_text()
    (home / "jars" / "core.jar").write_text("another one")
    assert find_archive(java, home) is None, "jars have changed"


def test_a_damaged_description_is_no_archive(java: Path, home: Path) -> None:
    dumped(java, home).with_suffix(".json").write_text("{")
    assert find_archive(java, home) is None


def test_driver_and_executors_use_the_archive_beside_other_options(java: Path, home: Path) -> None:
    given = {DRIVER: "-Dmy=1", "spark.app.name": "app"}
    assert with_archive(given, java, home) == given
    option = f"-XX:SharedArchiveFile={dumped(java, home)}"
    assert with_archive(given, java, home) == {
        DRIVER: f"-Dmy=1 {option}",
        EXECUTOR: option,
        "spark.app.name": "app",
    }
    own = {DRIVER: "-XX:SharedArchiveFile=mine", EXECUTOR: "-XX:SharedArchiveFile=mine"}
    assert with_archive(own, java, home) == own


def test_a_dump_that_fails_leaves_no_archive(java: Path, home: Path) -> None:
    (java / "bin" / "java.fails").touch()
    with pytest.raises(CheckFailed, match="no memory"):
        dumped(java, home)
    assert find_archive(java, home) is None
    assert not list(archive_file(java, home).parent.iterdir())


def test_the_command_makes_one_where_there_is_none(
    java: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    monkeypatch.setattr(class_archive, "find_java_home", lambda: java)
    monkeypatch.setattr(class_archive, "spark_home", lambda: home)
    monkeypatch.setattr(class_archive, "make_archive", lambda: made.append(dumped(java, home)))
    assert class_archive.main(["--if-missing"]) == 0
    assert class_archive.main(["--if-missing"]) == 0
    assert len(made) == 1, "the second time there is one"
    assert class_archive.main([]) == 0
    assert len(made) == 2, "asked for without a condition it is made anew"
    assert class_archive.main(["--anything"]) == 2
    assert "usage" in capsys.readouterr().err
    (java / "bin" / "java.fails").touch()
    assert class_archive.main([]) == 1
    archive_file(java, home).unlink()
    assert class_archive.main(["--if-missing"]) == 0, "tests are slower without it, and that is all"
    assert "no memory" in capsys.readouterr().err

    def full() -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(class_archive, "make_archive", full)
    assert class_archive.main(["--if-missing"]) == 0, "whatever the reason is"
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(OSError, match="No space"):
        class_archive.main([])

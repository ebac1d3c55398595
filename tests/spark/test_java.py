"""Finding a Java: the machine's, or the packaged one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.spark import java


def fake_java(folder: Path, says: str, status: int = 0) -> Path:
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    binary.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("no such thing", None),
    ],
)
def test_versions_are_read(tmp_path: Path, says: str, version: int | None) -> None:
    assert java.java_version(fake_java(tmp_path / "j", says) / "bin" / "java") == version


def test_what_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(tmp_path / "nothing") is None
    assert java.java_version(fake_java(tmp_path / "j", 'version "17"', status=1) / "bin" / "java") is None


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", 'version "1.8.0"'), fake_java(tmp_path / "new", 'version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert java.find_java_home() == new
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "packaged_java_home", lambda: None)
    with pytest.raises(BadInput, match="no Java 17"):
        java.find_java_home()


def test_the_wrapper_drops_only_the_module_that_is_not_there(tmp_path: Path) -> None:
    shown = tmp_path / "show"
    shown.write_text('#!/bin/sh\nfor a do printf "%s\\n" "$a"; done\n')
    shown.chmod(0o755)
    wrapper = tmp_path / "java"
    wrapper.write_text(java._WRAPPER.format(java=shown))
    wrapper.chmod(0o755)
    given = ["--add-modules=jdk.incubator.vector", "-Dx=a b", "", "-cp", "a:*", "$HOME"]
    printed = subprocess.run([wrapper, *given], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == given[1:]


def test_without_a_java_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.spark import cluster

    def none() -> Path:
        raise BadInput("no Java")

    monkeypatch.setattr(cluster, "find_java_home", none)
    monkeypatch.setattr(cluster.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(BadInput, match="no Java"):
        cluster.EmbeddedCluster(1)
    assert not list(tmp_path.iterdir())

"""Every kind of storage, empty: one suite for all of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.storage import Storage
from holdfast_lab.s3_server import S3Server


@pytest.fixture
def s3_url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty folder in a bucket, with the environment that its users need and no other credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"{s3.url}/test-{secrets.token_hex(6)}"


@pytest.fixture(params=["files", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Storage of every kind, one after the other."""
    made: dict[str, Callable[[], Storage]] = {
        "files": lambda: FileStorage(tmp_path / "storage"),
        "memory": MemoryStorage,
        "s3": lambda: ObjectStorage(request.getfixturevalue("s3_url")),
    }
    return made[request.param]()


@pytest.fixture(params=["files", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Storage of every kind that other processes reach."""
    if request.param == "files":
        return FileStorage(tmp_path / "storage")
    return ObjectStorage(request.getfixturevalue("s3_url"))

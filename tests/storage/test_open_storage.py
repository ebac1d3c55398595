"""Which storage a path or a URL names."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.storage import is_url, open_storage


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("/data/run", "/data/run"),
        (Path("/data/run"), "/data/run"),
        (Path("/data/s3://x"), "/data/s3:/x"),
        ("file:///data/run", "/data/run"),
        ("file:/data/run", "/data/run"),
        ("file://localhost/data/my%20run", "/data/my run"),
        ("/data/my%20run", "/data/my%20run"),
    ],
)
def test_paths_and_file_urls_are_folders(place: str | Path, folder: str) -> None:
    storage = open_storage(place)
    assert isinstance(storage, FileStorage)
    assert storage.url == folder


def test_buckets_are_object_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    for url in ("s3://bucket", "S3://bucket/folder/", "gs://bucket/a/b", "az://container/a"):
        storage = open_storage(url)
        assert isinstance(storage, ObjectStorage)
        assert storage.url == url.replace("S3", "s3").rstrip("/")


@pytest.mark.parametrize(
    "url", ["hdfs://host/run", "s3a://bucket", "http://key:secret@host/", "file://host/run", "file:///run?x", "s3:/run"]
)
def test_anything_else_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(BadInput) as raised:
        open_storage(url)
    assert raised.value.remedy is not None
    assert "secret" not in str(raised.value)


def test_memory_of_another_process_is_refused() -> None:
    with pytest.raises(BadInput, match="another process"):
        open_storage("memory:0123")
    kept = MemoryStorage()
    assert open_storage(kept.url).url == kept.url


def test_paths_are_no_urls() -> None:
    assert not any(map(is_url, ["run", "/run", "./a:b", "c:/run", "a/b://c", ""]))
    assert all(map(is_url, ["s3://b", "s3:/b", "file:/x", "hdfs://h/x", "memory:x"]))

"""Storage in a bucket: answers that mislead, errors without secrets, a killed writer, forks, pages of lists."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from holdfast.errors import BadInput
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.source_files import open_source_files
from holdfast_lab.s3_server import S3Server

UPLOAD = """
import sys
from holdfast.storage.objects import ObjectStorage

ObjectStorage(sys.argv[1]).create("a/big", b"x" * 50_000_000)
"""

FORK = """
import os, sys
from holdfast.storage.objects import ObjectStorage

storage = ObjectStorage(sys.argv[1])
if sys.argv[2] == "used":
    storage.list()
child = os.fork()
if child == 0:
    try:
        storage.create("from-child", b"")
        print("created", flush=True)
    except OSError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@contextmanager
def stalling_proxy(port: int, after: int, stalled: threading.Event) -> Iterator[int]:
    """Forward one connection to a port until so many bytes have passed, then no more."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:

        def forward() -> None:
            with (
                suppress(OSError),
                listener.accept()[0] as client,
                socket.create_connection(("127.0.0.1", port)) as server,
            ):
                passed = 0
                while passed < after and (data := client.recv(65536)):
                    server.sendall(data)
                    passed += len(data)
                stalled.set()
                while client.recv(65536):
                    pass

        done = thread.submit(forward)
        try:
            yield listener.getsockname()[1]
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            done.result(timeout=300)


def test_a_writer_that_is_killed_leaves_no_object(s3: S3Server, s3_url: str) -> None:
    stalled = threading.Event()
    with stalling_proxy(s3.port, 5_000_000, stalled) as port:
        environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        with subprocess.Popen([sys.executable, "-c", UPLOAD, s3_url], env=environment) as writer:
            try:
                assert stalled.wait(60)
            finally:
                writer.send_signal(signal.SIGKILL)
    storage = ObjectStorage(s3_url)
    assert storage.read("a/big") is None
    assert storage.list() == []
    assert storage.create("a/big", b"another's")


@pytest.mark.parametrize("error", [AlreadyExistsError, PreconditionError])
def test_a_conflict_without_an_object_is_tried_again(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    real = obstore.put
    conflicts = [error("409 Conflict")] * 2

    def put(*args: Any, **options: Any) -> Any:
        if conflicts:
            raise conflicts.pop()
        return real(*args, **options)

    monkeypatch.setattr(obstore, "put", put)
    storage = ObjectStorage(s3_url)
    assert storage.create("a", b"x")
    conflicts.append(error("412 Precondition Failed"))
    assert not storage.create("a", b"y")


def test_a_conflict_that_stays_is_an_error(s3_url: str) -> None:
    storage = ObjectStorage(s3_url)
    storage.create("a/b", b"x")
    with pytest.raises(OSError, match=r"a/b/c: .*409 Conflict"):  # this server keeps objects as files
        storage.create("a/b/c", b"x")


def test_a_bucket_that_is_not_there_is_an_error_and_not_an_empty_one(s3_url: str) -> None:
    storage = ObjectStorage("s3://no-such-bucket/folder")
    with pytest.raises(OSError, match=r"s3://no-such-bucket/folder/a: .*NoSuchBucket"):
        storage.read("a")
    for call in (lambda: storage.create("a", b""), storage.list, lambda: storage.delete(["a"])):
        with pytest.raises(OSError, match="NoSuchBucket"):
            call()


def test_errors_show_no_secrets(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(PermissionError) as raised:
        ObjectStorage(s3_url).create("a", b"x")
    text = str(raised.value)
    assert text == f"{s3_url}/a: Server returned non-2xx status code: 403 Forbidden: SignatureDoesNotMatch"
    assert raised.value.__cause__ is None


def test_every_error_of_the_library_is_an_os_error_of_one_line(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise GenericError('Error performing GET http://h/b?sig=secret in 1ms - HTTP error\n\nDebug source:\n"secret"')

    storage = ObjectStorage(s3_url)
    for call in ("put", "get", "list", "delete"):
        monkeypatch.setattr(obstore, call, fail)
    for use in (lambda: storage.create("a", b""), lambda: storage.read("a"), lambda: storage.delete(["a"])):
        with pytest.raises(OSError, match="HTTP error") as raised:
            use()
        assert str(raised.value) == f"{s3_url}/a: HTTP error"
    with pytest.raises(OSError, match="HTTP error"):
        storage.list("a")


def test_where_a_bulk_delete_stops_at_a_missing_object_the_others_go_one_by_one(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = obstore.delete

    def delete(store: Any, paths: str | list[str]) -> None:  # as GCS and Azure do
        if not isinstance(paths, str) or paths.endswith("/missing"):
            raise FileNotFoundError("404 Not Found: <Error><Code>NoSuchKey</Code></Error>")
        real(store, paths)

    storage = ObjectStorage(s3_url)
    storage.create("a", b"")
    storage.create("z", b"")
    monkeypatch.setattr(obstore, "delete", delete)
    storage.delete(["a", "missing", "z"])
    assert storage.list() == []


def test_a_list_of_several_pages(s3_url: str) -> None:
    storage = ObjectStorage(s3_url)
    names = [f"many/{number:05}" for number in range(1100)]
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda name: storage.create(name, b""), names))
    assert storage.list("many/") == names
    assert storage.list("many/0109") == names[1090:]
    assert storage.list("many/", after=names[1097]) == names[1098:]
    storage.delete(names)
    assert storage.list() == []


@pytest.mark.parametrize(("used", "outcome"), [("used", "before this process was forked"), ("unused", "created")])
def test_a_fork_of_a_process_that_used_it_is_refused_instead_of_waiting(s3_url: str, used: str, outcome: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, s3_url, used], capture_output=True, text=True, timeout=300, check=True
    )
    assert outcome in done.stdout


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/folder",
        "s3://key@bucket/folder",
        "s3://bucket/folder?sig=secret",
        "az://container/folder#secret",
        "abfss://container:secret@account.dfs.core.windows.net/folder",
    ],
)
def test_urls_with_credentials_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(BadInput, match="environment variables") as raised:
        ObjectStorage(url)
    assert "secret" not in str(raised.value)
    assert "key" not in str(raised.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///folder", "s3:/bucket", "s3://bucket/../x", "s3://bucket/a b"])
def test_urls_without_a_bucket_or_with_a_bad_folder_are_refused(url: str) -> None:
    with pytest.raises(BadInput):
        ObjectStorage(url)


def test_other_clouds_are_opened_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(BadInput, match="Account must be specified; set the environment variables"):
        ObjectStorage("az://container/folder")
    named = ObjectStorage("abfss://container@account.dfs.core.windows.net/folder/")
    assert named.url == "abfss://container@account.dfs.core.windows.net/folder"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    assert ObjectStorage("az://container/folder").within("a").url == "az://container/folder/a"


def test_without_the_extra_one_line_names_it() -> None:
    code = (
        "import sys\n"
        "sys.modules['obstore'] = None\n"
        "from holdfast.storage.storage import open_storage\n"
        "try:\n    open_storage('s3://bucket')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "BadInput obstore is not installed; run `pip install 'holdfast[objects]'`\n"


def test_a_source_file_that_is_gone_is_not_found_and_a_bucket_that_is_gone_is_an_error(s3_url: str) -> None:
    ObjectStorage(s3_url).create("a", b"x")
    files = open_source_files(s3_url)
    opened = files.open(f"{s3_url}/a")
    ObjectStorage(s3_url).delete(["a"])
    with pytest.raises(FileNotFoundError):
        files.open(f"{s3_url}/a")
    with pytest.raises(FileNotFoundError):
        opened.look()
    with pytest.raises(OSError, match="NoSuchBucket") as raised:
        open_source_files("s3://no-such-bucket").open("s3://no-such-bucket/a")
    assert not isinstance(raised.value, FileNotFoundError), "its files may all be there when the bucket is"

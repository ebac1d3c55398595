"""What `storage.Storage` promises, of every implementation."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from holdfast.errors import BadInput
from holdfast.storage.storage import Storage, open_storage

TRICKY = [
    "A/b",
    "Z",
    "a-/x",
    "a-b",
    "a.b",
    "a.d/x",
    "a/b",
    "a/b-c/d",
    "a/b-c/e",
    "a/b.c",
    "a/bb",
    "a0",
    "a=b",
    "a_b",
    "aa/b",
    "k=1/0000000000010",
    "k=1/0000000000009",
    "k=1/000000000001",
]
"""Where the order of whole names differs from the order of a walk through folders."""

BAD_NAMES = [
    "",
    "../x",
    "a/../b",
    "..",
    ".",
    "/x",
    "x/",
    ".hidden",
    "a/.hidden",
    "a//b",
    "a b",
    "a\u0085b",
    "a\nb",
    "x\n",
    "a\\b",
]

RACE = """
import sys
from holdfast.storage.storage import open_storage

url, me, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
storage = open_storage(url)
storage.list()  # everything is loaded and connected
print("ready", flush=True)
sys.stdin.readline()
print(*[number for number in range(rounds) if storage.create(f"race/{number}", me.encode())])
"""


def contents(storage: Storage, name: str) -> bytes | None:
    found = storage.read(name)
    return None if found is None else found.to_pybytes()


def test_an_object_is_there_when_create_returns(storage: Storage) -> None:
    assert storage.create("a/b", b"first")
    assert contents(storage, "a/b") == b"first"
    assert storage.list() == ["a/b"]


def test_a_taken_name_keeps_its_contents(storage: Storage) -> None:
    assert storage.create("a/b", b"first")
    assert not storage.create("a/b", b"second")
    assert not storage.create("a/b", b"first")
    assert contents(storage, "a/b") == b"first"


def test_what_is_not_there(storage: Storage) -> None:
    assert storage.read("a") is None
    assert storage.read("a/b/c") is None
    assert storage.list() == []
    assert storage.list("a/b") == []
    storage.delete(["a", "a/b/c"])
    storage.delete([])


@pytest.mark.parametrize("data", [b"bytes", memoryview(b"a view"), pa.py_buffer(b"an Arrow buffer")])
def test_every_kind_of_data(storage: Storage, data: bytes | memoryview | pa.Buffer) -> None:
    assert storage.create("x", data)
    assert contents(storage, "x") == bytes(memoryview(data))


def test_an_empty_object_is_an_object(storage: Storage) -> None:
    assert storage.create("empty", b"")
    assert not storage.create("empty", b"")
    assert contents(storage, "empty") == b""
    assert storage.list() == ["empty"]


def test_a_big_object(storage: Storage) -> None:
    data = bytes(range(256)) * (8 << 12)
    assert storage.create("big", pa.py_buffer(data))
    assert contents(storage, "big") == data


def test_the_data_may_be_changed_afterwards(storage: Storage) -> None:
    data = bytearray(b"first")
    assert storage.create("x", memoryview(data))
    data[:] = b"other"
    assert contents(storage, "x") == b"first"


def test_a_buffer_stays_readable_when_its_object_is_deleted(storage: Storage) -> None:
    data = b"0123456789abcdef" * 65536
    storage.create("x", data)
    found = storage.read("x")
    storage.delete(["x"])
    assert storage.create("x", b"another")
    assert found is not None
    assert found.to_pybytes() == data


def test_a_deleted_name_is_free(storage: Storage) -> None:
    storage.create("a/b", b"first")
    storage.create("a/c", b"stays")
    storage.delete(["a/b"])
    assert storage.read("a/b") is None
    assert storage.list() == ["a/c"]
    storage.delete(["a/b"])
    assert storage.create("a/b", b"second")
    assert contents(storage, "a/b") == b"second"


def test_many_are_deleted_at_once_whether_there_or_not(storage: Storage) -> None:
    names = [f"d/{number}" for number in range(20)]
    for name in names[::2]:
        storage.create(name, b"x")
    storage.delete(iter(names))
    assert storage.list() == []


def test_lists_are_in_the_order_of_whole_names(storage: Storage) -> None:
    for name in reversed(TRICKY):
        assert storage.create(name, b"")
    assert storage.list() == sorted(TRICKY)


def test_a_list_begins_after_a_name(storage: Storage) -> None:
    for name in TRICKY:
        storage.create(name, b"")
    for after in [*TRICKY, "a", "a/", "a/b-", "b", "zzz", "0"]:
        assert storage.list(after=after) == sorted(name for name in TRICKY if name > after), after
        expected = sorted(name for name in TRICKY if name > after and name.startswith("a/b"))
        assert storage.list("a/b", after=after) == expected, after


def test_a_prefix_is_of_characters(storage: Storage) -> None:
    for name in TRICKY:
        storage.create(name, b"")
    for prefix in ["a", "a/", "a/b", "a/b-", "a/b-c/", "a.", "a/b-c/d", "k=1/00000000000", "no", "no/no/", "A/bb"]:
        assert storage.list(prefix) == sorted(name for name in TRICKY if name.startswith(prefix)), prefix


def test_a_view_has_the_names_under_a_folder(storage: Storage) -> None:
    view = storage.within("runs").within("7/log")
    assert view.create("a/b", b"inside")
    assert storage.create("runs/7/log2", b"beside")
    assert contents(storage, "runs/7/log/a/b") == b"inside"
    assert view.list() == ["a/b"]
    assert view.list("a/", after="a/a") == ["a/b"]
    assert view.read("log2") is None
    assert not storage.create("runs/7/log/a/b", b"again")
    view.delete(["a/b"])
    assert storage.list() == ["runs/7/log2"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_outside_the_rule_are_refused(storage: Storage, name: str) -> None:
    with pytest.raises(BadInput):
        storage.create(name, b"x")
    with pytest.raises(BadInput):
        storage.read(name)
    with pytest.raises(BadInput):
        storage.delete([name])
    with pytest.raises(BadInput):
        storage.within(name)


@pytest.mark.parametrize("name", ["day=a%2Fb%20c/x", "Straße=Zürich/日本/x", "%25/x", "=/😀"])
def test_names_with_escapes_and_letters_beyond_ascii_are_taken_as_they_are(storage: Storage, name: str) -> None:
    assert storage.create(name, b"x")
    assert not storage.create(name, b"y")
    assert storage.list() == [name]
    assert storage.list(name[:5]) == [name]
    read = storage.read(name)
    assert read is not None
    assert read.to_pybytes() == b"x"
    inner = storage.within(name.rpartition("/")[0])
    assert inner.list() == [name.rpartition("/")[2]]
    storage.delete([name])
    assert storage.list() == []


@pytest.mark.parametrize("prefix", ["../", "..", "/", "a//", ".", "a/.", "a/../", "a b"])
def test_prefixes_with_which_no_name_begins_are_refused(storage: Storage, prefix: str) -> None:
    with pytest.raises(BadInput):
        storage.list(prefix)


def test_one_of_eight_threads_creates_an_object(storage: Storage) -> None:
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as threads:
        for number in range(20):

            def create(me: int, name: str = f"race/{number}") -> bool:
                together.wait()
                return storage.create(name, bytes([me]) * 1000)

            created = list(threads.map(create, range(8)))
            assert sum(created) == 1
            assert contents(storage, f"race/{number}") == bytes([created.index(True)]) * 1000
    assert len(storage.list("race/")) == 20


def test_lists_and_reads_beside_creates_and_deletes_see_whole_objects(storage: Storage) -> None:
    data = b"x" * 50_000
    done = threading.Event()

    def write() -> None:
        try:
            for number in range(60):
                storage.create(f"w/{number % 3}/{number:03}", data)
                storage.delete([f"w/{number % 3}/{number - 3:03}"])
        finally:
            done.set()

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write)
        while not done.is_set():
            for name in storage.list("w/"):
                assert contents(storage, name) in (data, None)
        writing.result()
    assert storage.list("w/") == ["w/0/057", "w/1/058", "w/2/059"]


def test_a_pickled_storage_is_the_same_storage(storage: Storage) -> None:
    storage.create("runs/a", b"x")
    again: Storage = pickle.loads(pickle.dumps(storage))
    view: Storage = pickle.loads(pickle.dumps(storage.within("runs")))
    assert (again.url, view.url) == (storage.url, storage.within("runs").url)
    assert contents(again, "runs/a") == contents(view, "a") == b"x"
    assert not view.create("a", b"y")


def test_a_storage_opens_by_its_url(storage: Storage) -> None:
    view = storage.within("runs")
    view.create("a", b"x")
    assert open_storage(storage.url).list() == ["runs/a"]
    assert open_storage(view.url).list() == ["a"]
    assert type(open_storage(view.url)) is type(storage)


def test_one_of_several_processes_creates_an_object(shared: Storage) -> None:
    rounds = 40
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, shared.url, str(me), str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        created = [[int(number) for number in process.communicate(timeout=300)[0].split()] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert sorted(number for numbers in created for number in numbers) == list(range(rounds))
    for me, numbers in enumerate(created):
        assert {contents(shared, f"race/{number}") for number in numbers} <= {str(me).encode()}

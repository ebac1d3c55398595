"""Fragments on disk: crashes at every step, bit flips, quotas, full disks, epochs that outlive a restart."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure.encoding import encode
from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch
from holdfast.store.peer.disk import Disk
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.peer.limits import Limits
from holdfast.store.wire.failures import BadRequest, Busy, Corrupt, NoRoom, StaleEpoch, StateMissing

STATE = StateId("app", "O3[0]")


def fragment(size: int = 3000, version: int = 1, epoch: int = 1, index: int = 0, seed: int = 1) -> bytes:
    data = Random(seed).randbytes(size)
    made = encode(data, STATE, BatchId(version), Epoch(epoch), Coding(2, 2), block_bytes=512)
    return bytes(made[index])


def put(files: FragmentFiles, whole: bytes, chunk: int = 700) -> FragmentHeader:
    header = FragmentHeader.unpack(whole)
    writer = files.begin(header)
    body = whole[header.state.header_length :]
    try:
        for start in range(0, len(body), chunk):
            writer.add(body[start : start + chunk])
        writer.publish()
    finally:
        writer.cancel()
    return header


def read_all(files: FragmentFiles, header: FragmentHeader) -> bytes:
    return header.pack() + bytes(files.read(header, 0, header.state.layout.stripes))


class Crash(BaseException):
    """The machine stops here."""


class CrashingDisk(Disk):
    """Stops at the given step. What was not synced may or may not be on the disk afterwards: `aftermath` decides."""

    def __init__(self, stop_at: int, chance: Random) -> None:
        super().__init__()
        self.left = stop_at
        self.chance = chance
        self.crashed = False
        self.unsynced: dict[Path, int] = {}
        self.open_files: dict[int, Path] = {}
        self.renames: dict[Path, list[tuple[Path, Path, bytes | None]]] = {}
        self.removed: dict[Path, list[tuple[Path, bytes]]] = {}

    def step(self) -> None:
        if self.crashed:
            raise Crash
        self.left -= 1
        if self.left < 0:
            self.crashed = True
            raise Crash

    def open_new(self, path: Path) -> int:
        self.step()
        handle = super().open_new(path)
        self.open_files[handle] = path
        self.unsynced[path] = 0
        return handle

    def append(self, handle: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        data = b"".join(pieces)
        try:
            self.step()
        except Crash:
            super().append(handle, [data[: self.chance.randrange(len(data) + 1)]])
            raise
        super().append(handle, [data])

    def sync_file(self, handle: int) -> None:
        self.step()
        self.unsynced.pop(self.open_files[handle], None)

    def close(self, handle: int) -> None:
        super().close(handle)
        self.open_files.pop(handle, None)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        before = target.read_bytes() if target.exists() else None
        super().rename(source, target)
        if source in self.unsynced:
            self.unsynced[target] = self.unsynced.pop(source)
        self.renames.setdefault(target.parent, []).append((source, target, before))

    def remove(self, path: Path) -> None:
        if not self.crashed and path.exists():
            self.step()
            self.removed.setdefault(path.parent, []).append((path, path.read_bytes()))
            super().remove(path)

    def sync_folder(self, path: Path) -> None:
        self.step()
        self.renames.pop(path, None)
        self.removed.pop(path, None)

    def aftermath(self) -> None:
        """Undo, by chance, what no sync has made sure of."""
        for renames in self.renames.values():
            for source, target, before in reversed(renames):
                if self.chance.random() < 0.5 and target.exists():
                    target.rename(source)
                    if before is not None:
                        target.write_bytes(before)
        for removed in self.removed.values():
            for path, contents in removed:
                if self.chance.random() < 0.5 and not path.exists():
                    path.write_bytes(contents)
        for path in self.unsynced:
            if path.exists():
                size = path.stat().st_size
                with path.open("r+b") as file:
                    file.truncate(self.chance.randrange(size + 1))


@pytest.mark.parametrize("seed", range(200))
def test_after_a_crash_anywhere_all_is_whole_or_absent(seed: int, tmp_path: Path) -> None:
    """Puts, releases and fences, stopped at a random step: what was acknowledged is there, the rest whole or absent."""
    chance = Random(seed)
    disk = CrashingDisk(chance.randrange(1, 75), chance)
    acknowledged: dict[FragmentHeader, bytes] = {}
    tried: dict[FragmentHeader, bytes] = {}
    fence = 0
    released = 0
    files: FragmentFiles | None = None
    try:
        files = FragmentFiles(tmp_path / "pool", Limits(memory_bytes=chance.choice([0, 1 << 20])), disk)
        for version in range(1, 9):
            epoch = 1 + version // 3
            for index in range(2):
                whole = fragment(chance.randrange(1, 4000), version, epoch, index, seed)
                tried[FragmentHeader.unpack(whole)] = whole
                acknowledged[put(files, whole, chance.randrange(100, 2000))] = whole
                fence = epoch
            if version % 4 == 0:
                released = version - 1
                files.release(STATE, BatchId(released), Epoch(epoch))
                acknowledged = {one: whole for one, whole in acknowledged.items() if one.state.version >= released}
    except Crash:
        pass
    if files is not None:
        files.close()
    disk.aftermath()

    again = FragmentFiles(tmp_path / "pool")
    there = {header: read_all(again, header) for header in again.all_held()}
    for header, whole in acknowledged.items():
        assert released > header.state.version or there.get(header) == whole, f"seed {seed}: {header} was acknowledged"
    for header, whole in there.items():
        assert tried[header] == whole, f"seed {seed}: torn"
    assert list((tmp_path / "pool" / "incoming").iterdir()) == []
    if fence:
        with pytest.raises(StaleEpoch):
            again.begin(FragmentHeader.unpack(fragment(10, 99, fence - 1)))
    put(again, fragment(500, 100, 99))
    again.close()


def on_disk(files: FragmentFiles, header: FragmentHeader) -> Path:
    path = files.place(header)
    assert path.exists()
    return path


@given(place=st.floats(0, 0.999999), bit=st.integers(0, 7), memory=st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_flipped_bit_on_disk_is_found(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int, memory: bool
) -> None:
    logging.getLogger("holdfast.store.peer.fragment_files").setLevel(logging.ERROR)
    folder = tmp_path_factory.mktemp("flip")
    files = FragmentFiles(folder, Limits(memory_bytes=0))
    header = put(files, fragment())
    path = on_disk(files, header)
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    files.close()
    again = FragmentFiles(folder, Limits(memory_bytes=1 << 20 if memory else 0))
    for held in again.held(STATE):
        with pytest.raises((Corrupt, StateMissing)):
            read_all(again, held)
    assert again.held(STATE) == []
    assert again.usage().quarantined == 1
    assert len(list((folder / "quarantine").iterdir())) == 1
    again.close()


@pytest.mark.parametrize("cut", [0, 1, 50, 200, 1600])
def test_a_cut_file_is_quarantined_at_start(tmp_path: Path, cut: int) -> None:
    files = FragmentFiles(tmp_path)
    header = put(files, fragment())
    path = on_disk(files, header)
    path.write_bytes(path.read_bytes()[:cut])
    files.close()
    again = FragmentFiles(tmp_path)
    assert again.states() == []
    assert again.usage().quarantined == 1
    assert again.usage().bytes == 0
    put(again, fragment())
    assert read_all(again, header) == fragment()
    again.close()


def test_scrubbing_finds_what_the_memory_tier_hides(tmp_path: Path) -> None:
    files = FragmentFiles(tmp_path)
    header = put(files, fragment())
    path = on_disk(files, header)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert read_all(files, header) == fragment(), "the memory tier has the good one"
    assert not files.verify(header)
    assert files.held(STATE) == []
    files.close()


def test_damage_on_the_way_in_is_refused(tmp_path: Path) -> None:
    files = FragmentFiles(tmp_path)
    whole = bytearray(fragment())
    header = FragmentHeader.unpack(whole)
    whole[-5] ^= 4
    with pytest.raises(Corrupt, match="in transit"):
        put(files, bytes(whole))
    with pytest.raises(Corrupt):
        put(files, fragment()[:-3])
    with pytest.raises(BadRequest, match="more than"):
        put(files, fragment() + b"x")
    assert files.states() == []
    assert list((tmp_path / "incoming").iterdir()) == []
    assert files.usage().bytes == 0
    with pytest.raises(StateMissing):
        files.read(header, 0, 1)
    files.close()


def test_quotas_count_what_is_arriving(tmp_path: Path) -> None:
    size = len(fragment())
    files = FragmentFiles(tmp_path, Limits(quota_bytes=2 * size, namespace_quota_bytes=2 * size))
    first = files.begin(FragmentHeader.unpack(fragment(version=1)))
    put(files, fragment(version=2))
    with pytest.raises(NoRoom, match="quota"):
        put(files, fragment(version=3))
    first.cancel()
    put(files, fragment(version=3))
    with pytest.raises(NoRoom):
        put(files, fragment(version=4))
    files.release(STATE, BatchId(3), Epoch(1))
    put(files, fragment(version=4))
    files.close()


class FullDisk(Disk):
    """Takes so many bytes, then none."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def append(self, handle: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        self.room -= sum(map(len, pieces))
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(handle, pieces)


def test_a_full_disk_refuses_and_keeps_serving(tmp_path: Path) -> None:
    disk = FullDisk(8000)
    files = FragmentFiles(tmp_path, None, disk)
    kept = put(files, fragment(version=1))
    while disk.room > len(fragment()):
        put(files, fragment(version=disk.room))
    with pytest.raises(NoRoom, match="No space left"):
        put(files, fragment(version=99_999))
    assert read_all(files, kept) == fragment(version=1)
    assert list((tmp_path / "incoming").iterdir()) == []
    disk.room = 100_000
    put(files, fragment(version=30))
    files.close()
    full = FragmentFiles(tmp_path, Limits(reserve_bytes=1 << 60))
    with pytest.raises(NoRoom, match="disk is full"):
        put(full, fragment(version=31))
    full.close()


def test_epochs_outlive_a_restart_and_do_not_stop_repair(tmp_path: Path) -> None:
    files = FragmentFiles(tmp_path)
    files.fence("app", Epoch(7))
    files.close()
    again = FragmentFiles(tmp_path)
    with pytest.raises(StaleEpoch, match="epoch 7 has started"):
        put(again, fragment(epoch=6))
    writer = again.begin(FragmentHeader.unpack(fragment(epoch=6)), repairing=True)
    body = fragment(epoch=6)[writer.header.state.header_length :]
    writer.add(body)
    writer.publish()
    assert again.fences() == {"app": 7}
    assert read_all(again, writer.header) == fragment(epoch=6)
    again.close()


def test_an_epoch_that_begins_during_a_put_stops_it(tmp_path: Path) -> None:
    files = FragmentFiles(tmp_path)
    whole = fragment(epoch=1)
    writer = files.begin(FragmentHeader.unpack(whole))
    writer.add(whole[writer.header.state.header_length :])
    files.fence("app", Epoch(2))
    with pytest.raises(StaleEpoch):
        writer.publish()
    assert files.states() == []
    files.close()


def test_damaged_epochs_stop_the_peer(tmp_path: Path) -> None:
    FragmentFiles(tmp_path).close()
    (tmp_path / "fences.json").write_bytes(b'{"app": 7')
    with pytest.raises(Corrupt, match=r"fences\.json"):
        FragmentFiles(tmp_path)


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    files = FragmentFiles(tmp_path)
    with pytest.raises(BadInput, match="another process"):
        FragmentFiles(tmp_path)
    files.close()
    FragmentFiles(tmp_path).close()


def test_the_memory_tier_stays_within_its_bounds(tmp_path: Path) -> None:
    size = len(fragment())
    files = FragmentFiles(tmp_path, Limits(memory_bytes=5 * size))
    headers = [put(files, fragment(version=version)) for version in range(12)]
    assert 0 < files.usage().memory_bytes <= 5 * size
    for header in headers:
        assert read_all(files, header) == fragment(version=header.state.version)
        assert files.usage().memory_bytes <= 5 * size
    hits = files.usage().memory_hits
    read_all(files, headers[-1])
    assert files.usage().memory_hits == hits + 1
    files.close()


def test_files_that_are_no_fragments_are_put_away(tmp_path: Path) -> None:
    files = FragmentFiles(tmp_path)
    header = put(files, fragment())
    path = on_disk(files, header)
    (path.parent / "stranger.txt").write_text("hello")
    moved = path.parent / path.name.replace("-0.", "-1.")
    path.rename(moved)
    files.close()
    again = FragmentFiles(tmp_path)
    assert again.states() == []
    assert again.usage().quarantined == 2
    again.close()


class NoHandles(Disk):
    """Can open no file for reading while `left` is zero; `left` counts down."""

    left = 1 << 30

    def read(self, path: Path, start: int, length: int) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().read(path, start, length)


def test_a_process_without_file_handles_loses_no_fragment(tmp_path: Path) -> None:
    disk = NoHandles()
    files = FragmentFiles(tmp_path, Limits(memory_bytes=0), disk)
    header = put(files, fragment())
    disk.left = 0
    with pytest.raises(Busy, match="Too many open files"):
        read_all(files, header)
    assert not files.verify(header)
    disk.left = 1 << 30
    assert read_all(files, header) == fragment(), "nothing was wrong with the file"
    files.close()
    disk.left = 0
    with pytest.raises(OSError, match="Too many open files"):
        FragmentFiles(tmp_path, None, disk)
    assert list((tmp_path / "quarantine").iterdir()) == []


def test_a_folder_that_could_not_be_opened_is_not_kept_from_the_next_attempt(tmp_path: Path) -> None:
    files = FragmentFiles(tmp_path)
    put(files, fragment())
    files.close()
    disk = NoHandles()
    disk.left = 0
    with pytest.raises(OSError, match="Too many open files"):
        FragmentFiles(tmp_path, None, disk)
    FragmentFiles(tmp_path).close()


class SlowToRemove(Disk):
    """Lets another thread do something between a fragment's removal from the index and that of its file."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: threading.Thread | None = None

    def _wait(self) -> None:
        thread, self.meanwhile = self.meanwhile, None
        if thread is not None:
            thread.start()
            thread.join(0.2)  # one that waits for the removal to end goes on after it

    def remove(self, path: Path) -> None:
        if path.suffix == ".fragment":
            self._wait()
        super().remove(path)

    def rename(self, source: Path, target: Path) -> None:
        if source.suffix == ".fragment":
            self._wait()
        super().rename(source, target)


@pytest.mark.parametrize("how", ["dropped", "damaged"])
def test_a_fragment_that_is_put_again_while_it_is_removed_stays(how: str, tmp_path: Path) -> None:
    disk = SlowToRemove()
    files = FragmentFiles(tmp_path, Limits(memory_bytes=0), disk)
    header = put(files, fragment())
    again = disk.meanwhile = threading.Thread(target=put, args=(files, fragment()))
    if how == "dropped":
        files.drop(header)
    else:
        files.quarantine(header, "a test")
    again.join()
    assert files.held(STATE) == [header]
    assert read_all(files, header) == fragment(), "it was acknowledged"
    files.close()


def test_a_full_disk_refuses_the_first_write_of_an_epoch_as_one_of_a_known_one(tmp_path: Path) -> None:
    disk = FullDisk(100_000)
    files = FragmentFiles(tmp_path, None, disk)
    kept = put(files, fragment())
    disk.room = 0
    with pytest.raises(NoRoom, match="No space left"):
        put(files, fragment(version=2, epoch=2))
    assert files.fences() == {"app": 1}, "what could not be written does not stand"
    assert read_all(files, kept) == fragment()
    disk.room = 100_000
    put(files, fragment(version=2, epoch=2))
    assert files.fences() == {"app": 2}
    files.close()


class SlowToSync(Disk):
    """Does something else between the making of a folder and its sync."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[Path] = []
        self.meanwhile: list[Callable[[], None]] = []

    def sync_folder(self, path: Path) -> None:
        if self.meanwhile:
            self.meanwhile.pop()()
        self.synced.append(path)


def test_a_folder_that_another_thread_makes_is_there_for_good_before_it_is_used(tmp_path: Path) -> None:
    disk, folder = SlowToSync(), tmp_path / "state"
    seen: list[list[Path]] = []

    def other() -> None:
        disk.make_folder(folder)
        seen.append(list(disk.synced))

    disk.meanwhile.append(other)
    disk.make_folder(folder)
    assert seen == [[tmp_path]], "the other thread has synced it itself before it goes on"
    disk.synced.clear()
    disk.make_folder(folder)
    assert disk.synced == [], "what is there for good costs nothing"

    def fails() -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk.meanwhile.append(fails)
    with pytest.raises(OSError, match="Input/output"):
        disk.make_folder(tmp_path / "second")
    disk.make_folder(tmp_path / "second")
    assert disk.synced == [tmp_path], "the next one makes up for the sync that failed"

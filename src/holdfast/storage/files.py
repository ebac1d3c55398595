"""Storage in a folder of a file system, local or shared. Runs anywhere with POSIX files.

An object is written to a hidden file beside its name (`.NAME.RANDOM.part`) and synced; a hard link gives it its name,
and fails where the name is taken. Then the folder is synced. Folders are never removed: nobody who creates an object
finds its folder gone. A file system has no object `a` beside an object `a/b`: the later of the two is an `OSError`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.durable_files import sync_folder, write_durably
from holdfast.errors import CheckFailed
from holdfast.storage.storage import check_name, check_prefix, is_name

if TYPE_CHECKING:
    import pyarrow as pa

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
"""What `link` says where a file system has no hard links: FUSE mounts of buckets, as a rule."""
_TRIES = 3
"""A folder is made again where somebody removes the whole storage meanwhile."""


class FileStorage:
    """The objects below a folder, one file each; the folder is made with the first object."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.url = str(self.folder)
        self._top = self.folder
        self._durable: set[Path] = set()
        """Folders whose entries in their parents this process has synced."""

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """Store an object under a name that is free; False: the name is taken."""
        path = self._path(name)
        contents = memoryview(data).cast("B")
        for tries_left in reversed(range(_TRIES)):
            try:
                self._make_folders(path.parent)
                return self._link(path, contents)
            except FileNotFoundError:
                self._durable.clear()
                if not tries_left:
                    raise
        raise AssertionError

    def read(self, name: str) -> pa.Buffer | None:
        """Return an object, mapped into memory where that is safe; None where there is none."""
        import pyarrow as pa

        path = self._path(name)
        try:
            with path.open("rb") as file:
                if not _keeps_mappings(os.fstat(file.fileno())):
                    return pa.py_buffer(file.read())
            with pa.memory_map(str(path)) as mapped:
                return mapped.read_buffer()
        except _ABSENT:
            return None

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """Return the names that begin with a prefix and come after a name, in order of their characters."""
        folder = check_prefix(prefix).rpartition("/")[0]
        return sorted(name for name in self._walk(folder, prefix) if name > after)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; names that are not there are passed over."""
        for path in [self._path(name) for name in names]:
            with suppress(*_ABSENT):
                path.unlink()

    def within(self, folder: str) -> FileStorage:
        """Return the same storage, with all names under a folder."""
        view = FileStorage(self._path(folder))
        view._top = self._top
        view._durable = self._durable
        return view

    def sweep_parts(self, older_than_seconds: float = 86400) -> int:
        """Remove the hidden files of writers that died; return how many."""
        oldest = time.time() - older_than_seconds
        removed = 0
        for place, _, files in os.walk(self.folder):
            for file in files:
                path = Path(place, file)
                if file.startswith(".") and file.endswith(".part"):
                    with suppress(FileNotFoundError):
                        if path.lstat().st_mtime <= oldest:
                            path.unlink()
                            removed += 1
        return removed

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self._top, self.folder)

    def _path(self, name: str) -> Path:
        return self.folder / check_name(name)

    def _make_folders(self, folder: Path) -> None:
        """Make a folder and sync its entry in its parent, and so on up to the folder that the storage is in.

        A parent outside the storage need not be readable; then it is not synced.
        """
        if folder in self._durable:
            return
        missing = [one for one in (self._top, *self._top.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        outermost = missing[-1] if missing else self._top
        for one in (folder, *folder.parents):
            # Also where it was there: who made it may not have synced it yet.
            try:
                sync_folder(one.parent)
            except PermissionError:
                if one.is_relative_to(self._top) and one != self._top:
                    raise
            if one == outermost:
                break
        self._durable.add(folder)

    def _link(self, path: Path, contents: memoryview) -> bool:
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        try:
            write_durably(part, [contents])
            created = _link_once(part, path)
        finally:
            part.unlink(missing_ok=True)
        sync_folder(path.parent)  # also where the name is taken: its creator may not have come to this
        return created

    def _walk(self, folder: str, prefix: str) -> Iterator[str]:
        """Yield the names in a folder and below that begin with a prefix; what vanishes meanwhile is passed over."""
        try:
            with os.scandir(self.folder / folder) as entries:
                found = [(entry.name, entry.is_dir()) for entry in entries]
        except _ABSENT:
            return
        for entry, is_folder in found:
            name = f"{folder}/{entry}" if folder else entry
            if not is_name(entry):
                continue
            if is_folder:
                if f"{name}/".startswith(prefix[: len(name) + 1]):
                    yield from self._walk(name, prefix)
            elif name.startswith(prefix):
                yield name


def _link_once(part: Path, path: Path) -> bool:
    try:
        os.link(part, path)
    except FileExistsError:
        if path.is_dir():
            raise IsADirectoryError(f"{path}: there are objects under this name, so it cannot be one itself") from None
        # A link over NFS whose answer was lost is sent again, and then finds itself.
        with suppress(FileNotFoundError):
            return part.samefile(path)
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise CheckFailed(
            f"this file system has no hard links, or allows none here ({error.strerror}), and a run needs them",
            where=str(path.parent),
            remedy="choose a folder on a local disk or an NFS mount; for a bucket that is mounted, name the bucket "
            "itself: s3://, gs:// or az://",
        ) from error
    return True


def _keeps_mappings(file: os.stat_result) -> bool:
    """Whether a file is on a block device, and so stays mapped when it is deleted.

    On a network file system it does not: where another machine deletes the file, a touch of the mapping kills the
    process. Those have no device number of their own; nor have some local ones, which are read like them.
    """
    return os.major(file.st_dev) != 0 and stat.S_ISREG(file.st_mode)


def _reopen(top: Path, folder: Path) -> FileStorage:
    storage = FileStorage(folder)
    storage._top = top
    return storage

"""The file with a cluster's secret: read, checked, and read again when it changes. Runs wherever the secret is used.

A line is a secret. A file holds one; while it is replaced, two: the new one first, then the previous one, which is
accepted until its line is removed. A side that connects tries the first line, then the second, so that nodes may get
the new file in any order, at any time, and nothing stops (docs/operate/security.md has the procedure).

    the cluster's secret                            opens everything
    holdfast-namespace-1 NAME KEY                   opens one namespace; made by `holdfast store namespace-secret`

Only this process's user may read the file: one that others may read is refused with the remedy. A file of root may be
readable for its group: so container platforms hand secrets to processes of other users.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.store.wire.handshake import ClusterKey, Keys, key_from_secret, namespace_key, open_key

log = logging.getLogger("holdfast.store.secrets")

SHORT_SECRET = 16
"""A secret of fewer bytes is taken, with a warning."""
MOST_SECRETS = 2
"""The new one and the previous one."""
_NAMESPACE = "holdfast-namespace-1"
_KEY_BYTES = 32


class SecretFile:
    """The secrets in a file; see Keys. Thread-safe; never pickled."""

    secret = True

    def __init__(self, path: str | Path) -> None:
        """Read the file; it must be there, with one or two secrets, for this user only."""
        self._path = Path(path)
        self._lock = threading.Lock()
        self._made: dict[str, ClusterKey] = {}
        self._refused: tuple[int, ...] | None = None
        self._seen = self._stamp()
        self._keys = self._read()

    def __repr__(self) -> str:
        return f"SecretFile({str(self._path)!r})"

    def __reduce__(self) -> str:
        raise TypeError("secrets are not pickled: pass the file's name and read it where it is used")

    def valid(self) -> tuple[ClusterKey, ...]:
        """See Keys: what the file holds now. A changed file that cannot be used is reported; the keys before stay."""
        with self._lock:
            try:
                stamp = self._stamp()
                if stamp not in (self._seen, self._refused):
                    self._refused = stamp
                    self._keys = self._read()
                    self._seen, self._refused = stamp, None
                    log.warning("%s has changed: %d secrets are valid", self._path, len(self._keys))
            except BadInput as bad:
                log.warning("the changed secret is not used, the one before stays valid: %s", bad)
            return self._keys

    def _stamp(self) -> tuple[int, ...]:
        try:
            about = self._path.stat()
        except OSError as error:
            raise _unreadable(self._path, error) from None
        return about.st_ino, about.st_mtime_ns, about.st_size, about.st_mode

    def _read(self) -> tuple[ClusterKey, ...]:
        lines = secrets_in(self._path)
        # A secret that stays is not stretched again: that takes tens of milliseconds.
        self._made = {line: self._made.get(line) or _key(line, self._path) for line in lines}
        return tuple(self._made[line] for line in lines)


def keys_from_file(path: str | Path | None) -> Keys:
    """Return the keys of a secret's file; no file, no secret."""
    return open_key() if path is None else SecretFile(path)


def secrets_in(path: Path) -> list[str]:
    """Read a file of secrets; refuse what is not fit to be one."""
    check_private(path, "the secret")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        lines = ["\0"]
    lines = list(dict.fromkeys(line for line in lines if line))
    if not lines:
        raise BadInput("the secret is empty", where=str(path), remedy="write at least 16 random characters into it")
    if len(lines) > MOST_SECRETS or not all(line.isprintable() for line in lines):
        raise BadInput(
            "a secret is one line of text; while it is replaced, the new one and below it the previous one",
            where=str(path),
            remedy="make one with: head -c 32 /dev/urandom | base64",
        )
    return lines


def check_private(path: Path, what: str) -> None:
    """Refuse a file that other users may read; a file of root may be readable for its group."""
    try:
        about = path.stat()
    except OSError as error:
        raise _unreadable(path, error, what) from None
    roots = about.st_uid == 0 and os.geteuid() != 0
    others = about.st_mode & (stat.S_IRWXO | stat.S_IWGRP if roots else stat.S_IRWXO | stat.S_IRWXG)
    if others:
        raise BadInput(
            f"other users may use the file of {what} (mode {stat.S_IMODE(about.st_mode):o})",
            where=str(path),
            remedy=f"chmod 600 {path}",
        )


def weakness(path: str | Path) -> str | None:
    """Return what is unwise about a file's secrets, if anything."""
    if any(len(line) < SHORT_SECRET for line in secrets_in(Path(path))):
        return f"the secret is shorter than {SHORT_SECRET} characters and could be guessed"
    return None


def namespace_secrets(path: Path, namespace: str) -> str:
    """Return what the file of a namespace's secret holds, made from the file of the cluster's secret."""
    keys = SecretFile(path).valid()
    if any(key.namespace is not None for key in keys):
        raise BadInput(
            "this file opens one namespace only", where=str(path), remedy="name the file with the cluster's secret"
        )
    return "".join(f"{_NAMESPACE} {namespace} {namespace_key(key, namespace).key.hex()}\n" for key in keys)


def _key(line: str, path: Path) -> ClusterKey:
    if not line.startswith(_NAMESPACE):
        return key_from_secret(line.encode())
    words = line.split()
    try:
        _, namespace, text = words
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise BadInput(
            "not the secret of a namespace",
            where=str(path),
            remedy="make it with `holdfast store namespace-secret`, and copy it whole",
        )
    return ClusterKey(key, secret=True, namespace=namespace)


def _unreadable(path: Path, error: OSError, what: str = "the secret") -> BadInput:
    return BadInput(
        f"cannot read {what}: {error.strerror}", where=str(path), remedy="name a file that this user may read"
    )

"""The errors of the store: a closed set, each with a code that travels over the wire.

Runs anywhere. A peer responds to a request it cannot serve with the code and one line; the client raises the same class
again on its side, so that `StaleEpoch` at a peer is `StaleEpoch` at the caller.
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors import BadInput, CheckFailed, HoldfastError


class StoreError(CheckFailed):
    """Base of the store's errors; `code` names the class on the wire."""

    code: ClassVar[str] = "failed"


class StateMissing(StoreError):
    """No complete state of that name exists: never saved, deleted, or fewer than m fragments left."""

    code = "missing"


class StaleEpoch(StoreError):
    """A write carried a fenced epoch: it came from an old driver or from a node that was frozen."""

    code = "stale-epoch"


class NotSaved(StoreError):
    """A save did not reach its quorum and is not acknowledged."""

    code = "not-saved"


class Corrupt(StoreError):
    """Bytes did not match their checksum; they count as lost."""

    code = "corrupt"


class NoRoom(StoreError):
    """A quota or the disk is full."""

    code = "no-room"


class Busy(StoreError):
    """A limit on connections or rates was reached; try again later."""

    code = "busy"


class Unreachable(StoreError):
    """A peer did not respond: refused, reset, or no response within the time limit."""

    code = "unreachable"


class NotTrusted(StoreError):
    """The two sides do not have the same cluster secret."""

    code = "not-trusted"


class BadRequest(BadInput):
    """A request that no peer serves: an invalid name, a missing field."""

    code: ClassVar[str] = "bad-request"


_CLASSES: dict[str, type[HoldfastError]] = {
    kind.code: kind
    for kind in (
        StoreError,
        StateMissing,
        StaleEpoch,
        NotSaved,
        Corrupt,
        NoRoom,
        Busy,
        Unreachable,
        NotTrusted,
        BadRequest,
    )
}


def code_of(error: BaseException) -> str:
    """Return the code an error travels under."""
    return getattr(error, "code", StoreError.code)


def raised_again(code: str, line: str, where: str | None = None) -> HoldfastError:
    """Return the error of a peer's response, as the class it had there."""
    return _CLASSES.get(code, StoreError)(line, where=where)

"""How the store says no: one closed set of errors, each with a code that travels over the wire.

Runs anywhere. A peer answers a request it cannot serve with the code and one line; the client raises the same class
again on its side, so that `StaleEpoch` at a peer is `StaleEpoch` at the caller.
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors import BadInput, CheckFailed, HoldfastError


class StoreError(CheckFailed):
    """What all of the store's refusals are; `code` names the class on the wire."""

    code: ClassVar[str] = "failed"


class StateMissing(StoreError):
    """No whole state of that name is there: never saved, released, or fewer than m fragments left."""

    code = "missing"


class StaleEpoch(StoreError):
    """A write carried an epoch below the namespace's: an old driver or a thawed node wrote it."""

    code = "stale-epoch"


class NotSaved(StoreError):
    """A save did not reach its quorum; nothing is acknowledged."""

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
    """A peer did not answer: refused, reset, or silent beyond the time limit."""

    code = "unreachable"


class NotTrusted(StoreError):
    """The other side does not know the cluster secret, or we do not know its."""

    code = "not-trusted"


class BadRequest(BadInput):
    """A request that no peer serves: a name that is not allowed, a field that is missing."""

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
    """Return the error a peer answered with, as the class it was there."""
    return _CLASSES.get(code, StoreError)(line, where=where)

"""What becomes of a batch on which an operator fails. Runs anywhere."""

from __future__ import annotations

from enum import StrEnum

from holdfast.errors import BadInput


class OnError(StrEnum):
    """What happens to rows that an operator cannot take."""

    PARK = "park"
    """Its queries stop where they are, until they are resumed."""
    QUARANTINE = "quarantine"
    """These rows are left out and kept as dead letters; its queries go on with the others."""


def read_on_error(given: object, *, field: str) -> OnError:
    """Read what a user gives."""
    try:
        return OnError(given)  # type: ignore[arg-type]
    except ValueError:
        raise BadInput(f"{given!r} is not known", field=field, remedy='give "park" or "quarantine"') from None

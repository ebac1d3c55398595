"""Lists of names as options take them: `count,traffic`."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import BadInput


def read_names(given: str, known: Iterable[str], option: str) -> list[str]:
    """Read names separated by commas; refuse one that is not known."""
    names = list(known)
    found = [word.strip() for word in given.split(",") if word.strip()]
    if not found:
        raise BadInput("is empty", field=option, remedy=f"name some of {', '.join(names)}")
    for word in found:
        if word not in names:
            raise BadInput(f"{word!r} is not known", field=option, remedy=f"name some of {', '.join(names)}")
    return list(dict.fromkeys(found))

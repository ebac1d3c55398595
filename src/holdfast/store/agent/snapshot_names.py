"""Names of snapshots: `traffic-1a2b3c/O3-0/120.7`, that is run, partition, batch and epoch. Runs anywhere.

A name is saved once and never changes its contents, so every snapshot is a state of its own in the fragment store, with
one version: the run is the namespace, where epochs fence, and the rest is the name. Files are called by the same key.
"""

from __future__ import annotations

import re

from holdfast.erasure.fragment import StateId
from holdfast.errors import BadInput, one_line

LONGEST_RUN = 100
LONGEST_REST = 120
_PART = re.compile(r"[A-Za-z0-9_\[\]](?:[A-Za-z0-9_.\[\]-]*[A-Za-z0-9_\[\]-])?", re.ASCII)
_BETWEEN = ".."
"""Stands for `/` where a name must not be a path. No part has it, begins or ends with a dot: so it can be undone."""


def key_of(name: str) -> str:
    """Return the name as one word that files may be called; refuses what is not a snapshot's name."""
    parts = name.split("/")
    good = len(parts) > 1 and all(_PART.fullmatch(part) and _BETWEEN not in part for part in parts)
    if not good or len(parts[0]) > LONGEST_RUN or len(name) - len(parts[0]) > LONGEST_REST:
        raise BadInput(
            f"{one_line(name, 100)!r} is not a valid snapshot name",
            remedy="write it like run/O3-0/120.7: letters, digits, _ - . [ ], parts not beginning or ending with a dot",
        )
    return _BETWEEN.join(parts)


def name_of(key: str) -> str:
    """Return the name a key stands for."""
    return key.replace(_BETWEEN, "/")


def state_of(name: str) -> StateId:
    """Return the state under which the fragment store knows a snapshot."""
    run, _, rest = key_of(name).partition(_BETWEEN)
    return StateId(run, rest)

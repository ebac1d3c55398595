"""The ring and placement are driven alike by real peers and the simulator: no clock, socket, file or thread in them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast.store.ring

FOLDER = Path(next(iter(holdfast.store.ring.__path__)))
PURE = (
    "encoding",
    "ids",
    "leaf_set",
    "machine",
    "messages",
    "neighbourhood",
    "placement",
    "routing_table",
    "settings",
)
IMPURE = {
    "asyncio",
    "datetime",
    "os",
    "pathlib",
    "secrets",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}


@pytest.mark.parametrize("name", PURE)
def test_no_clock_socket_file_or_thread(name: str) -> None:
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]}
            if node.module == "random":
                assert [alias.name for alias in node.names] == ["Random"], "randomness is an argument"
            if (node.module or "").startswith("holdfast.store."):
                assert (node.module or "").rpartition(".")[2] in PURE
        else:
            continue
        assert not names & IMPURE, f"{name}.py:{node.lineno}"
        assert "random" not in names or isinstance(node, ast.ImportFrom)

"""A fragment whose sender falls silent: what was reserved for it is free again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.erasure.encoding import encode
from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.peer.limits import Limits
from holdfast.store.peer.operations import Operations
from holdfast.store.wire.frames import FrameProtocol
from holdfast.store.wire.messages import BadFrame, Bytes, Frame, Kind


class Silent:
    """The connection of a client whose machine died: nothing more comes, and nothing says so."""

    namespace: str | None = None

    async def send(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> None:
        assert header == {"here": False}

    async def next(self) -> Frame:
        await asyncio.Event().wait()
        raise AssertionError


def test_a_put_whose_sender_died_without_a_word_ends(tmp_path: Path) -> None:
    files = FragmentFiles(tmp_path, Limits(idle_seconds=0.01))
    header = FragmentHeader.unpack(encode(b"x" * 3000, StateId("a", "b"), BatchId(1), Epoch(1), Coding(1, 0))[0])
    put = Frame(Kind.REQUEST, {"do": "put"}, header.pack())

    async def serve() -> None:
        with ThreadPoolExecutor(1) as threads:
            operations = Operations(files, cast(Any, None), cast(Any, None), threads)
            await asyncio.wait_for(operations.serve(cast(FrameProtocol, Silent()), put), 60)

    with pytest.raises(BadFrame, match="no chunk of a fragment"):
        asyncio.run(serve())
    assert files._incoming_bytes.total() == 0, "room is not reserved for ever"
    assert list((tmp_path / "incoming").iterdir()) == []
    files.close()

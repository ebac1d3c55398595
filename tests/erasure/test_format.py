"""The written format does not change: golden fragments are read and written bit for bit, by every codec there is."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure import checksums, encoding, isa_l
from holdfast.erasure.codec import StripeCodec, codec_for
from holdfast.erasure.decoding import decode, recompute, verify_fragment
from holdfast.erasure.encoding import encode
from holdfast.erasure.faults import DamagedFragment
from holdfast.erasure.fragment import BLOCK_PREFIX, FragmentHeader, StateId
from holdfast.erasure.isa_l_codec import IsaLCodec
from holdfast.erasure.layout import Coding
from holdfast.erasure.pyeclib_codec import PyeclibCodec
from holdfast.ids import BatchId, Epoch

GOLDEN = Path(__file__).parent.parent / "data" / "fragments"
CASES = json.loads((GOLDEN / "vectors.json").read_text())


def golden_state(size: int) -> bytes:
    """The states of the vectors: SHA-256 in counter mode, so that no library's random numbers matter."""
    blocks = (hashlib.sha256(str(i).encode()).digest() for i in range(-(-size // 32)))
    return b"".join(blocks)[:size]


def encoded(case: dict[str, Any]) -> list[bytearray]:
    return encode(
        golden_state(case["state_bytes"]),
        StateId(case["namespace"], case["name"]),
        BatchId(case["version"]),
        Epoch(case["epoch"]),
        Coding(case["data"], case["parity"]),
        follows=None if case["follows"] is None else BatchId(case["follows"]),
        block_bytes=case["block_bytes"],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_golden_fragments_are_written_and_read(case: dict[str, Any]) -> None:
    stored = (GOLDEN / case["file"]).read_bytes()
    total = case["data"] + case["parity"]
    size = len(stored) // total
    fragments = [stored[i * size : (i + 1) * size] for i in range(total)]
    assert [bytes(fragment) for fragment in encoded(case)] == fragments
    assert hashlib.sha256(stored).hexdigest() == case["sha256"]
    header = verify_fragment(fragments[-1])
    assert header.index == total - 1
    assert header.state.digest.hex() == case["digest"]
    assert header.state.follows == case["follows"]
    assert decode(fragments[-case["data"] :]) == golden_state(case["state_bytes"])


def test_the_header_is_laid_out_as_the_page_says() -> None:
    """Written out by hand from docs/reference/fragment-format.md, not with the code's own structures."""
    case = CASES[0]
    fragment = (GOLDEN / case["file"]).read_bytes()
    names = len(case["namespace"]) + len(case["name"])
    assert fragment[:8] == b"HOLDFRAG"
    assert struct.unpack_from("<HH", fragment, 8) == (1, 76 + names + 4)
    assert tuple(fragment[12:17]) == (case["data"], case["data"] + case["parity"], 0, 0, 1)
    assert fragment[17:20] == b"\0\0\0"
    assert struct.unpack_from("<IQqqq", fragment, 20) == (
        case["block_bytes"],
        case["state_bytes"],
        case["version"],
        -1,
        case["epoch"],
    )
    assert fragment[56:72].hex() == case["digest"]
    assert struct.unpack_from("<HH", fragment, 72) == (len(case["namespace"]), len(case["name"]))
    assert fragment[76 : 76 + names] == (case["namespace"] + case["name"]).encode()
    (checksum,) = struct.unpack_from("<I", fragment, 76 + names)
    assert checksum == zlib.crc32(fragment[: 76 + names])


def test_the_first_block_is_guarded_as_the_page_says() -> None:
    case = CASES[0]
    fragment = (GOLDEN / case["file"]).read_bytes()
    start = 76 + len(case["namespace"]) + len(case["name"]) + 4
    check, checksum = fragment[start : start + 16], struct.unpack_from("<I", fragment, start + 16)[0]
    payload = fragment[start + 20 : start + 20 + case["block_bytes"]]
    place = bytes.fromhex(case["digest"]) + bytes([0]) + struct.pack("<Q", 0) + check
    assert checksum == zlib.crc32(payload, zlib.crc32(place))
    assert payload == golden_state(case["state_bytes"])[: case["block_bytes"]]
    stripe = golden_state(case["state_bytes"])[: case["block_bytes"] * case["data"]]
    page = sum(struct.unpack(f"<{len(stripe) // 8}Q", stripe)) % 2**64
    assert check == hashlib.blake2b(page.to_bytes(8, "little"), digest_size=16).digest()


def test_stripe_checks_of_whole_and_broken_pages() -> None:
    stripe = golden_state(3 * 4096 + 13)
    sums = b""
    for start in range(0, len(stripe), 4096):
        page = stripe[start : start + 4096].ljust(4096, b"\0")
        sums += struct.pack("<Q", sum(struct.unpack("<512Q", page)) % 2**64)
    assert checksums.stripe_check(stripe) == hashlib.blake2b(sums, digest_size=16).digest()


def test_an_unknown_version_or_code_is_refused_by_name() -> None:
    fragment = encoded(CASES[0])[0]
    for place, number, words in ((8, 2, "fragment format version 2"), (16, 9, "code 9")):
        changed = bytearray(fragment)
        changed[place] = number
        end = struct.unpack_from("<H", changed, 10)[0]
        struct.pack_into("<I", changed, end - 4, zlib.crc32(changed[: end - 4]))
        with pytest.raises(DamagedFragment, match=words):
            FragmentHeader.unpack(changed)


@given(data=st.integers(1, 16), parity=st.integers(1, 16), length=st.integers(1, 3000), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_isa_l_and_pyeclib_make_and_read_the_same_blocks(data: int, parity: int, length: int, seed: int) -> None:
    library = isa_l.library()
    if library is None:
        pytest.skip("ISA-L cannot be reached by name here: only pyeclib is used")
    chance = Random(seed)
    stripe = chance.randbytes(length)
    codecs: list[StripeCodec] = [IsaLCodec(Coding(data, parity), library), PyeclibCodec(Coding(data, parity))]
    made = [[bytes(block) for block in codec.encode(stripe)] for codec in codecs]
    assert made[0] == made[1]
    kept = {i: made[0][i] for i in chance.sample(range(data + parity), data)}
    lost = sorted(set(range(data + parity)) - set(kept))
    for codec in codecs:
        assert bytes(codec.decode(kept, length)) == stripe
        rebuilt = codec.recompute(kept, lost, length)
        assert {i: bytes(block) for i, block in rebuilt.items()} == {i: made[0][i] for i in lost}


def test_without_isa_l_everything_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    state = golden_state(10_000)
    fast = encode(state, StateId("a", "b"), BatchId(1), Epoch(1), Coding(4, 3), block_bytes=600)
    monkeypatch.setattr(encoding, "codec_for", PyeclibCodec)
    monkeypatch.setattr("holdfast.erasure.decoding.codec_for", PyeclibCodec)
    monkeypatch.setattr(checksums, "library", lambda: None)
    assert encode(state, StateId("a", "b"), BatchId(1), Epoch(1), Coding(4, 3), block_bytes=600) == fast
    assert decode(fast[3:]) == state
    assert recompute(fast[3:], [0, 2]) == {0: fast[0], 2: fast[2]}


def test_here_the_fast_way_is_taken() -> None:
    assert isinstance(codec_for(Coding(10, 4)), IsaLCodec if isa_l.library() else PyeclibCodec)
    data = golden_state(5000)
    for start in (0, 1, 0xFFFFFFFF):
        assert checksums.crc32(data, start) == zlib.crc32(data, start)
        assert checksums.crc32(memoryview(data)[3:4000], start) == zlib.crc32(data[3:4000], start)
    assert BLOCK_PREFIX.size == 20

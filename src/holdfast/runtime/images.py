"""Images: a partition's state at a batch as bytes, for the store. A base, or the changes since another version.

Runs anywhere. An image holds a commit's record and those of its runs that an earlier image does not have; the runs are
known by where they were written. During a recovery it holds the outbox as well, so that a second failure costs only the
partition itself. States are Arrow, never pickles.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch
from holdfast.runtime.blocks import Block, decode_blocks, encode_blocks
from holdfast.runtime.run_files import decode_runs, encode_runs
from holdfast.runtime.versions import Commit, FileName, RunRef, VersionId, decode_commit, encode_record

_MAGIC = b"HFIMAGE1"
_SIZES = struct.Struct("<8sQQQ")


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A partition's state at a batch, or what is new in it since another version."""

    commit: Commit
    since: VersionId | None
    """The version whose image must be there too; None: this one is whole."""
    runs: Mapping[RunRef, pa.Table]
    outbox: Sequence[Block] = ()
    """Blocks that consumers may still ask for."""


def take_image(
    commit: Commit, state: Mapping[str, tuple[pa.Table, ...]], since: Commit | None, outbox: Sequence[Block] = ()
) -> Image:
    """Make an image of a version: of all of it, or of what an earlier one does not have."""
    held = set() if since is None else {ref for refs in since.runs.values() for ref in refs}
    runs = {
        ref: run
        for name, refs in commit.runs.items()
        for ref, run in zip(refs, state[name], strict=True)
        if ref not in held
    }
    return Image(commit, None if since is None else since.id, runs, tuple(outbox))


def assemble(images: Sequence[Image]) -> dict[str, tuple[pa.Table, ...]]:
    """Put a state together from a base and the changes since, oldest first."""
    runs: dict[RunRef, pa.Table] = {}
    for number, image in enumerate(images):
        before = images[number - 1].commit.id if number else None
        if image.since != before:
            raise CheckFailed(
                f"an image of {image.commit.partition} at batch {image.commit.id.batch} does not follow the one before",
                remedy="give the base and every change after it, oldest first",
            )
        runs.update(image.runs)
    return {name: tuple(runs[ref] for ref in refs) for name, refs in images[-1].commit.runs.items()}


def encode_image(image: Image) -> bytes:
    """Write an image down."""
    record = encode_record(image.commit)
    since = b"" if image.since is None else b"%d %d" % (image.since.batch, image.since.epoch)
    names = "\n".join(f"{ref.number} {ref.file}" for ref in image.runs).encode()
    head = b"%d %d %d\n" % (len(record), len(since), len(names)) + record + since + names
    # Each run is a table of its own here: runs of one state table come in any order and number.
    runs = encode_runs({str(number): [run] for number, run in enumerate(image.runs.values())})
    blocks = encode_blocks(image.outbox)
    parts = (head, bytes(-(_SIZES.size + len(head)) % 64), runs, bytes(-len(runs) % 64), blocks)
    return _SIZES.pack(_MAGIC, len(head), len(runs), len(blocks)) + b"".join(parts)


def decode_image(data: pa.Buffer | bytes) -> Image:
    """Read an image without copying its runs; what is torn or changed is refused."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if buffer.size < _SIZES.size:
        raise _torn()
    magic, head_size, runs_size, blocks_size = _SIZES.unpack_from(memoryview(buffer), 0)
    runs_at = _SIZES.size + head_size + -(_SIZES.size + head_size) % 64
    blocks_at = runs_at + runs_size + -runs_size % 64
    if magic != _MAGIC or blocks_at + blocks_size != buffer.size:
        raise _torn()
    head = bytes(memoryview(buffer)[_SIZES.size : _SIZES.size + head_size])
    sizes, _, rest = head.partition(b"\n")
    record_size, since_size, names_size = (int(size) for size in sizes.split())
    if len(rest) != record_size + since_size + names_size:
        raise _torn()
    commit = decode_commit(rest[:record_size])
    since_text = rest[record_size : record_size + since_size]
    names = rest[record_size + since_size :].decode()
    refs = []
    for line in names.splitlines():
        number, _, file = line.partition(" ")
        refs.append(RunRef(FileName(file), int(number)))
    runs = decode_runs(buffer.slice(runs_at, runs_size))
    if len(runs) != len(refs):
        raise _torn()
    since = None
    if since_text:
        batch, epoch = since_text.split()
        since = VersionId(BatchId(int(batch)), Epoch(int(epoch)))
    outbox = decode_blocks(buffer.slice(blocks_at, blocks_size)) if blocks_size else []
    return Image(commit, since, dict(zip(refs, runs, strict=True)), tuple(outbox))


def _torn() -> CheckFailed:
    return CheckFailed("an image is torn or changed", remedy="it counts as lost: take another checkpoint's")

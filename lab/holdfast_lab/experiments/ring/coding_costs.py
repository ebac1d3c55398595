"""Fig. 11 of A-FP4S, measured on this machine: recomputing by m and k, encoding by k, lost blocks.

One core, in memory, no network: what the paper calls recompute. Seconds are the core's own time, so that other work on
the machine counts little, and the least of several runs. Network time is the model's, at 100 Mbit/s for each peer.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from holdfast.erasure.decoding import FragmentSet, decode_stream, gather
from holdfast.erasure.encoding import describe, encode, encode_stripes
from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.planning.fragments.choice import upload_bytes
from holdfast_lab.experiments.ring.part import Claim, Part, Progress, RingExperiment

_STATE = StateId("experiment", "ring")
PAPER_RATE = 65e6
"""Bytes per second the paper's prototype recomputes (sec. 5.3)."""


def run(experiment: RingExperiment, progress: Progress) -> list[Part]:
    """Measure all three."""
    state = pseudo_random(experiment.state_bytes)
    return [
        recompute(experiment, state, progress),
        encoding(experiment, state, progress),
        lost_blocks(experiment, state, progress),
    ]


def recompute(experiment: RingExperiment, state: bytes, progress: Progress) -> Part:
    """Fig. 11a: one fragment is lost; m from 11 to 20 with k = 10, and k from 11 to 20 with m = 10."""
    codings = [("m", Coding(m, 10)) for m in range(11, 21)] + [("k", Coding(10, k)) for k in range(11, 21)]
    rows: list[dict[str, Any]] = []
    for number, (varied, coding) in enumerate(codings):
        progress("recompute", number, len(codings))
        least, middle = rebuild_seconds(state, coding, 1, experiment.repeat)
        fragment = len(state) / coding.data
        rows.append(
            {
                "varied": varied,
                "data": coding.data,
                "parity": coding.parity,
                "recompute_seconds": least,
                "recompute_median": middle,
                "mb_per_second": len(state) / least / 1e6,
                "retrieve_seconds": fragment / experiment.bandwidth,
                "paper_model": upload_bytes(coding, 1.0),
            }
        )
    by_m = [row for row in rows if row["varied"] == "m"]
    by_k = [row for row in rows if row["varied"] == "k"]
    total = [row["recompute_seconds"] + row["retrieve_seconds"] for row in by_m]
    model = f"m B/(m+k-1): {by_m[0]['paper_model']:.3f} B at m = 11, {by_m[-1]['paper_model']:.3f} B at m = 20"
    return Part(
        name="recompute",
        figure="11a",
        title=f"Recomputing a state of {len(state) >> 20} MB with one fragment lost",
        rows=tuple(rows),
        claims=(
            Claim(
                "Fig. 11a",
                "the time grows with m when the block B is given, and falls with k",
                model,
                f"a state of given size: recompute {1000 * by_m[0]['recompute_seconds']:.0f} ms at m = 11, "
                f"{1000 * by_m[-1]['recompute_seconds']:.0f} ms at m = 20, "
                f"{1000 * by_k[-1]['recompute_seconds']:.0f} ms at k = 20; with retrieval in parallel "
                f"{total[0]:.2f} s and {total[-1]:.2f} s: here larger m is faster, blocks being smaller",
                None,
            ),
            Claim(
                "sec. 5.3",
                "recompute rate",
                "about 65 MB/s",
                f"{min(row['mb_per_second'] for row in rows):,.0f} MB/s at the slowest code, on one core",
                min(row["mb_per_second"] for row in rows) > PAPER_RATE / 1e6,
            ),
        ),
        note="Decoding with every check, from memory; fragment 0 is missing.",
    )


def encoding(experiment: RingExperiment, state: bytes, progress: Progress) -> Part:
    """Fig. 11b: time to encode by k."""
    rows: list[dict[str, Any]] = []
    ks = range(11, 21)
    for number, k in enumerate(ks):
        progress("encode", number, len(ks))
        least, middle = timed(partial(_encode, state, Coding(10, k)), experiment.repeat)
        rows.append({"data": 10, "parity": k, "encode_seconds": least, "encode_median": middle})
    first, last = rows[0]["encode_seconds"], rows[-1]["encode_seconds"]
    return Part(
        name="encoding",
        figure="11b",
        title=f"Encoding a state of {len(state) >> 20} MB by parity fragments",
        rows=tuple(rows),
        claims=(
            Claim(
                "Fig. 11b",
                "encoding 128 MB grows slightly with k",
                "1.5 to 2 s",
                f"{first:.2f} s at k = 11, {last:.2f} s at k = 20",
                last < 2.0,
            ),
        ),
        note="With all checksums, digest included; one core, from memory.",
    )


def lost_blocks(experiment: RingExperiment, state: bytes, progress: Progress) -> Part:
    """Fig. 11c: time to recover by e, the lost fragments, from 1 to 16 of 16 + 16."""
    coding = Coding(16, 16)
    rows: list[dict[str, Any]] = []
    fragments = encode(state, _STATE, BatchId(1), Epoch(1), coding)
    for lost in range(1, 17):
        progress("lost blocks", lost, 16)
        least, middle = timed(partial(_rebuild, gather(fragments[lost:])), experiment.repeat)
        rows.append({"lost": lost, "recompute_seconds": least, "recompute_median": middle})
    first, last = rows[0]["recompute_seconds"], rows[-1]["recompute_seconds"]
    return Part(
        name="lost-blocks",
        figure="11c",
        title=f"Recomputing a state of {len(state) >> 20} MB by lost fragments, {coding}",
        rows=tuple(rows),
        claims=(
            Claim(
                "Fig. 11c",
                "recovery grows slowly and linearly with the lost blocks, e from 1 to 16",
                "slow, linear growth (no figure in the text)",
                f"{1000 * first:.0f} ms with 1 lost, {1000 * last:.0f} ms with 16",
                last > first,
            ),
        ),
        note="The first e fragments, all of them data, are missing: the most arithmetic e losses can cause.",
    )


def rebuild_seconds(state: bytes, coding: Coding, lost: int, repeat: int) -> tuple[float, float]:
    """Return least and median seconds to rebuild the state without its first fragments."""
    gathered = gather(encode(state, _STATE, BatchId(1), Epoch(1), coding)[lost:])
    return timed(partial(_rebuild, gathered), repeat)


def timed(work: Callable[[], None], repeat: int) -> tuple[float, float]:
    """Return least and median seconds of this thread's own time in several runs."""
    took = []
    for _ in range(repeat):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return min(took), median(took)


def pseudo_random(size: int) -> bytes:
    """Return bytes that do not compress and are the same every time."""
    return hashlib.shake_128(b"holdfast").digest(size)


def _encode(state: bytes, coding: Coding) -> None:
    header = describe(state, _STATE, BatchId(1), Epoch(1), coding)
    for _ in encode_stripes(header, state):
        pass


def _rebuild(fragments: FragmentSet) -> None:
    for _ in decode_stream(fragments):
        pass

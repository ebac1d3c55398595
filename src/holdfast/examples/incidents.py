"""Incidents (PPA, Q2): which incidents of the last five minutes come with a traffic jam, told every ten seconds.

Runs anywhere. O1 averages the speed of every segment in every second; O2 condenses what users report into incidents; O3
joins both over windows of five minutes that slide by ten seconds; O4 aggregates per incident. Only seconds in which a
segment is slow can be part of a jam, so the others are left out before the join.

The input is synthetic, with the paper's numbers: 100,000 users on 1,000 segments by Zipf's law with exponent 0.5;
20,000 locations a second, so each user tells its own every five seconds; an incident every two seconds, on a segment
in proportion to its users, all of whom report it. Chosen here, where the paper is silent: reports come within four
seconds; every other incident slows its segment down for one to three minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import Application, average, distinct, least, sliding, tumbling
from holdfast.examples.draws import SECOND, by_popularity, moments, of_batch

TITLE = "Incidents of the last five minutes that come with a traffic jam"
USERS = 100_000
SEGMENTS = 1_000
SECONDS_PER_INCIDENT = 2
REPORT_SECONDS = 4
SHORTEST_JAM, LONGEST_JAM = 60, 180
JAM_SPEED = 20.0
"""Kilometres per hour: a segment whose average in a second is below is slow."""

_ASSIGNMENT, _LOCATIONS, _INCIDENT = 0, 1, 2
"""The streams of random numbers."""

Users = np.ndarray[Any, np.dtype[np.int64]]


def application() -> Application:
    """Return the application; everything is spread by segment, so no exchange is full."""
    app = Application("incidents")
    locations = app.source(
        "locations",
        schema={"user": "int64", "segment": "string", "speed": "double", "at": "timestamp"},
        event_time="at",
        lateness=1,
        key="segment",
        parallelism=8,
        rate=20_000,
    )
    reports = app.source(
        "reports",
        schema={"user": "int64", "segment": "string", "incident": "int64", "at": "timestamp"},
        event_time="at",
        lateness=1,
        key="segment",
        parallelism=4,
        rate=98,
    )
    speeds = (
        locations.key_by("segment")
        .window(tumbling("1 second"))
        .aggregate(speed=average("speed"), id="O1", parallelism=8, hints={"selectivity": 0.05})
    )
    slow = speeds.filter(pc.field("speed") < JAM_SPEED, id="slow", parallelism=8, selectivity=0.03)
    known = (
        reports.key_by("segment")
        .window(tumbling("10 seconds"))
        .distinct("segment", "incident", id="O2", parallelism=4, selectivity=0.007)
    )
    jams = slow.join(known, on="segment", window=sliding("5 minutes", every="10 seconds"), id="O3", parallelism=4)
    # A pair comes out with the window it shares; windows that end together fall into the same ten seconds.
    jams.key_by("segment", "incident").window(tumbling("10 seconds")).aggregate(
        reported=least("right_window_start"),
        slow_seconds=distinct("left_window_end"),
        slowest=least("speed"),
        id="O4",
        parallelism=1,
    ).output()
    return app


@dataclass(frozen=True, slots=True)
class Incident:
    """What happened on a segment, when, how long it holds up traffic, and when each user there reports it."""

    number: int
    segment: int
    begins: int
    """Microseconds, as all moments here."""
    jam_ends: int
    """When traffic flows again; when it begins, where it causes no jam."""
    users: Users
    reported: Users


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each: so many users' locations, in turn, and all reports of incidents in that second."""
    names = pa.array([f"segment-{number}" for number in range(SEGMENTS)])
    segment_of = by_popularity(of_batch(seed, _ASSIGNMENT, 0), USERS, SEGMENTS, 0.5)
    open_: list[Incident] = []
    for batch in range(count):
        now = batch * SECOND
        if batch % SECONDS_PER_INCIDENT == 0:
            open_.append(_incident(seed, batch // SECONDS_PER_INCIDENT, segment_of))
        open_ = [one for one in open_ if max(one.jam_ends, one.begins + REPORT_SECONDS * SECOND) > now]
        users = (batch * rows + np.arange(rows)) % USERS
        random = of_batch(seed, _LOCATIONS, batch)
        at = moments(random, batch, rows)
        usual, jammed = random.normal(60, 15, rows), random.normal(10, 4, rows)
        held_up = _held_up(open_, segment_of[users], np.asarray(at.cast(pa.int64())))
        # Eighths of a kilometre per hour: sums of them are exact, whatever their order.
        speeds = np.rint(np.where(held_up, jammed, usual).clip(0, 160) * 8) / 8
        locations = pa.table({"user": users, "segment": names.take(pa.array(segment_of[users])), "speed": speeds})
        yield {"locations": locations.append_column("at", at), "reports": _reports(open_, now, names)}


def _incident(seed: int, number: int, segment_of: Users) -> Incident:
    """Draw one incident: on the segment of any user, so segments have them in proportion to their users."""
    random = of_batch(seed, _INCIDENT, number)
    segment = int(segment_of[random.integers(0, USERS)])
    begins = number * SECONDS_PER_INCIDENT * SECOND
    lasts = int(random.integers(SHORTEST_JAM * SECOND, LONGEST_JAM * SECOND)) if random.random() < 0.5 else 0
    users = np.flatnonzero(segment_of == segment)
    reported = begins + random.integers(0, REPORT_SECONDS * SECOND, len(users))
    return Incident(number, segment, begins, begins + lasts, users, reported)


def _held_up(incidents: list[Incident], segments: Users, at: Users) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say which locations are from segments with a jam at their moment."""
    until = np.zeros(SEGMENTS, np.int64)
    since = np.full(SEGMENTS, np.iinfo(np.int64).max)
    for one in incidents:
        if one.jam_ends > one.begins:
            since[one.segment] = min(since[one.segment], one.begins)
            until[one.segment] = max(until[one.segment], one.jam_ends)
    return (since[segments] <= at) & (at < until[segments])


def _reports(incidents: list[Incident], now: int, names: pa.Array) -> pa.Table:
    """Return what is reported within a second, in the order in which it is."""
    found = []
    for one in incidents:
        here = np.flatnonzero((one.reported >= now) & (one.reported < now + SECOND))
        found.append(
            (one.users[here], np.full(len(here), one.segment), np.full(len(here), one.number), one.reported[here])
        )
    columns = zip(*found, strict=True) if found else [[np.zeros(0, np.int64)]] * 4
    users, segments, numbers, at = (np.concatenate(list(parts)).astype(np.int64) for parts in columns)
    order = np.argsort(at, kind="stable")
    return pa.table(
        {
            "user": users[order],
            "segment": names.take(pa.array(segments[order])),
            "incident": numbers[order],
            "at": pa.array(at[order]).cast(pa.timestamp("us")),
        }
    )

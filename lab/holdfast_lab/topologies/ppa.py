"""Topologies of PPA, partially active replication: its examples and the two queries of its experiments. Pure."""

from __future__ import annotations

from functools import cache, partial

from holdfast.ids import OperatorId
from holdfast.topology.draws import rounded
from holdfast.topology.operators import Operator
from holdfast_lab.topologies.named import FULL, MERGE, ONE_TO_ONE, SPLIT, NamedTopology, reads


def _fig1(joins: bool) -> list[Operator]:
    return [
        Operator(OperatorId("O1"), 4),
        Operator(OperatorId("O2"), 4),
        Operator(OperatorId("O3"), 4, reads(("O1", ONE_TO_ONE), ("O2", ONE_TO_ONE)), joins=joins),
        Operator(OperatorId("O4"), 2, reads(("O3", FULL))),
    ]


def _fig2(joins: bool) -> list[Operator]:
    return [
        Operator(OperatorId("O1"), 2, rate=3, weights=(1, 2)),
        Operator(OperatorId("O2"), 2, rate=5, weights=(3, 2)),
        Operator(OperatorId("O3"), 1, reads(("O1", MERGE), ("O2", MERGE)), joins=joins),
    ]


def _fig3a() -> list[Operator]:
    return [
        Operator(OperatorId("O1"), 4),
        Operator(OperatorId("O2"), 2, reads(("O1", MERGE))),
        Operator(OperatorId("O3"), 4, reads(("O2", SPLIT))),
    ]


def _fig3b() -> list[Operator]:
    return [
        Operator(OperatorId("O1"), 4),
        Operator(OperatorId("O2"), 2),
        Operator(OperatorId("O3"), 2, reads(("O1", MERGE), ("O2", ONE_TO_ONE)), joins=True),
    ]


def _fig4() -> list[Operator]:
    return [
        Operator(OperatorId("O1"), 2),
        Operator(OperatorId("O2"), 3),
        Operator(OperatorId("O3"), 2, reads(("O1", FULL), ("O2", FULL))),
        Operator(OperatorId("O4"), 4, reads(("O3", FULL))),
        Operator(OperatorId("O5"), 4, reads(("O4", ONE_TO_ONE))),
        Operator(OperatorId("O6"), 2, reads(("O4", MERGE), ("O5", MERGE))),
    ]


_FIG6_RATE = 1_000.0
_FIG6_WINDOW = 30.0


def _fig6() -> list[Operator]:
    """Halve the tasks at each step; the state is the input of one window (sec. VI-A)."""
    operators = [Operator(OperatorId("Source"), 16, rate=16 * _FIG6_RATE)]
    rate, before = 16 * _FIG6_RATE, "Source"
    for number, tasks in enumerate((8, 4, 2, 1), start=1):
        state = rate * _FIG6_WINDOW * 1_000
        operators.append(
            Operator(OperatorId(f"O{number}"), tasks, reads((before, MERGE)), selectivity=0.5, state_bytes=state)
        )
        rate, before = rate * 0.5, f"O{number}"
    return operators


_HOT_PAGES_RATE = rounded(73_291_868 / 86_400 * 48)
"""All records of the day, replayed 48 times as fast: 40,717.7 a second."""


def _hot_pages() -> list[Operator]:
    return [
        Operator(OperatorId("O1"), 8, rate=_HOT_PAGES_RATE, selectivity=0.5),
        Operator(OperatorId("O2"), 4, reads(("O1", MERGE)), selectivity=0.5),
        Operator(OperatorId("O3"), 1, reads(("O2", MERGE))),
    ]


_USERS, _SEGMENTS, _SKEW = 100_000, 1_000, 0.5


@cache
def _users_on_segments() -> tuple[float, ...]:
    shares = [float(rank) ** -_SKEW for rank in range(1, _SEGMENTS + 1)]
    return tuple(_USERS * share / sum(shares) for share in shares)


def _by_area(values: list[float], areas: int) -> tuple[float, ...]:
    """Add up what is on the segments of each area; an area is a run of neighbouring segments."""
    size = len(values) // areas
    return tuple(rounded(sum(values[area * size : (area + 1) * size])) for area in range(areas))


def _incidents() -> list[Operator]:
    users = list(_users_on_segments())
    # An incident hits a segment in proportion to its users, and all of them report it.
    reports = [count * count / _USERS for count in users]
    reports_per_incident = sum(reports)
    return [
        Operator(OperatorId("O1"), 8, rate=20_000, weights=_by_area(users, 8), selectivity=0.05),
        Operator(
            OperatorId("O2"),
            4,
            rate=rounded(reports_per_incident / 2),
            weights=_by_area(reports, 4),
            selectivity=rounded(1 / reports_per_incident),
        ),
        Operator(OperatorId("O3"), 4, reads(("O1", MERGE), ("O2", ONE_TO_ONE)), joins=True, selectivity=0.00025),
        Operator(OperatorId("O4"), 1, reads(("O3", MERGE))),
    ]


_FIG1_PRINTED = "O1 (4) and O2 (4) feed O3 (4) one-to-one, and O3 feeds O4 (2) fully"
_FIG2_PRINTED = "t11, t12, t21 and t22 send 1, 2, 3 and 2 to t31; t22 fails"

ENTRIES = (
    NamedTopology(
        "replication-fig1",
        "Four operators; O3 unites its inputs",
        "PPA",
        "Fig. 1",
        f"{_FIG1_PRINTED}; 16 MC-trees when O3's inputs are independent",
        "",
        partial(_fig1, joins=False),
    ),
    NamedTopology(
        "replication-fig1-joining",
        "Four operators; O3 joins its inputs",
        "PPA",
        "Fig. 1",
        f"{_FIG1_PRINTED}; 8 MC-trees when O3 joins",
        "",
        partial(_fig1, joins=True),
    ),
    NamedTopology(
        "replication-fig2",
        "Information loss, independent inputs",
        "PPA",
        "Fig. 2",
        f"{_FIG2_PRINTED}: t31's output loses 1/4 when its inputs are independent",
        "merge as the partitioning (with one partition downstream full has the same edges)",
        partial(_fig2, joins=False),
    ),
    NamedTopology(
        "replication-fig2-joined",
        "Information loss, joined inputs",
        "PPA",
        "Fig. 2",
        f"{_FIG2_PRINTED}: t31's output loses 2/5 when it joins",
        "merge as the partitioning (with one partition downstream full has the same edges)",
        partial(_fig2, joins=True),
    ),
    NamedTopology(
        "replication-fig3a",
        "A unit boundary where a merge meets a split",
        "PPA",
        "Fig. 3(a)",
        "the boundary lies between O1 and O2, so O1 merges into O2 and O2 splits",
        "4, 2 and 4 partitions",
        _fig3a,
    ),
    NamedTopology(
        "replication-fig3b",
        "A unit boundary where a merge meets a join",
        "PPA",
        "Fig. 3(b)",
        "O3 joins, and the boundary lies between O1 and O3, so O1 merges into O3",
        "4, 2 and 2 partitions; O2 feeds O3 one-to-one",
        _fig3b,
    ),
    NamedTopology(
        "replication-fig4",
        "A general topology that falls into two sub-topologies",
        "PPA",
        "Fig. 4",
        "six operators that decompose into {O1, O2, O3} and {O4, O5, O6}",
        "O1 (2) and O2 (3) feed O3 (2) fully, which feeds O4 (4) fully: the full one; O4 feeds O5 (4) one-to-one, and "
        "both merge into O6 (2): the structured one",
        _fig4,
    ),
    NamedTopology(
        "replication-fig6",
        "A tree of merges, 16-8-4-2-1",
        "PPA",
        "Fig. 6, sec. VI-A",
        "a source of 16 tasks with 1,000 tuples a second each, then 8, 4, 2 and 1 tasks that receive from two upstream "
        "tasks each; selectivity 0.5; the state is the input of one window of (here) 30 seconds",
        "tuples of 1,000 bytes",
        _fig6,
    ),
    NamedTopology(
        "ppa-q1",
        "Q1: the hundred hottest pages of the World Cup 1998 site",
        "PPA",
        "Fig. 11, sec. VI-B",
        "O1 takes in the log by server, O2 merges, one task of O3 keeps the top 100; 73,291,868 records of a day "
        "replayed 48 times as fast are 40,717.7 a second",
        "8 and 4 tasks for O1 and O2; O1 is the source; half the entries of a slice of 100 are distinct",
        _hot_pages,
    ),
    NamedTopology(
        "ppa-q2",
        "Q2: incidents that cause traffic jams",
        "PPA",
        "Fig. 11, sec. VI-B",
        "O1 averages 20,000 locations a second, O2 condenses reports, O3 joins them, O4 aggregates; an incident every "
        "2 seconds; 100,000 users on 1,000 segments by Zipf with s = 0.5; all users on a segment report its incidents, "
        "which are likely in proportion to their number; every segment's speed comes out once a second",
        "8, 4, 4 and 1 tasks; O1 and O2 are the sources; a task has an area of neighbouring segments, the busiest "
        "first, from which follow the weights and 98 reports a second; every other incident causes a jam",
        _incidents,
    ),
)

"""Topologies of paper 000, incremental recovery: traffic, the small example, and the two of its experiments. Pure."""

from __future__ import annotations

from holdfast.ids import OperatorId
from holdfast.topology.library.named import FULL, MERGE, ONE_TO_ONE, SPLIT, NamedTopology, reads
from holdfast.topology.operators import Operator


def _traffic() -> list[Operator]:
    return [
        Operator(OperatorId("O1"), rate=20_000),
        Operator(OperatorId("O2"), rate=100),
        Operator(
            OperatorId("O3"),
            4,
            reads(("O1", SPLIT)),
            selectivity=0.05,
            output=True,
            priority=(4, 2, 1, 1),
        ),
        Operator(OperatorId("O4"), 2, reads(("O2", SPLIT)), selectivity=0.2, output=True, priority=(3, 1)),
        Operator(
            OperatorId("O5"),
            2,
            reads(("O3", MERGE), ("O4", ONE_TO_ONE)),
            selectivity=0.02,
            joins=True,
            priority=(5, 2),
        ),
    ]


_FIG2_INPUTS: dict[int, tuple[int, ...]] = {
    1: (),
    2: (),
    3: (1,),
    4: (1,),
    5: (2,),
    6: (2,),
    7: (5,),
    8: (6,),
    9: (3, 7),
    10: (4, 7),
    11: (3, 8),
    12: (4, 8),
}


def _small_example() -> list[Operator]:
    return [
        Operator(OperatorId(f"p{number}"), 1, reads(*((f"p{source}", ONE_TO_ONE) for source in sources)))
        for number, sources in _FIG2_INPUTS.items()
    ]


def _windows() -> list[Operator]:
    return [
        Operator(OperatorId("Source"), rate=5_000),
        Operator(OperatorId("Parser"), 4, reads(("Source", SPLIT)), selectivity=1.5),
        *(Operator(OperatorId(f"Window{number}"), 4, reads(("Parser", FULL))) for number in range(1, 5)),
    ]


_SUBSCRIPTIONS: dict[int, tuple[int, ...]] = {
    4: (0, 1),
    5: (1, 2),
    6: (2, 3),
    7: (4, 5),
    8: (4, 5, 6),
    9: (5, 6),
    10: (7,),
    11: (7, 8),
    12: (8,),
    13: (8, 9),
    14: (9,),
}


def _hashtags() -> list[Operator]:
    return [
        Operator(OperatorId("Source"), rate=1_000),
        Operator(OperatorId("Parser"), 1, reads(("Source", ONE_TO_ONE)), selectivity=1.5),
        *(Operator(OperatorId(f"O{number}"), 1, reads(("Parser", ONE_TO_ONE)), output=True) for number in range(4)),
        *(
            Operator(OperatorId(f"O{number}"), 1, reads(*((f"O{up}", ONE_TO_ONE) for up in ups)), output=True)
            for number, ups in _SUBSCRIPTIONS.items()
        ),
    ]


ENTRIES = (
    NamedTopology(
        "traffic",
        "Speed and incidents per road segment, joined",
        "000",
        "Fig. 1",
        "operators O1 to O5 with 1, 1, 4, 2 and 2 partitions, pNi being ON[i-1]; O3, O4 and O5 are outputs, so "
        "there are 8 queries, and Q51 is p11 p21 p31 p32 p41 p51; O5 joins",
        "O1 and O2, which take in the two streams, are the sources; rates of the same application in paper 001, "
        "sec. VI-B (20,000 locations and about 100 incident reports a second, a thousand segments a second); "
        "the priorities, highest for one congested area (p31, p41, p51), which the text suggests",
        _traffic,
    ),
    NamedTopology(
        "incremental-fig2",
        "Operator-centric against query-centric recovery, twelve partitions",
        "000",
        "Fig. 2",
        "partitions p1 to p12, four queries (p9 to p12), p3 to p12 failed, each node recovers two",
        "each partition is an operator of its own: p9 to p12 read p3 and p4 crosswise, which no partitioning does",
        _small_example,
    ),
    NamedTopology(
        "incremental-fig7",
        "Hashtag counts in several windows of 5 seconds",
        "000",
        "Fig. 7, sec. 6.1",
        "parsers extract hashtags, each window operator subscribes to the parsers; 5,000 tweets a second "
        "(200 in the paper's run on Storm)",
        "four window operators; four partitions of each operator but the source, for the cluster of five nodes; "
        "1.5 hashtags in a tweet",
        _windows,
    ),
    NamedTopology(
        "hashtags",
        "Hashtag frequencies: 15 queries that build on each other",
        "000",
        "Fig. 8, sec. 6.2",
        "Source, Parser, and O0 to O14 with one partition each, every one of them an output; 1,000 tweets a second; O0 "
        "to O3 aggregate what the Parser sends, the others subscribe to them; rates grow towards the sinks O10 to O14",
        "who subscribes to whom: O4 to O6 read two neighbours of O0 to O3, O7 to O9 read two or three of O4 to O6, O10 "
        "to O14 read one or two of O7 to O9, so there are four levels of aggregates; 1.5 hashtags in a tweet",
        _hashtags,
    ),
)

"""Topologies of incremental recovery: the small example, and that of its first experiments. Pure."""

from __future__ import annotations

from holdfast.ids import OperatorId
from holdfast.topology.operators import Operator
from holdfast_lab.topologies.named import FULL, ONE_TO_ONE, SPLIT, NamedTopology, reads

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


ENTRIES = (
    NamedTopology(
        "incremental-fig2",
        "Operator-centric against query-centric recovery, twelve partitions",
        "incremental recovery",
        "Fig. 2",
        "partitions p1 to p12, four queries (p9 to p12), p3 to p12 failed, each node recovers two",
        "each partition is an operator of its own: p9 to p12 read p3 and p4 crosswise, which no partitioning does",
        _small_example,
    ),
    NamedTopology(
        "incremental-fig7",
        "Hashtag counts in several windows of 5 seconds",
        "incremental recovery",
        "Fig. 7, sec. 6.1",
        "parsers extract hashtags, each window operator subscribes to the parsers; 5,000 tweets a second "
        "(200 in the paper's run on Storm)",
        "four window operators; four partitions of each operator but the source, for the cluster of five nodes; "
        "1.5 hashtags in a tweet",
        _windows,
    ),
)

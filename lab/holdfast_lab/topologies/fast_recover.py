"""Topologies of FastRecover, recovery segments: trending keywords, and a chain and a tree with its defaults. Pure."""

from __future__ import annotations

from holdfast.ids import OperatorId
from holdfast.topology.draws import rounded
from holdfast.topology.operators import Operator
from holdfast_lab.random_topologies import fast_recover as recipes
from holdfast_lab.topologies.named import FULL, NamedTopology, reads


def _failures(parallelism: int) -> float:
    """Return failures per second: 0.1 a minute for four instances, proportional to their number."""
    return rounded(0.1 * parallelism / 4 / 60)


def _trending_keywords() -> list[Operator]:
    return [
        Operator(OperatorId("splitter"), 3, rate=50, selectivity=10, state_bytes=10e6, failure_rate=_failures(3)),
        Operator(
            OperatorId("filter"),
            4,
            reads(("splitter", FULL)),
            selectivity=0.4,
            state_bytes=10e6,
            failure_rate=_failures(4),
        ),
        Operator(
            OperatorId("counter"),
            5,
            reads(("filter", FULL)),
            selectivity=0.1,
            state_bytes=20e6,
            failure_rate=_failures(5),
        ),
    ]


_DEFAULTS = (
    "parallelism 2 to 6, selectivity 0.1 to 1, 0.0006 s and 1 KB per tuple, states of 10 to 20 MB, a failure frequency "
    "with mean 0.1 and deviation 0.03 a minute, proportional to parallelism"
)

ENTRIES = (
    NamedTopology(
        "fast-recover-keywords",
        "Trending words in tweets: split, filter, count",
        "FastRecover",
        "Fig. 2.1",
        "splitter, filter and counter in a chain, five instances of the counter; 3,000 tweets a minute, 0.0006 s and 1 "
        "KB per tuple as in sec. 4.1",
        "3 and 4 instances of splitter and filter, all full; ten words in a tweet, 40 % of which pass; states of 10, "
        "10 and 20 MB from the range of sec. 4.1; failures 0.1 a minute for four instances, in proportion",
        _trending_keywords,
    ),
    NamedTopology(
        "chain-8",
        "A chain of eight operators",
        "FastRecover",
        "Fig. 3.1, sec. 4.1",
        f"eight operators in a row; 3,000 tuples a minute; {_DEFAULTS}",
        "the draws: recipe chain, seed 8; full partitioning",
        lambda: recipes.chain(8, operators=8).operators,
    ),
    NamedTopology(
        "chain-15",
        "A chain with the paper's defaults",
        "FastRecover",
        "sec. 4.1, Table 4.1",
        f"n = 15; 3,000 tuples a minute; {_DEFAULTS}",
        "the draws: recipe chain, seed 4; full partitioning",
        lambda: recipes.chain(4).operators,
    ),
    NamedTopology(
        "tree-15",
        "A tree from one root with the paper's defaults",
        "FastRecover",
        "sec. 4.1 and 4.2.2, Table 4.1",
        f"n = 15, at most three children; 1,000 tuples a minute; {_DEFAULTS}",
        "the draws: recipe root-tree, seed 30; full partitioning",
        lambda: recipes.root_tree(30).operators,
    ),
)

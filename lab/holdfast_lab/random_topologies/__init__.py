"""Random topologies by the recipes of the papers; one seed gives one topology, on any machine. Pure.

`RECIPES` holds them by name; `holdfast topology generate RECIPE --seed S --set key=value` is made of it. One module per
paper; `settings` reads what can be set off a recipe's signature.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import BadInput
from holdfast.topology import checks
from holdfast.topology.model import Topology
from holdfast_lab.random_topologies import fast_recover, ftc, incremental_recovery, ppa
from holdfast_lab.random_topologies.settings import Recipe, Setting

__all__ = ["RECIPES", "Recipe", "Setting", "generate", "recipe"]

_ALL = (
    Recipe("queries", incremental_recovery.queries, "queries that share partitions", "incremental recovery, sec. 6.3"),
    Recipe("replication", ppa.replication, "5 to 10 operators towards one sink", "PPA, sec. VI-C"),
    Recipe("lines", ftc.lines, "lines of tasks that meet in a sink", "FTC, sec. V"),
    Recipe("tree", ftc.tree, "a tree of tasks towards a sink", "FTC, sec. V"),
    Recipe("dag", ftc.dag, "operators in steps towards a sink", "FTC, sec. V"),
    Recipe("chain", fast_recover.chain, "operators in a row, with states and failures", "FastRecover, sec. 4.1"),
    Recipe(
        "root-tree", fast_recover.root_tree, "a tree from a root, with states and failures", "FastRecover, sec. 4.1"
    ),
)
RECIPES: dict[str, Recipe] = {one.name: one for one in _ALL}


def recipe(name: str) -> Recipe:
    """Return the recipe of a name; refuse an unknown one with the nearest."""
    if name not in RECIPES:
        raise BadInput(f"there is no recipe {name!r}", remedy=checks.suggestion(name, list(RECIPES)))
    return RECIPES[name]


def generate(name: str, seed: int, settings: Mapping[str, object] | None = None) -> Topology:
    """Make a random topology; settings may be texts, as a command gets them."""
    return recipe(name).build(seed, settings)

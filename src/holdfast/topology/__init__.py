"""The topology model: what is computed, how it is cut into partitions, and what follows from that. Pure."""

from holdfast.topology.decomposition import SubKind, SubTopology, decompose
from holdfast.topology.file_format import from_document, parse, to_document, to_json, to_yaml
from holdfast.topology.fingerprint import fingerprint, made_for, require_made_for
from holdfast.topology.mc_trees import count_mc_trees, distinct_mc_trees, mc_trees, smallest_mc_tree_size
from holdfast.topology.model import Floats, Ints, Topology, as_mask
from holdfast.topology.operators import Input, Operator, Partitioning
from holdfast.topology.queries import Queries
from holdfast.topology.rates import Rates, rates_of
from holdfast.topology.shapes import Shapes, shapes_of

__all__ = [
    "Floats",
    "Input",
    "Ints",
    "Operator",
    "Partitioning",
    "Queries",
    "Rates",
    "Shapes",
    "SubKind",
    "SubTopology",
    "Topology",
    "as_mask",
    "count_mc_trees",
    "decompose",
    "distinct_mc_trees",
    "fingerprint",
    "from_document",
    "made_for",
    "mc_trees",
    "parse",
    "rates_of",
    "require_made_for",
    "shapes_of",
    "smallest_mc_tree_size",
    "to_document",
    "to_json",
    "to_yaml",
]

"""What goes back with what has failed, by cases made by hand."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.rollback import partitions_to_roll_back
from recovery.machine_driving import chain, part, parts, star


def back(
    graph: PartitionGraph,
    lost: Mapping[str, int],
    kept: Mapping[str, int],
    *,
    restoring: Mapping[str, int] | None = None,
    checkpoint: int = 4,
) -> str:
    """Name who goes back; partitions not in `kept` have kept nothing."""
    starts = {part(name): BatchId(at) for name, at in lost.items()}
    on_the_way = {part(name): BatchId(at) for name, at in (restoring or {}).items()}

    def kept_from(p: PartitionId) -> BatchId:
        return BatchId(kept.get(str(p.operator), 99))

    live = {p for p in graph.order if p not in starts and p not in on_the_way}
    found = partitions_to_roll_back(
        graph, starts, on_the_way, kept_from, dict.fromkeys(graph.order, BatchId(checkpoint)), live
    )
    return " ".join(sorted(str(p.operator) for p in found))


CHAIN = PartitionGraph(chain("abcd"))


def test_nobody_goes_back_where_the_sender_kept() -> None:
    assert back(CHAIN, {"c": 4}, {"b": 5}) == ""


def test_the_line_goes_back_to_whoever_kept() -> None:
    assert back(CHAIN, {"d": 4}, {"b": 5}) == "c"
    assert back(CHAIN, {"d": 4}, {}) == "a b c", "at worst the sources, which have their log"


def test_one_batch_too_few_is_not_kept() -> None:
    assert back(CHAIN, {"d": 4}, {"c": 6, "b": 5}) == "c"
    assert back(CHAIN, {"d": 5}, {"c": 6}) == "", "it starts later, and needs less"


def test_what_goes_back_needs_its_inputs_from_the_checkpoint() -> None:
    assert back(CHAIN, {"d": 7}, {"c": 9, "b": 8, "a": 5}) == "b c", "c goes back to 4, and b has kept from 8"


def test_consumers_of_what_is_lost_stay() -> None:
    assert back(CHAIN, {"b": 4}, {"a": 5}) == ""


def test_lost_senders_need_not_go_back() -> None:
    assert back(CHAIN, {"c": 4, "d": 4}, {"b": 5}) == ""


def test_a_shared_source_goes_back_once_and_its_other_consumers_stay() -> None:
    assert back(PartitionGraph(star([1, 2, 3])), {"a": 4}, {}) == "s"


UNSURE = PartitionGraph(chain("abcd"), {OperatorId("b"): False, OperatorId("c"): False, OperatorId("d"): False})


def test_who_has_heard_what_may_be_told_differently_goes_back() -> None:
    assert back(UNSURE, {"b": 4}, {"a": 5}) == "c d"


def test_also_one_that_is_being_restored() -> None:
    assert back(UNSURE, {"b": 4}, {"a": 5}, restoring={"c": 4}) == "c d"


def test_being_restored_alone_takes_nobody_back() -> None:
    assert back(UNSURE, {}, {"a": 5, "b": 5}, restoring={"c": 4}) == ""


def test_wiring_names_senders_consumers_and_queries() -> None:
    graph = PartitionGraph(star([1, 2]))
    assert graph.consumers(part("s")) == tuple(parts("a b"))
    assert graph.senders(part("a")) == (part("s"),)
    assert graph.queries_of(part("s")) == tuple(parts("a b"))
    assert graph.members(part("b")) == tuple(parts("s b"))

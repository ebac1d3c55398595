"""Moves for load: who moves, where to, and that nobody moves back and forth."""

from __future__ import annotations

from holdfast.ids import NodeId
from holdfast.recovery.effects import Promoted, RollBack
from holdfast.recovery.events import CostsMeasured, NodesLeaving
from holdfast.recovery.rebalancing import moves_for_load
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from recovery.machine_driving import Driven, chain, part, parts
from recovery.test_copies import follow

SETTINGS = RecoverySettings(move_above=0.75)


def full(settings: RecoverySettings = SETTINGS, *, unsure: str = "", more: float = 5.0) -> Driven:
    """Four partitions of cost 1 on a node with room for four; then a second node comes, and nothing is lost."""
    driven = Driven(chain("abcd"), settings, unsure=unsure, nodes={"n0": 5.0})
    follow(driven, 0)
    driven.arrive({"n1": more})
    return driven


def go_on(driven: Driven, first: int, count: int) -> list[object]:
    """Batches with a checkpoint behind each; returns all effects."""
    seen: list[object] = []
    for batch in range(first, first + count):
        follow(driven, batch)
        seen += driven.effects
        driven.checkpoint(batch)
        seen += driven.effects
    return seen


def nodes(driven: Driven) -> list[str | None]:
    return sorted(str(driven.node(one)) for one in "abcd")


def test_a_node_that_arrives_when_nothing_is_lost_gets_half_of_the_work() -> None:
    driven = full()
    seen = go_on(driven, 1, 8)
    assert nodes(driven) == ["n0", "n0", "n1", "n1"]
    moved = [one for one in seen if isinstance(one, Promoted)]
    assert {one.why for one in moved} == {"moved for load"}
    assert len(moved) == 2
    assert not any(isinstance(one, RollBack) for one in seen), "the stream goes on"
    assert not driven.machine.state.copies.at


def test_nobody_moves_back_and_forth_while_costs_change_a_little() -> None:
    driven = full()
    go_on(driven, 1, 8)
    names = parts("a b c d")
    for batch in range(9, 40):
        # Costs as they are measured: a few percent up and down, for each partition in its own rhythm.
        measured = {p: 1.0 + 0.15 * ((batch * (3 + 2 * number)) % 5 - 2) / 2 for number, p in enumerate(names)}
        driven.tell(CostsMeasured(measured))
        assert not any(isinstance(one, Promoted) for one in go_on(driven, batch, 1))


def test_a_partition_that_has_moved_stays_for_longer_each_time() -> None:
    copies = full().machine.state.copies
    copies.moved(part("a"), 10)  # type: ignore[arg-type]
    assert not copies.has_stayed(part("a"), 73)  # type: ignore[arg-type]
    assert copies.has_stayed(part("a"), 74)  # type: ignore[arg-type]
    copies.moved(part("a"), 74)  # type: ignore[arg-type]
    assert not copies.has_stayed(part("a"), 74 + 127)  # type: ignore[arg-type]
    assert copies.has_stayed(part("a"), 74 + 128)  # type: ignore[arg-type]


def test_where_no_node_has_much_to_do_nobody_moves() -> None:
    driven = Driven(chain("abcd"), SETTINGS, nodes={"n0": 10.0})
    driven.arrive({"n1": 10.0})
    go_on(driven, 0, 6)
    assert nodes(driven) == ["n0"] * 4, "half of its bound"


def test_a_small_gain_is_not_worth_a_move() -> None:
    driven = Driven(chain("abcd"), SETTINGS, nodes={"n0": 5.0})
    driven.arrive({"n1": 1.0})
    go_on(driven, 0, 6)
    assert nodes(driven) == ["n0"] * 4, "there is no room for one of cost 1 within the bound of n1"


def test_what_is_not_deterministic_and_what_has_a_replica_stays() -> None:
    state = full(unsure="ab").machine.state
    assert set(moves_for_load(state)) == set(parts("c d"))
    state = full(RecoverySettings(move_above=0.75, replicas=tuple(parts("c")))).machine.state
    assert part("c") not in moves_for_load(state)


def test_source_replay_leaving_nodes_and_the_default_move_nothing() -> None:
    assert moves_for_load(full().machine.state)
    assert not moves_for_load(full(RecoverySettings()).machine.state)
    assert not moves_for_load(
        full(RecoverySettings(strategy=RecoveryStrategy.SOURCE_REPLAY, move_above=0.1)).machine.state
    )
    driven = full()
    driven.tell(NodesLeaving((NodeId("n1"),)))
    assert not moves_for_load(driven.machine.state)


def test_moves_are_given_up_where_their_node_is_lost() -> None:
    driven = full()
    driven.checkpoint(0)
    follow(driven, 1)
    state = driven.machine.state
    assert state.copies.moving
    driven.lose("n1")
    seen = go_on(driven, 2, 4)
    assert not state.copies.moving
    assert not state.copies.at
    assert nodes(driven) == ["n0"] * 4
    assert not any(isinstance(one, Promoted | RollBack) for one in seen)


def test_a_node_that_gives_takes_nothing_in_the_same_moves() -> None:
    """Until a move is done its partition is on both nodes: what a node will have given does not make room yet."""
    driven = Driven(chain("abcdef"), SETTINGS, nodes={"n0": 5.0, "n1": 3.0})
    follow(driven, 0)
    driven.arrive({"n2": 5.0})
    state = driven.machine.state
    moves = moves_for_load(state)
    assert moves
    assert not {str(driven.node(str(p.operator))) for p in moves} & set(moves.values())
    load: dict[NodeId, float] = {}
    for node in [*state.placement.values(), *moves.values()]:
        load[node] = load.get(node, 0.0) + 1.0
    assert all(used <= 0.8 * state.nodes[node] for node, used in load.items())

"""Which nodes a drill hits that aims at primaries, replicas or both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drill.made_up import event
from holdfast.drill.prepare import aim_at_partitions
from holdfast.drill.report import drill_command
from holdfast.drill.scenarios import scenario_of
from holdfast.drill.schedule import FaultKind, Role, make_schedule
from holdfast.drill.settings import DrillSettings, check_settings, read_settings
from holdfast.drill.victims import Victims, replicas_of
from holdfast.errors import BadInput
from holdfast.ids import NodeId

ASKED = DrillSettings("hashtags", kill=2, arrivals=(5.0, 6.0), replicas="1.0", victims="both")
HISTORY = [
    event(0, "planned", placement={"a": "127.0.0.1-0", "b": "127.0.0.2-1", "c": "127.0.0.3-2"}),
    event(1, "replica-building", partition="b", node="127.0.0.3-2", batch=3),
    event(1, "replica-building", partition="c", node="127.0.0.4-3", batch=3),
    event(2, "replica-level", partition="c", node="127.0.0.4-3", batch=3),
]
ALIVE = {NodeId(f"node-{number}"): f"127.0.0.{number}" for number in (1, 2, 3, 4)}


def test_nodes_are_hit_by_what_they_have_of_partitions_whose_replica_is_level() -> None:
    order = ("a", "b", "c")
    assert replicas_of(HISTORY) == {"c": "127.0.0.4-3"}
    assert Victims().choose(order, Role.ANY, HISTORY, ALIVE) == "node-1"
    assert Victims().choose(order, Role.PRIMARY, HISTORY, ALIVE) == "node-3"
    assert Victims().choose(order, Role.REPLICA, HISTORY, ALIVE) == "node-4"
    gone = {name: host for name, host in ALIVE.items() if name != "node-4"}
    assert Victims().choose(order, Role.PRIMARY, HISTORY, gone) is None, "no replica can take over"


def test_the_replica_of_the_primary_that_was_hit_is_hit_next() -> None:
    victims = Victims()
    assert victims.choose(("c",), Role.PRIMARY, HISTORY, ALIVE) == "node-3"
    after = [*HISTORY, event(3, "promoted", partition="c", before="127.0.0.3-2", node="127.0.0.4-3")]
    left = {name: host for name, host in ALIVE.items() if name != "node-3"}
    assert victims.choose(("c",), Role.ITS_REPLICA, after, left) == "node-4", "also where it has taken over by then"
    assert victims.choose(("c",), Role.ITS_REPLICA, after, left) is None


@pytest.mark.parametrize(
    ("victims", "roles"),
    [("primaries", ["primary"] * 2), ("replicas", ["replica"] * 2), ("both", ["primary", "its-replica"])],
)
def test_the_seed_says_in_which_order_partitions_are_hit(victims: str, roles: list[str]) -> None:
    topology = scenario_of(ASKED).application().topology()
    asked = aim_at_partitions(replace(ASKED, victims=victims), topology)
    check_settings(asked)
    kills = [fault for fault in make_schedule(asked) if fault.kind is FaultKind.KILL]
    assert [str(one.role) for one in kills] == roles
    assert sorted(kills[0].hosting) == sorted(map(str, topology.partitions()))
    assert aim_at_partitions(replace(ASKED, seed=2), topology).kill_hosting != asked.kill_hosting
    assert read_settings(asked.document()) == asked, "the driver gets the same"
    assert f"--victims {victims}" in drill_command(asked.document())


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"replicas": None}, "no partition has a replica"),
        ({"freeze": 1}, "other nodes' faults are drawn"),
        ({"kill": 0, "arrivals": ()}, "0 nodes are killed"),
        ({"kill": 3, "arrivals": (5.0, 6.0, 7.0)}, "3 nodes are killed"),
        ({"victims": "all"}, "'all' is none of"),
    ],
)
def test_what_cannot_be_aimed_at_is_refused(wrong: dict[str, object], line: str) -> None:
    with pytest.raises(BadInput, match=line):
        check_settings(replace(ASKED, **wrong))  # type: ignore[arg-type]

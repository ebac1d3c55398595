"""Each fault has its place in the schedule; what cannot go together, or cannot be done here, is refused."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.cli.main import run
from holdfast.drill.corrupting import EVERY, corrupt_file, flipped, state_files
from holdfast.drill.drill import cluster_options
from holdfast.drill.faults import DriverControl, FaultInjector, FaultPlaces
from holdfast.drill.mixed import CHANCES, draw_settings, read_faults
from holdfast.drill.on_cluster import session_settings
from holdfast.drill.report import fault_words
from holdfast.drill.schedule import TAKEN_OVER_AFTER, Fault, FaultKind, make_schedule
from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy, Uniform, check_settings, read_settings
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import NodeId
from holdfast.spark.cluster import EmbeddedCluster

NONE = DrillSettings("traffic", nodes=6, kill=0, arrivals=Uniform(5.0, 10.0), fail_at=10.0)


def done(asked: DrillSettings) -> list[tuple[float, FaultKind, str | None]]:
    check_settings(asked)
    assert make_schedule(asked) == make_schedule(read_settings(asked.document())), "the driver reads the same"
    return [(one.at, one.kind, one.node) for one in make_schedule(asked)]


def test_a_frozen_driver_goes_on() -> None:
    (at, kind, node), (thawed, last, _) = done(replace(NONE, pause_driver=True, pause_for=9.0))
    assert (kind, node, last) == (FaultKind.PAUSE_DRIVER, None, FaultKind.THAW_DRIVER)
    assert 10.0 <= at <= 13.0
    assert thawed == pytest.approx(at + 9.0)


def test_a_second_driver_takes_over_while_the_first_is_frozen() -> None:
    faults = done(replace(NONE, pause_driver=True, take_over=True))
    assert [kind for _, kind, _ in faults] == [FaultKind.PAUSE_DRIVER, FaultKind.TAKE_OVER, FaultKind.THAW_DRIVER]
    assert faults[1][0] == pytest.approx(faults[0][0] + TAKEN_OVER_AFTER)
    short = done(replace(NONE, pause_driver=True, take_over=True, pause_for=1.0))
    assert [kind for _, kind, _ in short] == [kind for _, kind, _ in faults], "also where it is short"


def test_nodes_are_cut_off_together_and_connected_again() -> None:
    faults = done(replace(NONE, partition=2, heal_after=7.0))
    cut = [(at, node) for at, kind, node in faults if kind is FaultKind.PARTITION]
    assert [at for at, _ in cut] == [10.0, 10.0]
    assert sorted((17.0, node) for _, node in cut) == sorted(
        (at, node) for at, kind, node in faults if kind is FaultKind.HEAL
    )


def test_nodes_with_a_full_disk_are_replaced() -> None:
    faults = done(replace(NONE, fill_disk=2))
    assert sum(kind is FaultKind.FILL_DISK for _, kind, _ in faults) == 2
    added = [(at, node) for at, kind, node in faults if kind is FaultKind.ADD_NODE]
    assert [node for _, node in added] == ["node-7", "node-8"]
    assert all(15.0 <= at <= 20.0 for at, _ in added)


def test_decommissioned_nodes_are_replaced_and_other_draws_stay() -> None:
    faults = done(replace(NONE, decommission=1))
    assert [kind for _, kind, _ in faults] == [FaultKind.DECOMMISSION, FaultKind.ADD_NODE]
    both = done(replace(NONE, decommission=1, fill_disk=2))
    assert [one for one in done(replace(NONE, fill_disk=2)) if one[1] is FaultKind.FILL_DISK] == [
        one for one in both if one[1] is FaultKind.FILL_DISK
    ]
    assert session_settings(replace(NONE, decommission=1)) == {"spark.decommission.enabled": "true"}
    assert session_settings(NONE) == {}


def test_one_node_is_corrupted_at_the_failure() -> None:
    [(at, kind, node)] = done(replace(NONE, corrupt=1))
    assert (at, kind) == (10.0, FaultKind.CORRUPT)
    assert node is not None


def test_a_poisoned_query_is_cured_and_a_hang_ends_itself() -> None:
    faults = done(replace(NONE, poison=True, poison_for=5.0, hang=True, hang_for=3.0))
    assert faults == [
        (10.0, FaultKind.HANG, None),
        (10.0, FaultKind.POISON, None),
        (15.0, FaultKind.CURE, None),
    ]
    assert make_schedule(replace(NONE, hang=True, hang_for=3.0))[0].value == 3.0


@pytest.mark.parametrize("seed", range(30))
def test_no_node_has_two_faults(seed: int) -> None:
    asked = replace(NONE, seed=seed, nodes=9, kill=2, freeze=1, slow=1, partition=1, fill_disk=1, corrupt=1)
    check_settings(asked)
    second = replace(asked, second_wave=2)
    for one in (asked, second):
        broken = [
            fault.node
            for fault in make_schedule(one)
            if fault.node is not None
            and fault.kind not in {FaultKind.THAW, FaultKind.HEAL, FaultKind.FULL_SPEED, FaultKind.ADD_NODE}
        ]
        assert len(broken) == len(set(broken)), broken


def test_a_schedule_without_new_faults_is_as_it_was() -> None:
    """Seeds of drills that were measured before must mean the same."""
    asked = DrillSettings("traffic", seed=7, nodes=6, kill=2, freeze=1, second_wave=1, kill_driver=True, slow=1)
    assert [(one.at, str(one.kind), one.node) for one in make_schedule(asked)][:4] == [
        (20.0, "freeze", "node-3"),
        (20.0, "kill", "node-2"),
        (20.0, "kill", "node-5"),
        (20.0, "slow", "node-1"),
    ]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"pause_driver": True, "kill_driver": True}, "--pause-driver"),
        ({"take_over": True}, "--take-over"),
        ({"partition": 6, "corrupt": 1}, "--partition"),
        ({"corrupt": 4, "kill": 3}, "--corrupt"),
        ({"fill_disk": -1}, "--fill-disk"),
        ({"hang_for": 0.0}, "--hang-for"),
        ({"decommission": 1, "exchange": "shuffle"}, "--decommission"),
        ({"replicas": "many"}, "--replicas"),
        ({"plan": "plan.json", "feed": DrillFeed.BATCHES}, "--plan"),
        ({"plan": "plan.json", "strategy": DrillStrategy.STRUCTURED_STREAMING}, "--plan"),
        ({"poison": True, "strategy": DrillStrategy.STRUCTURED_STREAMING}, "--poison"),
    ],
)
def test_what_cannot_go_together_is_refused(changed: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_settings(replace(NONE, **changed))  # type: ignore[arg-type]
    assert refused.value.field == field


def test_without_root_networks_and_disks_are_refused_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for option, remedy in (("--partition", "run it as root"), ("--fill-disk", "run it as root")):
        assert run(["drill", "traffic", option, "1"]) == 2
        printed = capsys.readouterr()
        assert len(printed.err.splitlines()) == 1
        assert option in printed.err
        assert remedy in printed.err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    assert run(["drill", "traffic", "--partition", "1"]) == 2
    assert "apt-get install iproute2" in capsys.readouterr().err


def test_what_faults_need_of_a_cluster() -> None:
    assert cluster_options(replace(NONE, poison=True, hang=True, corrupt=1, pause_driver=True)) == {}
    assert cluster_options(replace(NONE, pause_driver=True, take_over=True)) == {"cores": 4, "memory_mb": 1200}


def test_mixed_drills_have_them_all_and_leave_out_what_is_named() -> None:
    base = DrillSettings("mixed", nodes=8, kill=0, arrivals=Uniform(3.0, 15.0), batches=50, fail_at=12.0)
    drawn = [draw_settings(replace(base, seed=seed)) for seed in range(80)]
    for one in drawn:
        check_settings(one)
        assert one == draw_settings(replace(base, seed=one.seed))
    for name in CHANCES:
        field = name.replace("-", "_")
        having = [one for one in drawn if getattr(one, field)]
        assert having, name
        assert len(having) < len(drawn)
    assert any(one.take_over for one in drawn)
    less = [draw_settings(replace(base, seed=seed), read_faults("partition, poison")) for seed in range(80)]
    for one, other in zip(drawn, less, strict=True):
        assert not other.partition
        assert not other.poison
        assert (one.kill, one.hang, one.pause_driver) == (other.kill, other.hang, other.pause_driver)
    with pytest.raises(BadInput, match="no fault 'rain'"):
        read_faults("rain")


def test_every_fault_has_words() -> None:
    for kind in FaultKind:
        assert fault_words({"what": str(kind), "node": "node-1", "value": 0.5})


# -- flipped bits ------------------------------------------------------------------------------------------------------


def test_one_bit_in_every_few_kilobytes_flips() -> None:
    data = bytes(3 * EVERY + 10)
    changed = flipped(data, random.Random(1))
    assert len(changed) == len(data)
    assert sum(byte.bit_count() for byte in changed) == 4
    assert flipped(data, random.Random(1)) == changed


def test_who_has_a_file_open_still_reads_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(b"state" * 100)
    path.chmod(0o600)
    with path.open("rb") as opened:
        assert corrupt_file(path, random.Random(2))
        assert opened.read() == b"state" * 100
    assert path.read_bytes() != b"state" * 100
    assert path.stat().st_mode & 0o777 == 0o600
    assert not corrupt_file(tmp_path / "gone", random.Random(2))


def test_bits_that_could_not_flip_are_no_fault_that_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without state and fragments, before the first durable snapshot: there is nothing to corrupt."""
    monkeypatch.setattr("holdfast.drill.faults.operator_processes", lambda session: [])
    node = SimpleNamespace(id="node-1", spool=tmp_path / "spool", group=-1)
    cluster = SimpleNamespace(nodes={NodeId("node-1"): node}, local_files=lambda name: tmp_path / "local")
    (tmp_path / "spool").mkdir()
    (tmp_path / "local").mkdir()
    places = FaultPlaces(tmp_path / "faults", tmp_path / "durable")
    control = DriverControl(*(lambda: None,) * 5)
    injector = FaultInjector(cast(EmbeddedCluster, cluster), control, places)
    with pytest.raises(CheckFailed, match="neither state nor fragments"):
        injector.do(Fault(12.0, FaultKind.CORRUPT, NodeId("node-1")))
    (tmp_path / "spool" / "one.fragment").write_bytes(b"x" * 100)
    assert injector.do(Fault(12.0, FaultKind.CORRUPT, NodeId("node-1")))["fragments"] == 1


def test_state_files_are_those_of_runs(tmp_path: Path) -> None:
    inside = tmp_path / "executor-1" / "holdfast" / "start" / "node"
    inside.mkdir(parents=True)
    (inside / "000001-000001.journal").touch()
    (tmp_path / "other.journal").touch()
    assert state_files(tmp_path) == [inside / "000001-000001.journal"]


def test_a_fault_is_ordered_by_its_time() -> None:
    assert Fault(1.0, FaultKind.POISON) < Fault(2.0, FaultKind.CURE)

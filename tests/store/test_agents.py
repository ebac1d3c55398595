"""Agents and their spools: real processes, real sockets, real kill -9, on loopback."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.ids import Epoch
from holdfast.store.agent.agent_files import AgentSettings, enter_ring
from holdfast.store.agent.durable_folder import DurableFolder
from holdfast.store.agent.snapshot_files import check_snapshot, mapped_data, write_snapshot
from holdfast.store.agent.snapshot_names import key_of, name_of, state_of
from holdfast.store.agent.spool import SaveAnswer, Spool, agent_address
from holdfast.store.client.tuning import coding_to_survive
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import Corrupt, StaleEpoch, StoreError
from holdfast.store.wire.secret_files import keys_from_file
from holdfast_lab.testing.agents_on_loopback import AgentsOnLoopback

T = TypeVar("T")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def wait(look: Callable[[], T | None], seconds: float = 120) -> T:
    deadline = time.monotonic() + seconds
    while (found := look()) is None or found is False:
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
    return found


def ok(spool: Spool, name: str) -> SaveAnswer:
    def look() -> SaveAnswer | None:
        answer = spool.saved(name)
        return answer if answer is not None and answer.ok else None

    return wait(look)


def bring(spool: Spool, name: str) -> bytes:
    spool.fetch(name)
    return bytes(memoryview(wait(lambda: spool.fetched(name))))


def told(spool: Spool, name: str, text: str) -> SaveAnswer:
    """Wait until the answer to a save says this; a busy agent may have other troubles before."""

    def look() -> SaveAnswer | None:
        answer = spool.saved(name)
        return answer if answer is not None and text in str(answer.problem) else None

    return wait(look)


def contents(name: str, size: int = 50_000) -> bytes:
    return Random(name).randbytes(size)


def save(spool: Spool, name: str, *, epoch: int = 1, durable: bool = False, size: int = 50_000) -> SaveAnswer:
    spool.save(name, contents(name, size), epoch=epoch, durable=durable)
    return ok(spool, name)


def all_know_all(agents: AgentsOnLoopback) -> None:
    """Wait until every agent has all the others on its ring."""
    pool = ConnectionPool(keys_from_file(agents.settings.secret_file))
    addresses = [agents.address(number) for number in range(len(agents.spools))]

    def knows(address: Address) -> bool:
        with contextlib.suppress(StoreError):
            members = pool.request(address, "members", {}).header["members"]
            return {str(one["address"]) for one in members} >= {str(one) for one in addresses}
        return False

    wait(lambda: all(map(knows, addresses)))
    pool.close()


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentsOnLoopback]:
    with AgentsOnLoopback(4, tmp_path_factory.mktemp("agents")) as running:
        all_know_all(running)
        yield running


# Names and files

parts = st.from_regex(r"[A-Za-z0-9_\[\]]([A-Za-z0-9_.\[\]-]{0,8}[A-Za-z0-9_\[\]-])?", fullmatch=True).filter(
    lambda part: ".." not in part
)


@given(st.lists(parts, min_size=2, max_size=4))
def test_a_name_becomes_a_state_and_a_file_and_back(words: list[str]) -> None:
    name = "/".join(words)
    assert name_of(key_of(name)) == name
    assert "/" not in key_of(name)
    assert state_of(name).namespace == words[0]


@pytest.mark.parametrize("name", ["", "run", "run/", "/x", "run//x", "run/../x", "run/a..b", "run/a.", "run/.a", "r/é"])
def test_what_is_no_name_is_refused(name: str, tmp_path: Path) -> None:
    for use in (key_of, Spool(tmp_path).saved, Spool(tmp_path).fetch):
        with pytest.raises(BadInput, match="is not a valid snapshot name"):
            use(name)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 5_000_000])
def test_a_snapshot_file_holds_its_bytes_aligned(size: int, tmp_path: Path) -> None:
    data = contents("x", size)
    path = write_snapshot(tmp_path, "run/O1-0/3.2", pa.py_buffer(data), epoch=2, durable=True)
    head = check_snapshot(path, "run/O1-0/3.2")
    assert (head.epoch, head.durable, head.bytes, head.start % 64) == (2, True, size, 0)
    assert bytes(memoryview(mapped_data(path))) == data


def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path) -> None:
    whole = write_snapshot(tmp_path, "run/O1-0/3.2", contents("x", 300), epoch=2, durable=False).read_bytes()
    bad = tmp_path / "bad"
    padding = range(whole.index(b"}") + 1, len(whole) - 300)
    for at in range(len(whole)):
        if at not in padding:
            bad.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(Corrupt):
                check_snapshot(bad, "run/O1-0/3.2")
        bad.write_bytes(whole[:at])
        with pytest.raises(Corrupt):
            check_snapshot(bad, "run/O1-0/3.2")
    bad.write_bytes(whole)
    with pytest.raises(Corrupt, match="holds"):
        check_snapshot(bad, "run/O1-0/4.2")


def test_a_durable_folder_refuses_epochs_that_are_over(tmp_path: Path) -> None:
    folder = DurableFolder(tmp_path / "durable")
    snapshot = write_snapshot(tmp_path, "run/O1-0/3.2", b"x", epoch=2, durable=True)
    folder.save("run/O1-0/3.2", snapshot, Epoch(2))
    folder.save("run/O1-0/3.2", snapshot, Epoch(3))
    with pytest.raises(StaleEpoch):
        folder.save("run/O1-0/4.2", snapshot, Epoch(2))
    with pytest.raises(StaleEpoch):
        folder.forget("run/O1-0/3.2", Epoch(2))
    assert folder.fetch("run/O1-0/3.2", tmp_path / "back")
    assert not folder.fetch("run/O1-0/9.9", tmp_path / "back")
    folder.forget("run/O1-0/3.2", Epoch(3))
    assert not folder.has("run/O1-0/3.2")


@given(st.integers(1, 32), st.floats(0, 0.99))
def test_the_coding_survives_the_share_asked_for(peers: int, share: float) -> None:
    coding = coding_to_survive(peers, share)
    assert coding is not None
    assert coding.total == peers
    assert coding.parity == min(int(peers * share), peers - 1)


# A task's side alone


def test_without_an_agent_the_task_is_told(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.save("run/O1-0/1.1", b"abc", epoch=1, durable=False)
    answer = spool.saved("run/O1-0/1.1")
    assert answer is not None
    assert answer.problem == "no agent has started on this node"
    (tmp_path / "heartbeat").touch()
    assert spool.saved("run/O1-0/1.1") is None
    os.utime(tmp_path / "heartbeat", (1, 1))
    answer = spool.saved("run/O1-0/1.1")
    assert answer is not None
    assert "has not responded for" in str(answer.problem)
    assert spool.saved("run/never/1.1") is None
    assert spool.fetched("run/O1-0/1.1") is None
    assert spool.lost("run/O1-0/1.1") is None
    assert agent_address(tmp_path) is None
    assert pickle.loads(pickle.dumps(spool)).folder == tmp_path


def test_a_full_disk_is_a_problem_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writes fail half-way, as on a full one."""
    code = (
        "import resource, signal, sys\n"
        "from holdfast.store.agent.spool import Spool\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "spool = Spool(sys.argv[1])\n"
        "spool.save('run/O1-0/1.1', bytes(1_000_000), epoch=1, durable=False)\n"
        "print(spool.saved('run/O1-0/1.1').problem)\n"
        "spool.save('run/O1-0/1.1', bytes(1_000), epoch=1, durable=False)\n"
        "print(spool.saved('run/O1-0/1.1').problem)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    first, second = done.stdout.splitlines()
    assert first == "cannot spool run/O1-0/1.1: File too large"
    assert second == "no agent has started on this node", "once there is room it is spooled"
    assert [path.name for path in (tmp_path / "orders").iterdir()] == ["run..O1-0..1.1.save"]
    assert not list((tmp_path / "parts").iterdir())


# Agents


def test_what_one_node_saves_another_fetches(agents: AgentsOnLoopback) -> None:
    first, last = agents.spools[0], agents.spools[3]
    for number, size in enumerate((0, 1, 1000, 3_000_000)):
        answer = save(first, f"plain/O1-{number}/7.1", size=size)
        assert (answer.bytes, answer.fragments, answer.durable) == (size, 4, False)
        assert bring(last, f"plain/O1-{number}/7.1") == contents(f"plain/O1-{number}/7.1", size)
    assert not list((first.folder / "orders").glob("*.save")), "the spooled file is gone"
    first.save("plain/O1-0/7.1", b"other", epoch=1, durable=False)
    assert bring(agents.spools[1], "plain/O1-0/7.1") == b"", "saved once: a second save changes nothing"


def test_durable_is_said_when_both_are_done(agents: AgentsOnLoopback) -> None:
    spool = agents.spools[1]
    assert not save(spool, "both/O1-0/1.1").durable
    answer = save(spool, "both/O1-0/1.1", durable=True)
    assert answer.durable
    copy = agents.folder / "durable" / "both" / "O1-0..1.1.snapshot"
    assert bytes(memoryview(mapped_data(copy))) == contents("both/O1-0/1.1")


def test_several_processes_use_one_spool(agents: AgentsOnLoopback) -> None:
    code = (
        "import sys\n"
        "from random import Random\n"
        "from holdfast.store.agent.spool import Spool\n"
        "for number in range(30):\n"
        "    name = f'many/O{number}-0/1.1'\n"
        "    Spool(sys.argv[1]).save(name, Random(name).randbytes(50_000), epoch=1, durable=False)\n"
    )
    folder = str(agents.spools[2].folder)
    tasks = [subprocess.Popen([sys.executable, "-c", code, folder], env=ENVIRONMENT) for _ in range(3)]
    assert [task.wait() for task in tasks] == [0, 0, 0]
    for number in range(30):
        name = f"many/O{number}-0/1.1"
        assert ok(agents.spools[2], name).fragments == 4
        agents.spools[0].fetch(name)
    for number in range(30):
        name = f"many/O{number}-0/1.1"
        assert bring(agents.spools[0], name) == contents(name)


def test_an_epoch_that_is_over_is_refused_for_good(agents: AgentsOnLoopback) -> None:
    save(agents.spools[0], "fenced/O1-0/5.3", epoch=3)
    old = agents.spools[1]
    old.save("fenced/O1-0/6.2", b"zombie", epoch=2, durable=True)

    def refused() -> SaveAnswer | None:
        answer = old.saved("fenced/O1-0/6.2")
        return answer if answer is not None and answer.final else None

    assert "epoch 2 of 'fenced' is fenced" in str(wait(refused).problem)
    old.forget(["fenced/O1-0/5.3"], epoch=2)
    wait(lambda: not list((old.folder / "orders").iterdir()))
    assert bring(agents.spools[2], "fenced/O1-0/5.3") == contents("fenced/O1-0/5.3"), "it may not forget either"
    old.save("fenced/O1-0/6.2", b"zombie", epoch=2, durable=True)
    assert wait(refused).epoch == 2
    assert not list((old.folder / "orders").iterdir()), "the same epoch is not heard again"
    old.save("fenced/O1-0/6.2", b"no zombie", epoch=4, durable=True)
    assert ok(old, "fenced/O1-0/6.2").durable, "the same state, saved in an epoch that has begun"
    assert bring(agents.spools[3], "fenced/O1-0/6.2") == b"no zombie"


def test_forgotten_is_gone_everywhere(agents: AgentsOnLoopback) -> None:
    names = [f"gone/O{number}-0/1.1" for number in range(5)]
    for name in names:
        save(agents.spools[0], name, durable=True)
        assert bring(agents.spools[1], name) == contents(name)
    agents.spools[1].forget(names, epoch=1)
    wait(lambda: not list((agents.spools[1].folder / "orders").iterdir()))
    assert not list((agents.folder / "durable" / "gone").glob("*.snapshot"))
    assert not list((agents.spools[1].folder / "snapshots").glob("gone*"))
    for spool in agents.spools:
        for folder in (spool.folder / "peer" / "fragments").glob("*/*"):
            assert list(folder.iterdir()), "no empty folders pile up"
    agents.spools[2].fetch(names[0])
    assert "no version is stored" in wait(lambda: agents.spools[2].lost(names[0]))


def test_a_damaged_fragment_is_noticed_and_made_up_for(agents: AgentsOnLoopback) -> None:
    save(agents.spools[0], "damage/O1-0/1.1", size=1_000_000)
    state = state_of("damage/O1-0/1.1")
    for spool in agents.spools[:2]:
        for path in (spool.folder / "peer" / "fragments").glob("*/*/*.fragment"):
            held = path.read_bytes()
            if state.name.encode() in held[:300] and b"damage" in held[:300]:
                path.write_bytes(held[:-5] + b"wrong")
    agents.kill([0, 1])  # what they have in memory is still good: let them read their disks
    agents.start([0, 1])
    assert bring(agents.spools[3], "damage/O1-0/1.1") == contents("damage/O1-0/1.1", 1_000_000)


def test_half_of_the_nodes_may_die(agents: AgentsOnLoopback) -> None:
    all_know_all(agents)
    names = [f"half/O{number}-0/{batch}.1" for number in range(4) for batch in (1, 2)]
    for name in names:
        save(agents.spools[int(name[6])], name, durable=name.endswith("/2.1"))
    agents.kill([0, 1])
    for name in names:
        agents.spools[3].fetch(name)
    for name in names:
        assert bring(agents.spools[3], name) == contents(name)
    everybody = [str(agents.address(number)) for number in range(4)]
    agents.spools[3].save("half/late-0/3.1", contents("half/late-0/3.1"), epoch=1, durable=False)
    told(agents.spools[3], "half/late-0/3.1", "2 are wanted")
    enter_ring(agents.spools[3].folder, everybody[2:])  # the driver has noticed
    assert ok(agents.spools[3], "half/late-0/3.1").fragments == 2, "saves go on with those that are left"
    enter_ring(agents.spools[3].folder, everybody)
    agents.start([0, 1])


def test_what_is_lost_with_most_nodes_is_there_again_with_them(agents: AgentsOnLoopback) -> None:
    """One story: saved on all; three die at once, before repair could give the fourth what it lacks; all come back."""
    all_know_all(agents)
    assert save(agents.spools[0], "most/O0-0/1.1").fragments == 4
    assert save(agents.spools[0], "most/O0-0/2.1", durable=True).durable
    agents.kill([0, 1, 2])
    alone = agents.spools[3]
    alone.forget([], epoch=1)
    assert bring(alone, "most/O0-0/2.1") == contents("most/O0-0/2.1"), "the durable copy"
    alone.fetch("most/O0-0/1.1")
    why = wait(lambda: alone.lost("most/O0-0/1.1"))
    assert "1 of the 2 fragments it needs are there" in why
    assert why.endswith("no durable copy")
    alone.save("most/alone-0/4.1", b"x" * 100, epoch=1, durable=False)
    told(alone, "most/alone-0/4.1", "1 peer answers, 2 are needed")
    agents.start([0, 1, 2])
    assert ok(alone, "most/alone-0/4.1").fragments >= 2, "tried again until it was saved"

    def back() -> pa.Buffer | None:
        alone.fetch("most/O0-0/1.1")
        return alone.fetched("most/O0-0/1.1")

    assert bytes(memoryview(wait(back))) == contents("most/O0-0/1.1")


def test_a_killed_agent_goes_on_where_it_was(agents: AgentsOnLoopback) -> None:
    spool = agents.spools[1]
    names = [f"killed/O{number}-0/1.1" for number in range(8)]
    agents.freeze([1])  # so that the orders are still there when it dies
    for name in names:
        spool.save(name, contents(name), epoch=1, durable=True)
    agents.kill([1])
    assert len(list((spool.folder / "orders").glob("killed*"))) == len(names)
    agents.start([1])
    for name in names:
        assert ok(spool, name).durable
        assert bring(agents.spools[0], name) == contents(name)


def test_a_second_agent_leaves_the_spool_to_the_first(agents: AgentsOnLoopback) -> None:
    command = [sys.executable, "-m", "holdfast.store.agent.agent", str(agents.spools[0].folder)]
    assert subprocess.run(command, check=False, env=ENVIRONMENT).returncode == 0
    assert save(agents.spools[0], "second/O1-0/1.1").ok


def test_agents_that_are_alone_meet_those_whom_the_driver_knows(agents: AgentsOnLoopback) -> None:
    """As after a freeze in which all neighbours were replaced: rings that know nothing of each other become one."""
    addresses = [str(agents.address(number)) for number in range(4)]
    agents.kill(range(4))
    for number, spool in enumerate(agents.spools):
        (spool.folder / "known.json").unlink(missing_ok=True)
        enter_ring(spool.folder, [addresses[number]])
    agents.start(range(4))
    lonely = agents.spools[2]
    lonely.save("met/O1-0/1.1", contents("met"), epoch=1, durable=False)
    told(lonely, "met/O1-0/1.1", "1 peer answers, 2 are needed")
    for spool in agents.spools:
        enter_ring(spool.folder, addresses)
    assert ok(lonely, "met/O1-0/1.1").fragments >= 2
    assert bring(agents.spools[0], "met/O1-0/1.1") == contents("met")


# Other ways to run one


def test_an_agent_without_a_ring_keeps_durable_copies(tmp_path: Path) -> None:
    settings = AgentSettings(peer=False, durable=str(tmp_path / "durable"), settle=0.5)
    with AgentsOnLoopback(1, tmp_path, settings) as alone:
        answer = save(alone.spools[0], "run/O1-0/1.1")
        assert (answer.fragments, answer.durable) == (0, True)
        assert bring(alone.spools[0], "run/O1-0/1.1") == contents("run/O1-0/1.1")
        alone.spools[0].fetch("run/O9-0/1.1")
        assert wait(lambda: alone.spools[0].lost("run/O9-0/1.1")) == "run/O9-0/1.1: no durable copy"
        (tmp_path / "durable").rename(tmp_path / "away")
        (tmp_path / "durable").write_text("a file where the folder was")
        alone.spools[0].save("run/O2-0/1.1", b"x", epoch=1, durable=True)
        told(alone.spools[0], "run/O2-0/1.1", "cannot write the durable copy")
        (tmp_path / "durable").unlink()
        assert ok(alone.spools[0], "run/O2-0/1.1").durable
        other = Spool(alone.spools[0].folder, durable_folder=tmp_path / "other")
        assert save(other, "other/O1-0/1.1").durable
        assert (tmp_path / "other" / "other" / "O1-0..1.1.snapshot").exists(), "tasks may name the folder of their run"
        assert bring(other, "other/O1-0/1.1") == contents("other/O1-0/1.1")
        assert alone.stop(0) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_fragments": 2}, "only one of data and parity"),
        ({"survive": 1.0}, "not a share of the peers"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        AgentSettings(**settings)  # type: ignore[arg-type]

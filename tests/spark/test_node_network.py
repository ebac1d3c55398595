"""Networks and disks of nodes: cut and connected, filled, and nothing is left behind. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import CheckFailed
from holdfast.spark.node_network import NodeNetwork, sweep
from holdfast.spark.process_reaper import ProcessReaper
from holdfast.spark.small_disk import fill_up, mount_small_disk

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
connection, _ = server.accept()
while data := connection.recv(100):
    connection.sendall(data)
"""


def may_make_networks() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        network = NodeNetwork()
    except CheckFailed:
        return False
    remove(network.undo_commands())
    return True


def remove(commands: list[list[str]]) -> None:
    for words in commands:
        subprocess.run(words, check=False, capture_output=True)


needs_networks = pytest.mark.skipif(not may_make_networks(), reason="needs root and network namespaces")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def network() -> Iterator[NodeNetwork]:
    made = NodeNetwork()
    try:
        yield made
    finally:
        remove(made.undo_commands())


@needs_networks
def test_a_node_that_is_cut_off_hears_nothing_and_its_connections_stay(network: NodeNetwork) -> None:
    host = network.host_of(1)
    before, leave = network.join(host)
    with contextlib.ExitStack() as held:
        held.callback(remove, [leave])
        server = subprocess.Popen([*before, sys.executable, "-c", ECHO, host], stdout=subprocess.PIPE, text=True)
        held.callback(server.wait)
        held.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        connection = held.enter_context(socket.create_connection((host, 7000), timeout=30.0))
        connection.sendall(b"one")
        assert connection.recv(100) == b"one"
        network.cut(host)
        connection.sendall(b"two")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        network.heal(host)
        connection.settimeout(60.0)
        assert connection.recv(100) == b"two", "what was sent meanwhile arrives, as after a switch was repaired"
        server.stdout.close()


@needs_networks
def test_the_reaper_removes_what_a_process_leaves() -> None:
    child = """
import os
from holdfast.spark.node_network import NodeNetwork
from holdfast.spark.process_reaper import ProcessReaper
reaper = ProcessReaper()
network = NodeNetwork()
for words in network.undo_commands():
    reaper.undo(*words)
reaper.undo(*network.join(network.host_of(1))[1])
print(os.getpid(), flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", child],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    # The pipe to the reaper is also the end of its output: when `run` returns, it is done.
    process = int(done.stdout)
    assert not list(Path("/run/netns").glob(f"holdfast-{process}-*"))
    assert not list(Path("/sys/class/net").glob(f"hf{process:x}b*"))


@needs_networks
def test_what_a_dead_process_left_is_swept() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    space = f"holdfast-{dead.pid}-2"
    subprocess.run(["ip", "netns", "add", space], check=True)
    sweep()
    assert not (Path("/run/netns") / space).exists()


@needs_root
def test_a_small_disk_is_filled_to_its_last_byte(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    reaper = ProcessReaper()
    reaper.undo("umount", "-l", str(place))
    try:
        try:
            mount_small_disk(place, 1)
        except CheckFailed:
            pytest.skip("mounting is not allowed here")
        (place / "before").write_bytes(b"x")
        assert 900_000 < fill_up(place / "filler") <= 1 << 20
        with pytest.raises(OSError, match="No space left"):
            (place / "more").write_bytes(b"x" * 10_000)
    finally:
        reaper.close()
    assert not os.path.ismount(place)

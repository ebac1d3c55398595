"""`holdfast store …`: what scripts and people get, and one line with a remedy for everything that is wrong."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast_lab.testing.ring_of_peers import RingOfPeers


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingOfPeers]:
    with RingOfPeers(4, tmp_path_factory.mktemp("ring")) as running:
        saved = tmp_path_factory.mktemp("saved") / "state"
        saved.write_bytes(b"a state that every test finds")
        assert run(["store", "put", "saved", str(saved), "--peer", running.address(0)]) == 0
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.write_bytes(bytes(range(256)) * 500)
    return path


def test_put_get_status_repair(ring: RingOfPeers, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer = ["--peer", ring.address(1)]
    for round_number in (0, 1):
        assert run(["store", "put", "O3[0]", str(file), *peer, "--json"]) == 0
        put = json.loads(capsys.readouterr().out)
        assert put["version"] == round_number
        assert put["stored"] == put["data"] + put["parity"] <= 4
    assert run(["store", "get", "O3[0]", str(file) + ".back", *peer, "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert (got["bytes"], got["version"], got["lost"]) == (128_000, 1, [])
    assert Path(str(file) + ".back").read_bytes() == file.read_bytes()
    assert run(["store", "status", *peer, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert len(status["peers"]) == 4
    (state,) = [one for one in status["states"] if one["name"] == "O3[0]"]
    assert state["redundancy"] == put["parity"]
    assert state["versions"] == 1, "older versions were released"
    assert {"rounds", "rebuilt", "to_rebuild", "running"} <= set(status["repair"])
    assert run(["store", "repair", *peer, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["states"]
    for command in (["status"], ["get", "O3[0]", str(file) + ".b2"], ["put", "x", str(file)]):
        assert run(["store", *command, *peer]) == 0
        assert "┃" in capsys.readouterr().out


def test_deltas_and_epochs_from_the_command_line(
    ring: RingOfPeers, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--peer", ring.address(0), "--namespace", "deltas", "--json"]
    delta = tmp_path / "delta"
    delta.write_bytes(b"changes")
    assert run(["store", "put", "s", str(file), *common, "--version", "5", "--epoch", "2"]) == 0
    assert run(["store", "put", "s", str(delta), *common, "--version", "6", "--follows", "5"]) == 0
    capsys.readouterr()
    assert run(["store", "get", "s", str(tmp_path / "out"), *common]) == 0
    assert json.loads(capsys.readouterr().out)["parts"] == [128_000, 7]
    assert (tmp_path / "out").read_bytes() == file.read_bytes() + b"changes"
    assert run(["store", "put", "s", str(file), *common, "--version", "9", "--epoch", "1"]) == 1
    assert "epoch 1 of 'deltas' is fenced" in capsys.readouterr().err


def test_an_empty_file_is_a_state(ring: RingOfPeers, tmp_path: Path) -> None:
    empty, back = tmp_path / "empty", tmp_path / "back"
    empty.write_bytes(b"")
    assert run(["store", "put", "empty", str(empty), "--peer", ring.address(0)]) == 0
    assert run(["store", "get", "empty", str(back), "--peer", ring.address(0)]) == 0
    assert back.read_bytes() == b""


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["put", "x", "NOWHERE", "PEER"], 2, "cannot be read"),
        (["put", "../x", "FILE", "PEER"], 2, "is not a valid state name"),
        (["put", "x", "FILE", "PEER", "--namespace", "a/b"], 2, "is not a valid state name"),
        (["put", "x", "FILE", "PEER", "--data-fragments", "3"], 2, "together"),
        (["put", "x", "FILE", "PEER", "--data-fragments", "30", "--parity-fragments", "3"], 2, "at most 32"),
        (["put", "x", "FILE", "PEER", "--data-fragments", "0", "--parity-fragments", "3"], 2, "--data-fragments"),
        (["put", "x", "FILE"], 2, "--peer"),
        (["put", "x", "FILE", "--peer", "nonsense"], 2, "HOST:PORT"),
        (["put", "x", "FILE", "--peer", "127.0.0.1:1"], 1, "cannot connect"),
        (["put", "x", "FILE", "PEER", "--secret-file", "NOWHERE"], 2, "cannot read the secret"),
        (["put", "x", "FILE", "PEER", "--tls-cert", "FILE"], 2, "a certificate, a key and an authority"),
        (["put", "x", "FILE", "PEER", "--tls-cert", "FILE", "--tls-key", "FILE", "--tls-authority", "FILE"], 2, "TLS"),
        (["get", "never-saved", "OUT", "PEER"], 1, "no version is stored"),
        (["get", "never-saved", "FOLDER", "PEER"], 2, "is a folder"),
        (["get", "saved", "NOWHERE/deep/file", "PEER"], 2, "cannot create the file"),
        (["status", "--peer", "127.0.0.1:1"], 1, "cannot connect"),
        (["get", "x", "back", "--peer", "127.0.0.1:1"], 1, "; start a peer there (`holdfast store serve`), or"),
        (["serve", "--data", "FILE", "--port", "0"], 2, "folder"),
        (["serve", "--data", "OUT", "--port", "99999"], 2, "--port"),
        (["serve", "--data", "OUT", "--port", "0", "--bandwidth", "0"], 2, "--bandwidth"),
        (["serve", "--data", "OUT", "--port", "0", "--repair-every", "0"], 2, "--repair-every"),
        (["serve", "--data", "OUT", "--port", "0", "--join", "x"], 2, "HOST:PORT"),
        (
            ["serve", "--data", "OUT", "--port", "0", "--join", "127.0.0.1:1", "--join-seconds", "0.3"],
            1,
            "no peer answered",
        ),
        (["soak", "--peers", "3", "--kills", "1"], 2, "needs 6 peers"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_remedy(
    ring: RingOfPeers,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    says: str,
) -> None:
    names = {"FILE": str(file), "FOLDER": str(tmp_path), "OUT": str(tmp_path / "out"), "PEER": "PEER"}
    filled = [names.get(one, one.replace("NOWHERE", str(tmp_path / "nowhere"))) for one in arguments]
    if "PEER" in filled:
        place = filled.index("PEER")
        filled[place : place + 1] = ["--peer", ring.address(2)]
    assert run(["store", *filled]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("holdfast: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_port_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["store", "serve", "--data", str(tmp_path / "d"), "--port", str(port)]) == 2
    assert "free it, or give another port" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_ready_once_and_ends_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "holdfast.cli.main",
        "store",
        "serve",
        "--data",
        str(tmp_path / "d"),
        "--port",
        "0",
    ]
    src = str(Path(__file__).resolve().parents[2] / "src")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={"PYTHONPATH": src, "PATH": ""}
    ) as peer:
        assert peer.stdout is not None
        assert peer.stdout.readline().startswith("ready 127.0.0.1:")
        peer.send_signal(number)
        out, err = peer.communicate(timeout=300)
    assert peer.returncode == 0
    assert (out, err) == ("", "")

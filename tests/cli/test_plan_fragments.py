"""`holdfast plan fragments`: the contract's fields, preferences, files, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run

USUAL = {
    "--state-bytes": "128e6",
    "--peers": "40",
    "--node-failure": "0.01",
    "--reliability": "0.9999",
    "--bandwidth": "9e6",
    "--code-rate": "65e6",
}


def arguments(**changes: str | None) -> list[str]:
    values = {**USUAL, **{f"--{name.replace('_', '-')}": value for name, value in changes.items()}}
    return [word for name, value in values.items() if value is not None for word in (name, value)]


def document(capsys: pytest.CaptureFixture[str], **changes: str | None) -> dict[str, Any]:
    assert run(["plan", "fragments", *arguments(**changes), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_fields_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, file_bandwidth="5e6")
    assert {"data", "parity", "total", "success", "storage_overhead", "recovery_seconds", "beats_file"} <= set(found)
    assert found["total"] == found["data"] + found["parity"] <= 32
    assert found["success"] >= 0.9999
    assert found["storage_overhead"] == pytest.approx(found["parity"] / found["data"])
    assert found["recovery_seconds"] == pytest.approx(128e6 / 9e6 + 128e6 / 65e6)
    assert found["beats_file"] is True
    assert document(capsys, file_bandwidth="8e6")["beats_file"] is False
    assert document(capsys)["beats_file"] is None


def test_preferences_differ(capsys: pytest.CaptureFixture[str]) -> None:
    found = {prefer: document(capsys, prefer=prefer) for prefer in ("speed", "storage", "reliability")}
    assert found["reliability"]["success"] >= found["storage"]["success"]
    assert found["storage"]["storage_overhead"] <= found["reliability"]["storage_overhead"]
    assert found["speed"]["spread_seconds"] <= min(one["spread_seconds"] for one in found.values())


def test_no_plan_is_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "fragments", *arguments(peers="3", node_failure="0.2"), "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the best, 1+2, succeeds with 0.992" in captured.err


def test_measured_rates_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    rows = [
        {"data": m, "parity": k, "encode_bytes_per_second": 1e9, "decode_bytes_per_second": 1e6 if m > 4 else 1e9}
        for m, k in [(4, 4), (8, 4), (16, 4), (16, 16), (2, 2)]
    ]
    path.write_text(json.dumps({"rates": rows}))
    found = document(capsys, code_rate=None, rates=str(path))
    assert found["data"] <= 4
    path.write_text(json.dumps({"rates": [{"data": 4}]}))
    assert run(["plan", "fragments", *arguments(code_rate=None, rates=str(path))]) == 2
    assert "rates[0]" in capsys.readouterr().err


def test_peers_that_differ_get_different_shares(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    peers = [{"id": f"fast{n}", "bandwidth": 1e8, "domain": f"r{n}"} for n in range(4)]
    peers += [{"id": f"slow{n}", "bandwidth": 1e7, "failure": 0.02, "domain": f"r{n % 4}"} for n in range(12)]
    path.write_text(json.dumps({"peers": peers}))
    found = document(capsys, peers=None, node_failure=None, peer_file=str(path), domain_failure="0.001")
    assert sum(found["shares"].values()) == found["total"]
    racks = {peer["id"]: peer["domain"] for peer in peers}
    held: dict[Any, int] = {}
    for name, count in found["shares"].items():
        held[racks[name]] = held.get(racks[name], 0) + count
    assert max(held.values()) <= found["parity"]
    assert run(["plan", "fragments", *arguments(peers=None, node_failure=None, peer_file=str(path))]) == 0
    assert "fast0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peers": None}, "--peers: is missing"),
        ({"code_rate": None}, "--code-rate: is missing"),
        ({"peers": "1"}, "--peers"),
        ({"node_failure": "1"}, "--node-failure"),
        ({"state_bytes": "0"}, "--state-bytes"),
        ({"state_bytes": "inf"}, "state_bytes"),
        ({"reliability": "2"}, "--reliability"),
        ({"peer_file": "nowhere.json"}, "nowhere.json: cannot be read"),
        ({"rates": "nowhere.json"}, "nowhere.json: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], changes: dict[str, str | None], words: str
) -> None:
    assert run(["plan", "fragments", *arguments(**changes), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_bad_peer_files_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    for text, words in [
        ("[", "is not JSON"),
        ("[]", "is not an object"),
        ("{}", "no list of peers"),
        ('{"peers": [{"id": "a"}]}', "peers[0]"),
        ('{"peers": [{"id": "a", "bandwidth": 1, "speed": 3}]}', "peers[0]"),
        ('{"peers": [{"id": "a", "bandwidth": 0}]}', "no bandwidth"),
        ('{"peers": [{"id": "a", "bandwidth": 1}, {"id": "a", "bandwidth": 1}]}', "named twice"),
    ]:
        path.write_text(text)
        assert run(["plan", "fragments", *arguments(peers=None, node_failure=None, peer_file=str(path))]) == 2
        assert words in capsys.readouterr().err

"""`holdfast simulate store`: campaigns, fresh seeds, one seed line by line, and a violation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.main import cli, run
from holdfast_lab.simulation.campaign import run_seeds
from holdfast_lab.simulation.store.campaign import StoreCampaign
from holdfast_lab.simulation.store.run import StoreOutcome, simulate_store
from simulation.store_bugs import SHOWN_BY, STORE_BUGS

pytestmark = pytest.mark.timeout(1800)
"""A busy machine is not a failure."""


def test_a_campaign_prints_and_writes_what_came_of_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["simulate", "store", "--seeds", "3", "--first-seed", "40", "--out", str(tmp_path), "--json"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["first_seed"], document["seeds"], document["violations"]) == (40, 3, [])
    assert sum(document["faults"].values()) > 0
    assert document["counts"]["saved"] > 0
    assert json.loads((tmp_path / "result.json").read_text()) == document


def test_processes_share_the_seeds() -> None:
    alone, shared = StoreCampaign(), StoreCampaign()
    assert run_seeds(alone, simulate_store, range(50, 53))
    assert run_seeds(shared, simulate_store, range(50, 53), jobs=2)
    assert (alone.faults, alone.counts) == (shared.faults, shared.counts)


def test_fresh_seeds_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda most: 7_000_000_000)
    monkeypatch.setattr("holdfast_lab.simulation.store.run.simulate_store", StoreOutcome)
    done = CliRunner().invoke(cli, ["simulate", "store", "--fresh", "--seeds", "30", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "no violation" in done.output
    assert "seeds 7000000000 to 7000000029" in done.output


def test_ctrl_c_ends_a_campaign_with_what_it_has_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(seed: int) -> StoreOutcome:
        if seed == 130:
            raise KeyboardInterrupt
        return StoreOutcome(seed, violation="a fragment is gone" if seed == 115 else None)

    monkeypatch.setattr("holdfast_lab.simulation.store.run.simulate_store", simulate)
    asked = ["simulate", "store", "--first-seed", "100", "--seeds", "300", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli, asked)
    assert "violation after 20 of 300 seeds: holdfast simulate store --seed 115" in done.stderr
    assert "seeds 100 to 119" in done.stdout
    assert json.loads((tmp_path / "result.json").read_text())["seeds"] == 20
    monkeypatch.setattr("holdfast_lab.simulation.store.run.simulate_store", lambda seed: simulate(seed + 15))
    done = CliRunner().invoke(
        cli, ["simulate", "store", "--first-seed", "101", "--seeds", "300", "--out", str(tmp_path)]
    )
    assert done.exit_code == 130
    assert "stopped after 0 of 300 seeds" in done.stderr


def test_a_seed_is_printed_line_by_line() -> None:
    done = CliRunner().invoke(cli, ["simulate", "store", "--seed", "6"])
    assert done.exit_code == 0, done.output
    journal = simulate_store(6, record=True).journal
    assert done.output.splitlines()[: len(journal)] == journal
    assert "no violation: " in done.output


def test_a_violation_ends_with_status_1_its_seed_and_its_replay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = STORE_BUGS[0]
    bug.put_in(monkeypatch)
    seed = str(SHOWN_BY[bug.name])
    assert run(["simulate", "store", "--seeds", "1", "--first-seed", seed, "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert f"VIOLATION, seed {seed}: " in printed.out
    assert f"replay: holdfast simulate store --seed {seed}" in printed.out
    assert f"1 seeds violate what must hold, the first is {seed}" in printed.err
    assert run(["simulate", "store", "--seed", seed]) == 1
    assert f"VIOLATION, seed {seed}: " in capsys.readouterr().out


def test_an_unexpected_error_is_a_violation_and_its_place_is_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr("holdfast_lab.simulation.store.run._Run._fault", broken)
    outcome = simulate_store(1, record=True)
    assert outcome.violation == "RuntimeError was raised: not foreseen"
    assert outcome.journal[-1] == "RuntimeError: not foreseen"

"""`holdfast fidelity` and `holdfast plan replicas`: the contract's fields, and how they refuse."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.main import run


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "loss"), [("replication-fig2-joined", 2 / 5), ("replication-fig2", 1 / 4)])
def test_fidelity_of_figure_2(name: str, loss: float, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "fidelity", name, "--failed", "O2[1]")
    assert found["fidelity"] == pytest.approx(1 - loss)
    assert found["completeness"] == pytest.approx(12 / 16)
    assert found["failed"] == ["O2[1]"]
    assert found["outputs"] == {"O3[0]": pytest.approx(1 - loss)}


def test_fidelity_of_nothing_and_everything_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "fidelity", "incidents", "--failed", "none")["fidelity"] == 1.0
    assert document(capsys, "fidelity", "incidents", "--failed", "speeds,incidents")["fidelity"] == 0.0
    assert document(capsys, "fidelity", "incidents", "--failed", "all")["completeness"] == 0.0


@pytest.mark.parametrize("metric", ["fidelity", "completeness"])
@pytest.mark.parametrize("algorithm", ["structure-aware", "dp", "greedy", "exact"])
def test_plans_have_the_contract_s_fields(algorithm: str, metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", "replicas", "incidents", "--budget", "8", "--algorithm", algorithm, "--metric", metric)
    plan = document(capsys, *arguments)
    assert plan.keys() >= {"replicas", "fidelity", "completeness", "optimal", "bound", "seconds"}
    assert len(plan["replicas"]) <= 8
    assert plan[metric] <= plan["bound"]
    if algorithm in ("dp", "exact"):
        assert plan["optimal"]
    missing = sorted({f"O1[{i}]" for i in range(8)} | {f"O{o}[{i}]" for o in (2, 3) for i in range(4)} | {"O4[0]"})
    failed = ",".join(one for one in missing if one not in plan["replicas"])
    again = document(capsys, "fidelity", "incidents", "--failed", failed)
    assert again["fidelity"] == pytest.approx(plan["fidelity"])
    assert again["completeness"] == pytest.approx(plan["completeness"])


def test_tables_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "replicas", "incidents", "--budget", "8", "--algorithm", "dp"]) == 0
    assert "fidelity 0.603605" in capsys.readouterr().out
    assert run(["plan", "replicas", "incidents", "--budget", "3"]) == 0
    assert "the smallest complete tree has 4 partitions" in capsys.readouterr().err
    assert run(["fidelity", "incidents", "--failed", "matches[0]"]) == 0
    assert "jams[0]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fidelity", "incidents", "--failed", "O9[0]"), "there is no operator 'O9'"),
        (("fidelity", "incidents", "--failed", "matches[4]"), "matches has matches[0] to matches[3]"),
        (("fidelity", "nowhere.json", "--failed", "all"), "no such file"),
        (("plan", "replicas", "incidents"), "--budget"),
        (("plan", "replicas", "incidents", "--budget", "-1"), "--budget"),
        (("plan", "replicas", "incidents", "--budget", "2", "--algorithm", "best"), "best"),
    ],
)
def test_bad_usage_ends_with_one_line_and_status_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert said in captured.err


def test_what_a_solver_prints_does_not_reach_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    import os

    from holdfast.cli.solver_output import solver_messages_on_stderr

    with solver_messages_on_stderr():
        os.write(1, b"from the solver\n")
    os.write(1, b"the document\n")
    captured = capfd.readouterr()
    assert captured.out == "the document\n"
    assert captured.err == "from the solver\n"

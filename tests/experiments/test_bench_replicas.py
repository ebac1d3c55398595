"""The bench's section on replicas: its cases prepare and answer what they say (time is the bench's business)."""

from __future__ import annotations

from holdfast_lab.benches.planners import all_sections


def test_cases_of_the_replica_section() -> None:
    cases = {case.name: case for case in all_sections()["replicas"].cases()}
    assert cases["structure-aware, 5,000 partitions"].limit_seconds == 30
    facts = cases["structure-aware, 100 partitions"].prepare()()
    assert int(str(facts["partitions"])) >= 100
    assert float(str(facts["fidelity"])) > 0
    update = cases["100 fidelity updates, 10,000 partitions"]
    assert update.limit_seconds == 100 * 0.005
    facts = update.prepare()()
    assert int(str(facts["task_edges"])) > 1_000_000
    # A hundredth part of each of ten operators' partitions; full fans leave only the means of both halves.
    assert 0.97 < float(str(facts["fidelity"])) < 1

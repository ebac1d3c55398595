"""The segments section of `holdfast bench planners`: its cases are there, have names of their own, and run."""

from __future__ import annotations

from holdfast_lab.benches.planners import all_sections


def test_the_sizes_we_promise_are_measured() -> None:
    cases = {case.name: case for case in all_sections()["segments"].cases()}
    assert len(cases) == len(all_sections()["segments"].cases())
    for operators in (15, 50, 100):
        for steps in ("60", "250", "1,000"):
            assert f"chain of {operators}, Z {steps}" in cases
    assert cases["tree of 200, Z 200"].size == 200
    for name in ("chain of 15, Z 60", "tree of 200, Z 200", "dag of 25"):
        facts = cases[name].prepare()()
        assert facts["anchors"] >= 1

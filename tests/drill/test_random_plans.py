"""Plans drawn for mixed drills: every one can be executed, all kinds come, and nothing else of a seed changes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast.drill.mixed import draw_settings
from holdfast.drill.random_plans import KINDS, draw_plan
from holdfast.drill.scenarios import scenario_of
from holdfast.drill.settings import DrillFeed, DrillSettings, Uniform
from holdfast.spark.planned import RunPlan, plan_for_run
from holdfast.topology import Topology

ASKED = DrillSettings("mixed", nodes=6, kill=0, arrivals=Uniform(3.0, 15.0), batches=50, fail_at=12.0)


def drawn(seed: int, **asked: object) -> tuple[DrillSettings, Topology]:
    one = draw_settings(replace(ASKED, seed=seed, **asked))  # type: ignore[arg-type]
    return one, scenario_of(one).application().topology()


def executed(plan: object, topology: Topology, folder: Path) -> RunPlan:
    if not isinstance(plan, str):
        file = folder / "plan.json"
        file.write_text(json.dumps(plan, allow_nan=False))
        plan = str(file)
    found = plan_for_run(plan, topology, None, nodes=6)
    assert found is not None
    return found


def test_every_drawn_plan_can_be_executed_and_all_kinds_come(tmp_path: Path) -> None:
    kinds, segments, backups, replicas, multiples = Counter[str](), set(), set(), set(), 0
    for seed in range(60):
        settings, topology = drawn(seed)
        plan = draw_plan(settings, topology)
        assert plan == draw_plan(settings, topology), "the same from the same seed"
        if plan == "auto":
            kinds["auto"] += 1
            continue
        assert not isinstance(plan, str)
        kinds["joint" if "plan" in plan else "segments" if "frequency" in plan else "backups"] += 1
        found = executed(plan, topology, tmp_path)
        segments.add(len(found.segments.segments.names))
        multiples += bool(found.segments.segments.multiples)
        backups.add(None if found.backups is None else len(found.backups))
        replicas.add(0 if found.replicas is None else len(found.replicas.partitions))
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 5
    assert min(len(one) for one in (segments, backups, replicas)) >= 3
    assert multiples


def test_no_replicas_are_drawn_where_none_can_be() -> None:
    for seed in range(40):
        settings, topology = drawn(seed, exchange="shuffle")
        plan = draw_plan(settings, topology)
        assert isinstance(plan, str) or not plan.get("replicas")


def test_a_command_draws_plans_and_leaves_the_rest_of_a_seed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[bool, list[DrillSettings]] = {True: [], False: []}
    for random_plans in (False, True):

        def no_drill(asked: DrillSettings, directory: Path, **rest: object) -> None:
            if asked.plan not in (None, "auto"):
                assert asked.plan == str(directory / "drawn-plan.json")
                executed(json.loads(Path(str(asked.plan)).read_bytes()), topology_of(asked), tmp_path)
            taken[random_plans].append(asked)  # noqa: B023
            from holdfast.errors import CheckFailed

            raise CheckFailed("is not run", remedy="none")

        monkeypatch.setattr("holdfast.drill.drill.run_drill", no_drill)
        options = ["--random-plans"] if random_plans else []
        given = ["--without", "partition,fill-disk,kafka", "--batches", "50", "--fail-at", "12", "--repeat", "12"]
        place = tmp_path / f"drills-{random_plans}"
        assert run(["drill", "mixed", *given, *options, "--out", str(place), "--json"]) == 4
    assert [replace(one, plan=None) for one in taken[True]] == taken[False]
    assert len({one.plan for one in taken[True]}) > 5
    assert all(one.feed is not DrillFeed.BATCHES for one in taken[True])


def topology_of(asked: DrillSettings) -> Topology:
    return scenario_of(asked).application().topology()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["traffic", "--random-plans"], "only mixed drills draw plans"),
        (["mixed", "--random-plans", "--plan", "auto"], "does not go with --plan"),
        (["mixed", "--random-plans", "--overhead", "0.1"], "does not go with --overhead"),
        (["mixed", "--random-plans", "--feed", "batches"], "only a run that reads its sources executes a plan"),
        (["mixed", "--plan", "plan.json", "--repeat", "3", "--without", "kafka"], "cannot be a plan for chain, "),
    ],
)
def test_plans_that_cannot_be_are_refused_in_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["drill", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert named in printed.err

"""The simulator of recoveries: it finds nothing, does what it says, and a seed gives one run."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from holdfast.cli.main import cli
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime import run_in_process
from holdfast.runtime.identity import compare, describe
from holdfast.runtime.io.sinks import OutputKey
from holdfast_lab.simulation.recovery.applications import (
    SHAPES,
    LateRows,
    Outputs,
    Recipe,
    batches_of,
    computed,
    draw_change,
    inputs_of,
    program_of,
)
from holdfast_lab.simulation.recovery.campaign import run_campaign
from holdfast_lab.simulation.recovery.checks import output_problems
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.run import simulate_recovery
from sizes import LONG

ALL_SEEDS = (
    *range(84),
    *range(252, 270),  # second copies
    *range(576, 588),  # which move for load
    *range(1116, 1134),  # tentative outputs
    *(900, 901),  # replica plans that change
    *(*range(2000, 2010), 2017, 2020, 2047),  # sources read in place
    *range(2052, 2066),  # late sinks
)
"""Seeds of every kind and with every fault. Fresh ones are for `holdfast simulate recovery --fresh`."""
TARGETS = (2141, 2369, 2519, 2139, 3735, 2152, 2287, 2323, 700307)
"""Outputs in topics and tables, and sources that are topics."""
SEEDS = [*dict.fromkeys([*(ALL_SEEDS if LONG else ALL_SEEDS[::2]), 306, 251, 2058, 3928, *TARGETS])]
"""The last ones have what is rare: rows that were staged and are missing, a change of layout that gives up a query, a
sink that is called for a driver that was over; connections that die without an end, a source's file that changes."""

pytestmark = pytest.mark.timeout(3600)
"""A busy machine is not a failure: a campaign is the longest test of the suite."""


def expected_of(recipe: Recipe, seed: int, count: int) -> Outputs:
    return computed(program_of(recipe), batches_of(recipe, seed, count))[0]


def late_of(recipe: Recipe, seed: int, count: int) -> LateRows:
    return computed(program_of(recipe), batches_of(recipe, seed, count))[1]


def test_some_seeds_of_every_kind_find_nothing() -> None:
    campaign = run_campaign(SEEDS)
    problems = [(one.seed, one.violation) for one in campaign.violations]
    assert not problems, f"replay with: holdfast simulate recovery --seed {problems[0][0]}: {problems}"
    assert campaign.seeds == len(SEEDS)
    rare = [fault for fault in Fault if not campaign.faults[fault]]
    assert not rare, f"never injected: {rare}"
    assert set(campaign.shapes) >= set(SHAPES)
    assert len(campaign.strategies) == 4
    assert campaign.rollbacks > len(SEEDS) / 4
    assert campaign.tentative > 10


FAILED = (167, 1150, 1575, 1607, 2078, 2463, 2896, 3389, 6475, 9765, 502242)
"""Seeds that showed a fault of the system, before layouts, agents and cuts were simulated."""
FAILED_SINCE = (
    *(4, 6, 15, 26, 75, 139, 100014, 100208, 100328, 100394, 100436, 100462, 100476, 97868923083),
    *(31429587146, 31429587323, 31429587466, 31429587518, 6660164, 770047, 7340070, 7350327, 206, 51017),
    *(152, 163, 2083, 990087, 990092),
    8820053,
    *(966795482120, 966795482310, 630700010511, 630700011471, 630700011495, 630700010746, 630700011145, 451739002814),
    123,
    *(1875, 2546, 485, 355199880609, 355199880582, 438800262106, 1018),
    *(540698619009, 540698619090, 540698619152, 540698619214),
    1399,
    *(195719689733, 213247036159, 213247036511, 449484473140, 596240953828, 1194, 2118, 436530382552),
    424625493306,
    *(400966865532, 302753253323, 302753254019, 302753254070),
    *(302753254352, 302753255542, 302753255849, 302753258215, 302753259055, 302753259298),
    *(302753259517, 302753260564, 992318605151, 992318605264),
    *(734037494486, 468115126690),
    *(4051, 658, 891896064, 7100000225, 7100000876, 7200001418, 7200001700),
    *(820020228775, 820020230671),
    12146,
    *(599212958539, 987841975482, 678584749124),
    *(678584749754, 678584750433),
)
"""Those that have shown one since, of the system or of the simulator itself.

What a seed draws changes with the simulator: each fault of the system has a test of its own as well.
"""


@pytest.mark.parametrize("seed", [*FAILED, *FAILED_SINCE])
def test_seeds_that_found_a_fault_once_find_it_no_more(seed: int) -> None:
    assert simulate_recovery(seed).violation is None


@pytest.mark.parametrize("seed", [111, 303])
def test_partitions_start_from_intermediate_snapshots_in_some_seeds(seed: int) -> None:
    outcome = simulate_recovery(seed)
    assert outcome.violation is None
    assert outcome.ahead > 0


@pytest.mark.parametrize("seed", [457, 857])
def test_queries_that_are_parked_for_good_and_removed_do_not_hold_a_layout_back(seed: int) -> None:
    outcome = simulate_recovery(seed)
    assert outcome.violation is None
    assert outcome.faults[Fault.GIVEN_UP]


def test_a_seed_gives_one_run() -> None:
    first, second = simulate_recovery(7, record=True), simulate_recovery(7, record=True)
    assert without_tokens(first.journal) == without_tokens(second.journal)
    assert first.faults == second.faults
    assert without_tokens(simulate_recovery(8, record=True).journal) != without_tokens(first.journal)


def without_tokens(journal: Sequence[str]) -> list[str]:
    """Names of pieces end with a token that no other has, in every run another one; it decides nothing."""
    return [re.sub(r"(pieces/\S+)-[0-9a-f]{12}", r"\1", line) for line in journal]


@pytest.mark.parametrize("seed", [3, 22])
def test_a_seed_gives_the_same_run_in_another_process(seed: int) -> None:
    """Where a set is gone through in no order, what one process finds another cannot replay."""
    told = []
    for number in ("1", "2"):
        words = [sys.executable, "-m", "holdfast.cli.main", "simulate", "recovery", "--seed", str(seed)]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": number}
        )
        told.append(re.sub(r"-[0-9a-f]{12}", "", done.stdout))
    assert told[0] == told[1]


def test_every_layout_that_is_drawn_may_follow_every_other() -> None:
    draw = random.Random(3)
    for shape, (_, sizes) in SHAPES.items():
        for first in sizes:
            before = Recipe(shape, first)
            for _ in range(8):
                after = draw_change(draw, before)
                changes = compare(describe(program_of(before)), describe(program_of(after)))
                assert not changes.refused, (before, after, changes.lines())
                assert changes.layout_changed
                before = after


@pytest.mark.parametrize("shape", ["traffic", "counted", "join"])
def test_what_is_expected_after_a_change_is_what_a_run_gives_that_never_changed(shape: str) -> None:
    """Over all partitions of an output, where only state with keys is spread."""
    sizes = SHAPES[shape][1][1]
    places = {"traffic": (0, 1, 2), "counted": (1,), "join": (1,)}[shape]
    other = Recipe(shape, tuple(3 if at in places else one for at, one in enumerate(sizes)))
    recipe = Recipe(shape, sizes)
    batches = batches_of(recipe, 2, 12)
    changed, aside = computed([program_of(recipe)] * 5 + [program_of(other)] * 7, batches)
    never, aside_never = computed(program_of(recipe), batches)
    assert rows_by_batch(changed) == rows_by_batch(never)
    assert len(aside) >= len(aside_never) > 0 or not aside_never


def rows_by_batch(outputs: Outputs) -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = {}
    for (partition, batch), table in outputs.items():
        found.setdefault((partition.operator, batch), []).extend(map(str, table.to_pylist()))
    return {key: sorted(given) for key, given in found.items()}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "nondeterministic"])
def test_what_is_expected_is_what_a_run_without_failures_gives(shape: str) -> None:
    recipe = Recipe(shape, SHAPES[shape][1][0])
    batches = inputs_of(recipe, 3, 6)
    from holdfast.application import Application

    app = Application("again")
    SHAPES[shape][0](app, recipe.sizes)
    done = run_in_process(app, [dict(batch) for batch in batches[:-1]], close=False)
    wanted = expected_of(recipe, 3, 6)
    for operator in {p.operator for p in program_of(recipe).outputs}:
        mine = [
            rows
            for (p, batch), rows in sorted(wanted.items(), key=lambda one: (one[0][1], one[0][0]))
            if p.operator == operator and batch < 5
        ]
        assert done.rows(operator).to_pylist() == (pa.concat_tables(mine).to_pylist() if mine else [])


def test_the_checkers_see_rows_too_many_too_few_and_wrong() -> None:
    recipe = Recipe("chain", (1, 2, 1))
    program, wanted = program_of(recipe), expected_of(recipe, 0, 8)
    output = OperatorId("f1")
    right = {OutputKey(query, batch): rows for (query, batch), rows in wanted.items()}
    assert not output_problems([program] * 8, {output: right}, wanted)
    key = min(right)
    assert (
        "never published"
        in output_problems([program] * 8, {output: {k: v for k, v in right.items() if k != key}}, wanted)[0].what
    )
    twice = {**right, key: pa.concat_tables([right[key]] * 2)}
    assert "is right" in output_problems([program] * 8, {output: twice}, wanted)[0].what
    more = {**right, OutputKey(PartitionId(output, 0), BatchId(99)): right[key]}
    other = {OutputKey(one.query, one.batch, generation=1): rows for one, rows in right.items()}
    assert "of another layout" in output_problems([program] * 8, {output: other}, wanted)[0].what
    assert "has no rows" in output_problems([program] * 8, {output: more}, wanted)[0].what


def test_rows_that_come_late_are_part_of_what_is_expected() -> None:
    assert any(late_of(Recipe("traffic", sizes), seed, 12) for sizes in SHAPES["traffic"][1] for seed in range(4))


def test_the_command_says_what_it_injected(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["simulate", "recovery", "--seeds", "6", "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["seeds"] == 6
    assert document["violations"] == []
    assert sum(document["faults"].values()) > 0
    assert json.loads((tmp_path / "result.json").read_text()) == document


def test_a_seed_is_told_line_by_line() -> None:
    done = CliRunner().invoke(cli, ["simulate", "recovery", "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert "node-arrived" in done.output
    assert "no violation" in done.output


def test_a_violation_is_told_with_its_seed_and_its_replay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from holdfast.runtime.worker.host import PartitionHost

    right = PartitionHost.keep
    monkeypatch.setattr(PartitionHost, "keep", lambda self, p, first, states=(): right(self, p, BatchId(0), states))
    done = CliRunner().invoke(cli, ["simulate", "recovery", "--seeds", "1", "--out", str(tmp_path)])
    assert done.exit_code != 0
    assert "VIOLATION, seed 0" in done.output
    assert "still keeps batches" in done.output
    assert "replay: holdfast simulate recovery --seed 0" in done.output
    assert "epoch" in done.output.split("VIOLATION")[1], "the partition's story is told"


def test_processes_share_the_seeds() -> None:
    alone, shared = run_campaign(range(40, 52)), run_campaign(range(40, 52), jobs=2)
    assert alone.faults == shared.faults
    assert alone.epochs == shared.epochs

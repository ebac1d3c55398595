"""`holdfast experiment promises`: every operator killed in turn under several plans, predicted beside measured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast_lab.experiments.promises.cells import Cells
    from holdfast_lab.experiments.promises.plans import MadePlan
    from holdfast_lab.experiments.promises.workloads import Workload

TOPOLOGIES = ("chain", "tree", "dag")
PLANS = (
    "segments",
    "one-segment",
    "n-segments",
    "segments-summed",
    "backups-tight",
    "backups-half",
    "backups-loose",
)
CALIBRATION_KILLS = 2


@click.command("promises")
@click.option("--topologies", default=",".join(TOPOLOGIES), show_default=True, help="Which topologies.")
@click.option("--plans", default=",".join(PLANS), show_default=True, help="Which plans.")
@click.option("--quick", is_flag=True, help="The chain only, under segments, one segment and n segments.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Seed of the input.")
@click.option(
    "--most", default=1000, show_default=True, type=click.IntRange(0), help="New runs after which the command ends."
)
@click.option("--reuse/--again", default=True, show_default=True, help="Reuse what earlier runs left in --out.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/promises"),
    show_default=True,
    help="Directory for result.json, CSV and what is kept per kill.",
)
@json_option
def promises(
    topologies: str, plans: str, quick: bool, seed: int, most: int, reuse: bool, out: Path, as_json: bool
) -> None:
    """Kill every operator in turn under segment and backup plans: predicted recovery beside measured.

    A first run of each topology measures rates, costs and, by kills right after a checkpoint, what a recovery takes
    whatever is replayed. Plans are made from that: segments by `plan segments`, one segment and n segments with the
    same overhead, backups for three targets R. Then one run per plan; each operator's node is killed at the end of a
    checkpoint interval, with the prediction on disk before.

    What is done stays in --out: the same command goes on with the kills that are left, and --most bounds the runs
    of one call. A run takes two to five minutes on a cluster of its own.

    \b
    Example:
      holdfast experiment promises --quick --most 1
    """
    from holdfast.cli.result_files import make_directory
    from holdfast_lab.experiments.promises.cells import Cells
    from holdfast_lab.experiments.promises.workloads import WORKLOADS

    chosen = _names(topologies if not quick else "chain", TOPOLOGIES, "--topologies")
    named = _names(plans if not quick else ",".join(PLANS[:3]), PLANS, "--plans")
    make_directory(out)
    if not reuse:
        for path in (one for topology in chosen for one in out.glob(f"*{topology}*.json")):
            path.unlink()
    cells = Cells(out)
    left = most
    for name in chosen:
        if left <= 0:
            break
        left -= _measure(cells, WORKLOADS[name], named, seed, left)
    document = _document(cells, chosen, named, seed)
    _write(document, out)
    if as_json:
        print_json(document)
    else:
        _print(document)
        click.echo(f"written to {out}/: result.json, kills.csv, overheads.csv, and the plans")


def _names(given: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    from holdfast.errors import BadInput

    words = tuple(word.strip() for word in given.split(",") if word.strip())
    if not words or not set(words) <= set(known):
        raise BadInput(f"{given!r} is not a list of these", field=option, remedy=f"name some of {','.join(known)}")
    return words


def _measure(cells: Cells, workload: Workload, plans: tuple[str, ...], seed: int, most: int) -> int:
    """Do the runs that are left, `most` of them at most; return how many were done."""
    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast_lab.experiments.promises.cells import calibrated_topology
    from holdfast_lab.experiments.promises.plans import plans_of

    done = 0
    with ExitStack() as held:
        cluster: EmbeddedCluster | None = None

        def nodes() -> EmbeddedCluster:
            nonlocal cluster
            if cluster is None:
                click.echo(f"{workload.name}: starting {len(workload.inputs) + 1} nodes", err=True)
                cluster = held.enter_context(EmbeddedCluster(len(workload.inputs) + 1))
            return cluster

        if cells.calibration(workload.name) is None:
            _calibrate(cells, workload, seed, nodes())
            done += 1
        known = cells.calibration(workload.name)
        made, _ = plans_of(calibrated_topology(known), plans)
        for name, plan in made.items():
            waiting = tuple(one for one in workload.inputs if cells.cell(workload.name, name, one) is None)
            if waiting and done < most:
                _kill_under(cells, workload, plan, waiting, known, seed, nodes())
                done += 1
    return done


def _calibrate(cells: Cells, workload: Workload, seed: int, cluster: EmbeddedCluster) -> None:
    from holdfast_lab.experiments.promises.cells import calibration_document, measured_topology, work_of
    from holdfast_lab.experiments.promises.killing import CALIBRATION_INTERVAL, KillingRun, RunAsked
    from holdfast_lab.experiments.promises.predicting import fixed_cost
    from holdfast_lab.experiments.promises.workloads import BATCH_SECONDS

    operators = tuple(workload.inputs)[-CALIBRATION_KILLS:]
    asked = RunAsked(
        workload, operators, None, dict.fromkeys(workload.inputs, CALIBRATION_INTERVAL), workload.work, 0.0, seed
    )
    kills: list[dict[str, Any]] = []

    def after(kill: dict[str, Any]) -> None:
        kills.append(kill)
        click.echo(f"{workload.name}, measuring: {kill['operator']} back after {kill['measured']:.2f} s", err=True)

    ran = KillingRun(asked, cluster, _place(cells, workload.name, "calibration")).run(lambda one: None, after)
    topology = measured_topology(workload.application().topology(), ran["measures"])
    fixed = fixed_cost(kills, BATCH_SECONDS, workload.inputs, work_of(topology))
    cells.keep_calibration(workload.name, calibration_document(topology, fixed, kills, os.getloadavg()[0]))


def _kill_under(
    cells: Cells,
    workload: Workload,
    plan: MadePlan,
    operators: tuple[str, ...],
    known: Mapping[str, Any],
    seed: int,
    cluster: EmbeddedCluster,
) -> None:
    from holdfast_lab.experiments.promises.killing import KillingRun, RunAsked
    from holdfast_lab.experiments.promises.predicting import Prediction

    file = cells.plan_file(workload.name, plan.name, plan.document)
    asked = RunAsked(workload, operators, str(file), plan.interval, known["work"], known["fixed"], seed)

    def before(one: Prediction) -> None:
        cells.predicted(workload.name, plan.name, one.operator, one.document())

    def after(kill: dict[str, Any]) -> None:
        about = {"topology": workload.name, "plan": plan.name, "latency": plan.latency, "load": os.getloadavg()[0]}
        cells.measured(workload.name, plan.name, kill["operator"], {**about, **kill})
        predicted, measured = kill["prediction"]["total"], kill["measured"]
        line = f"{kill['operator']} predicted {predicted:.2f} s, back after {measured:.2f} s"
        click.echo(f"{workload.name}, {plan.name}: {line}", err=True)

    ran = KillingRun(asked, cluster, _place(cells, workload.name, plan.name)).run(before, after)
    costs = {"topology": workload.name, "plan": plan.name, "planned": plan.bytes_per_second, "budget": plan.budget}
    cells.ran(workload.name, plan.name, {**costs, **ran})


def _place(cells: Cells, topology: str, plan: str) -> Path:
    """Return the folder of a run's own files; one of an earlier attempt is dropped."""
    found = (cells.folder / "runs" / f"{topology}--{plan}").absolute()
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True)
    return found


def _document(cells: Cells, topologies: tuple[str, ...], plans: tuple[str, ...], seed: int) -> dict[str, Any]:
    from holdfast_lab.experiments.promises.cells import calibrated_topology
    from holdfast_lab.experiments.promises.plans import plans_of
    from holdfast_lab.experiments.promises.table import overheads, rankings, row, summary
    from holdfast_lab.experiments.promises.workloads import WORKLOADS

    operators = {name: tuple(WORKLOADS[name].inputs) for name in topologies}
    rows = [row(one) for one in cells.all_cells(topologies, plans, operators)]
    known = {name: found for name in topologies if (found := cells.calibration(name)) is not None}
    refused = {
        name: without for name, one in known.items() if (without := plans_of(calibrated_topology(one), plans)[1])
    }
    runs = [one for topology in topologies for plan in plans for one in cells.runs(topology, plan)]
    return {
        "experiment": "promises",
        "seed": seed,
        "fixed": {name: one["fixed"] for name, one in known.items()},
        "work": {name: one["work"] for name, one in known.items()},
        "kills": rows,
        "left": sum(len(operators[topology]) for topology in topologies) * len(plans) - len(rows),
        "summary": summary(rows),
        "overheads": overheads(runs),
        "rankings": rankings(rows, plans),
        "no_plan": refused,
    }


def _write(document: dict[str, Any], out: Path) -> None:
    from holdfast.cli.result_files import write_csv, write_json

    write_json(out / "result.json", document)
    if document["kills"]:
        write_csv(out / "kills.csv", document["kills"])
    if document["overheads"]:
        write_csv(out / "overheads.csv", document["overheads"])


def _print(document: Mapping[str, Any]) -> None:
    names = (
        "topology",
        "plan",
        "operator",
        "batches",
        "predicted",
        "measured",
        "error",
        "error_summed",
        "R",
        "within_R",
    )
    print_table(
        "Every operator killed: seconds until all queries that need it have a new output",
        names,
        [tuple(one[name] for name in names) for one in document["kills"]],
        right=range(3, 9),
    )
    costs = ("topology", "plan", "planned", "budget", "measured", "within", "cpu_share", "exact")
    print_table(
        "Checkpoints and stored edges, bytes per second",
        costs,
        [tuple(one[name] for name in costs) for one in document["overheads"]],
        right=(2, 3, 4, 6),
    )
    pairs = ("topology", "plans", "predicted", "measured", "agrees")
    print_table(
        "Which plan recovers sooner, mean over operators",
        pairs,
        [tuple(one[name] for name in pairs) for one in document["rankings"]],
    )
    found = document["summary"]
    if found["kills"]:
        click.echo(
            f"{found['kills']} kills, {document['left']} left; median error {found['median_error']:.1%}, of the "
            f"{found['telling']} with a replay of three times the fixed costs {_share(found['median_error_telling'])}; "
            f"with replays added up as in the papers {found['median_error_summed']:.1%}; "
            f"{found['backups_within_R']} of {found['backups']} kills under backups within R and the fixed costs"
        )
    for topology, fixed in document["fixed"].items():
        click.echo(f"fixed costs of {topology}, from a run of its own: {fixed:.2f} s")
    for topology, reasons in document["no_plan"].items():
        for plan, why in reasons.items():
            click.echo(f"{topology} has no plan {plan}: {why}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"

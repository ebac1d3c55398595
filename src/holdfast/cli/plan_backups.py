"""`holdfast plan backups`: the fewest partitions that keep their output, for a guaranteed recovery latency (FTC)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.topology_files import topology_argument
from holdfast.wording import counted

if TYPE_CHECKING:
    from holdfast.planning.backups.algorithms import BackupPlan
    from holdfast.planning.backups.model import BackupProblem

ALGORITHMS = ("auto", "line", "tree", "dag", "share", "exhaustive", "exact")
_MOST_ROWS = 40


@click.command("backups")
@topology_argument
@click.option(
    "--latency",
    type=float,
    help="R: seconds within which every failed partition must be back. Default for a profile: the largest T(v), which "
    "no plan is below.",
)
@click.option(
    "--previous", help="A plan in use (what --json printed): of all fewest sets, change as little as possible."
)
@click.option("--algorithm", type=click.Choice(ALGORITHMS), default="auto", show_default=True, help="How to choose.")
@click.option(
    "--checkpoint-seconds",
    type=float,
    help="How long one checkpoint takes: operators with a failure_rate and no reprocess_seconds then have half of "
    "Young's optimal interval as T(v).",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds after which exact stops with the best it has, and a bound.",
)
@json_option
def backups(
    given: str,
    latency: float | None,
    previous: str | None,
    algorithm: str,
    checkpoint_seconds: float | None,
    time_limit: float,
    as_json: bool,
) -> None:
    """Choose the fewest partitions of a topology to keep backups of their output.

    A failed partition reprocesses what came since its checkpoint; upstream partitions without a backup must do so
    first. The plan keeps every partition's latency within R, also when a whole failure domain fails and takes its
    backups with it.

    \b
    auto        line or tree where the shape allows, else exact
    line, tree  fewest, in linear time, on those shapes
    exact       fewest on any topology or, out of time, a set and a bound
    exhaustive  every set, up to 25 partitions
    dag         the paper's heuristic by backup workload
    share       the paper's baseline by share of resources

    \b
    Examples:
      holdfast plan backups my_app.py --latency 4
      holdfast plan backups profile.json
      holdfast plan backups sentiment-50-20-20 --latency 3 --json > plan.json
      holdfast plan backups sentiment-30-30-30 --latency 3 --previous plan.json
    """
    from holdfast.cli.plan_targets import read_measured
    from holdfast.cli.taken import Taken
    from holdfast.planning.backups.algorithms import BackupAlgorithm, plan_backups
    from holdfast.planning.backups.model import BackupProblem, assumed_interval, reprocess_times
    from holdfast.planning.backups.replan import carried_over
    from holdfast.planning.profiles.run_profile import profile_field

    topology, measured = read_measured(given)
    before, gone = (None, []) if previous is None else carried_over(topology, _read_backups(previous))
    begin = time.perf_counter()
    taken, reprocess = Taken(measured), reprocess_times(topology, checkpoint_seconds)
    latency = taken.value("--latency", latency, None, float(reprocess.max()), "the largest T(v)")
    problem = BackupProblem(topology, latency, reprocess)
    plan = plan_backups(
        problem, BackupAlgorithm(algorithm), clock=time.perf_counter, seconds=time_limit, previous=before
    )
    interval = assumed_interval(topology, profile_field(measured, "checkpoint_interval_seconds"), checkpoint_seconds)
    document = _document(problem, plan, gone, time.perf_counter() - begin) | {"interval_seconds": interval}
    document |= taken.document()
    if as_json:
        print_json(document)
        return
    _print(problem, plan, document)
    for line in taken.lines():
        click.echo(line)


def _read_backups(path: str) -> list[str]:
    """Return the backups of a plan's JSON; anything else is refused with what would be right."""
    import json
    from pathlib import Path

    from holdfast.errors import BadInput
    from holdfast.ids import PartitionId

    remedy = "give what `holdfast plan backups --json` printed"
    try:
        document = json.loads(Path(path).read_text())
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path, remedy=remedy) from None
    except (ValueError, RecursionError):
        raise BadInput("is not JSON", where=path, remedy=remedy) from None
    listed = document.get("backups") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise BadInput("must be a list of partitions", where=path, field="backups", remedy=remedy)
    for number, name in enumerate(listed):
        place = f"backups[{number}]"
        if not isinstance(name, str):
            raise BadInput("must be a partition, like O3[0]", where=path, field=place, remedy=remedy)
        try:
            PartitionId.parse(name)
        except BadInput as error:
            raise BadInput(error.what, where=path, field=place, remedy=error.remedy) from None
    return listed


def _document(problem: BackupProblem, plan: BackupPlan, gone: list[str], seconds: float) -> dict[str, Any]:
    from holdfast.topology import made_for

    topology = problem.topology
    names = [str(partition) for partition in topology.partitions()]
    document: dict[str, Any] = {
        "backups": [names[v] for v in plan.backups],
        "count": plan.count,
        "latency": dict(zip(names, plan.latency.tolist(), strict=True)),
        "worst": plan.worst,
        "optimal": plan.optimal,
        "bound": plan.bound,
        "seconds": seconds,
        "algorithm": str(plan.algorithm),
        "required": problem.latency,
        "reprocess_seconds": dict(zip(names, problem.seconds.tolist(), strict=True)),
        "topology": made_for(topology),
    }
    if plan.changes is not None:
        document |= {
            "kept": [names[v] for v in plan.changes.kept],
            "added": [names[v] for v in plan.changes.added],
            "removed": [names[v] for v in plan.changes.removed],
            "gone": gone,
            "fewest_changes": plan.changes.fewest_changes,
        }
    return document


def _print(problem: BackupProblem, plan: BackupPlan, document: dict[str, Any]) -> None:
    topology = problem.topology
    rows = []
    for number, operator in enumerate(topology.operators):
        first, end = int(topology.first[number]), int(topology.first[number + 1])
        kept = [v - first for v in plan.backups.tolist() if first <= v < end]
        slowest = float(plan.latency[first:end].max())
        rows.append((operator.id, operator.parallelism, len(kept), _ranges(kept), slowest))
    shown = rows if len(rows) <= _MOST_ROWS else [row for row in rows if row[2]][:_MOST_ROWS]
    print_table(
        f"Backups of {topology.name} for a latency of {problem.latency:g} s",
        ["operator", "partitions", "backups", "of partitions", "slowest, s"],
        shown,
        right=(1, 2, 4),
    )
    if len(shown) < len(rows):
        click.echo(f"{len(rows) - len(shown):,} more operators are not shown; --json has all")
    proven = "the fewest there are" if plan.optimal else f"no fewer than {plan.bound:,} can do"
    click.echo(
        f"{counted(plan.count, 'backup')} ({proven}), by {plan.algorithm}; "
        f"the slowest partition is back after {plan.worst:g} s; planned in {document['seconds']:.3f} s"
    )
    if document["interval_seconds"] is not None:
        click.echo(f"For a checkpoint every {document['interval_seconds']:.4g} s, as a run of this plan takes them")
    if plan.changes is not None:
        changes = plan.changes
        sure = "no fewest set changes less" if changes.fewest_changes else "not proven to be the least"
        click.echo(
            f"Against the previous plan: {len(changes.kept):,} kept, {len(changes.added):,} added, "
            f"{len(changes.removed):,} removed, {len(document['gone']):,} gone with their partitions ({sure})"
        )


def _ranges(indices: list[int]) -> str:
    """Write indices short: 0-4, 7."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)

"""`holdfast plan replicas`: which partitions to run twice within a budget (PPA)."""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.topology_files import topology_argument

ALGORITHMS = ("structure-aware", "dp", "greedy", "exact")
METRICS = ("fidelity", "completeness")


@click.command("replicas")
@topology_argument
@click.option(
    "--budget",
    type=click.IntRange(min=0),
    help="How many replicas there may be. Default for a profile: a fifth of the partitions, or the smallest complete "
    "tree where that has more.",
)
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default="structure-aware", show_default=True, help="How to choose."
)
@click.option("--metric", type=click.Choice(METRICS), default="fidelity", show_default=True, help="What to maximise.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds after which dp and exact stop with the best they have.",
)
@json_option
def replicas(given: str, budget: int | None, algorithm: str, metric: str, time_limit: float, as_json: bool) -> None:
    """Choose the partitions of a topology to run twice, so that tentative outputs are as good as possible.

    Fidelity and completeness are those of the topology in which every partition without a replica has failed. A budget
    below the smallest complete tree keeps no output alive: the plan is then empty.

    \b
    structure-aware  adds whole trees, then what connects to them; never worse than greedy
    greedy           the partitions whose single failure costs most
    dp               the best plan, by all unions of trees; for small topologies
    exact            the best plan or, out of time, a plan and a bound

    \b
    Examples:
      holdfast plan replicas incidents --budget 8
      holdfast plan replicas my_app.py --budget 4
      holdfast plan replicas profile.json
    """
    from holdfast.cli.plan_targets import read_measured
    from holdfast.cli.solver_output import solver_messages_on_stderr
    from holdfast.cli.taken import Taken
    from holdfast.errors import HoldfastError
    from holdfast.planning.replicas.algorithms import ReplicaAlgorithm, plan_replicas
    from holdfast.planning.replicas.fidelity import Metric
    from holdfast.topology import made_for, smallest_mc_tree_size

    topology, measured = read_measured(given)
    begin = time.perf_counter()
    try:
        taken, usual = Taken(measured), max(smallest_mc_tree_size(topology), -(-len(topology) // 5))
        budget = int(taken.value("--budget", budget, None, usual, "a fifth of the partitions, one complete tree"))
        with solver_messages_on_stderr():
            plan = plan_replicas(
                topology,
                budget,
                clock=time.perf_counter,
                algorithm=ReplicaAlgorithm(algorithm),
                metric=Metric(metric),
                seconds=time_limit,
            )
    except HoldfastError as error:
        raise error.placed(given) from None
    document: dict[str, Any] = {
        "replicas": [str(one) for one in plan.replicas],
        "fidelity": plan.fidelity,
        "completeness": plan.completeness,
        "optimal": plan.optimal,
        "bound": plan.bound,
        "seconds": time.perf_counter() - begin,
        "algorithm": algorithm,
        "metric": metric,
        "budget": budget,
        "partitions": len(topology),
        "topology": made_for(topology),
        **taken.document(),
    }
    if as_json:
        print_json(document)
        return
    _print(topology.name, document)
    for line in taken.lines():
        click.echo(line)
    if plan.fidelity == 0.0:
        least = smallest_mc_tree_size(topology)
        click.echo(f"no output stays alive: the smallest complete tree has {least:,} partitions", err=True)


def _print(name: str, document: dict[str, Any]) -> None:
    by_operator: dict[str, list[str]] = {}
    for one in document["replicas"]:
        operator, _, index = one.partition("[")
        by_operator.setdefault(operator, []).append(index.rstrip("]"))
    click.echo(f"Replicas for {name}, {document['algorithm']}, budget {document['budget']:,}")
    print_table(
        None,
        ("operator", "replicas", "partitions"),
        [(operator, len(indices), _runs(sorted(map(int, indices)))) for operator, indices in by_operator.items()],
        right=(1,),
    )
    proven = "the best there is" if document["optimal"] else f"no plan exceeds {document['bound']:.4g}"
    click.echo(
        f"{len(document['replicas']):,} of {document['partitions']:,} partitions; fidelity {document['fidelity']:.6g}, "
        f"completeness {document['completeness']:.6g}; {document['metric']}: {proven}; "
        f"planned in {document['seconds']:.3f} s"
    )


def _runs(indices: list[int]) -> str:
    """Write sorted numbers as runs: 0-3, 7."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)

"""`holdfast plan explain`: what a plan, or a run as it is, promises; and what a loss of nodes would take down."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.plan_targets import cluster_options

if TYPE_CHECKING:
    from holdfast.planning.joint.model import JointModel, JointPlan
    from holdfast.planning.joint.targets import Targets

PLAN_SECONDS = 8.0
"""What a plan may take; the best one so far is explained."""

_MOST_QUERIES = 20
A_PLAN = "a plan"


@click.command("explain")
@click.argument("given", metavar="FILE|DIRECTORY")
@click.option("--lose", metavar="NODES", help="A number of nodes (the worst such loss), or their names: a,b.")
@click.option("--domain", metavar="RACK", help="Lose all nodes of a rack or zone of a run, in the place of --lose.")
@click.option(
    "--recovery",
    multiple=True,
    metavar="PRIORITY:SECONDS",
    help="Explain the plan that this target leads to: queries of this priority and above are back within SECONDS.",
)
@click.option(
    "--overhead",
    type=click.FloatRange(0, 1, min_open=True),
    help="The same for a budget: share of the bandwidth for checkpoints, stored inputs and backups.",
)
@click.option("--survive", type=click.IntRange(0), help="The same for nodes that may fail together.")
@cluster_options
@json_option
def explain(
    given: str,
    lose: str | None,
    domain: str | None,
    recovery: tuple[str, ...],
    overhead: float | None,
    survive: int | None,
    bandwidth: float | None,
    restore_bandwidth: float | None,
    fixed_seconds: float | None,
    nodes: int | None,
    cores: float | None,
    as_json: bool,
) -> None:
    """Say what a plan costs and promises: which queries would be down, for how long, at what fidelity.

    FILE is a plan that `plan auto --json` printed; or a topology file, an application or a name, explained as a run
    with default settings would be. DIRECTORY is that of a run: it is explained as it is, with what its driver measured
    and set. Partitions are where the profile says, else spread evenly over --nodes. With --recovery, --overhead or
    --survive it is the plan that these targets lead to which is explained, as a run would execute it; those of a plan's
    own targets that are not given stay. Ends with status 3 where these targets contradict each other.

    \b
    Examples:
      holdfast plan explain plan.json --lose 1 --nodes 4
      holdfast plan explain /data/my-app --lose 2
      holdfast plan explain /data/my-app --domain rack-a --recovery 5:20 --overhead 0.1
    """
    from holdfast.errors import BadInput
    from holdfast.planning.joint.explaining import plan_document
    from holdfast.planning.joint.losing import chosen_nodes, losing

    own = {
        "bandwidth": bandwidth,
        "restore_bandwidth": restore_bandwidth,
        "fixed_seconds": fixed_seconds,
        "nodes": nodes,
        "cores": cores,
    }
    if domain is not None and lose is not None:
        raise BadInput("nodes or a domain, not both", field="--domain", remedy="give --lose or --domain")
    model, plan, measured, executed = _read(given, own)
    notes: list[str] = []
    if recovery or overhead is not None or survive is not None:
        before = model.targets if executed == A_PLAN else None
        model, plan, notes = _planned(model, before, recovery, overhead, survive)
        executed = A_PLAN
    document = plan_document(model, plan, measured, what=executed, notes=notes)
    if lose is not None or domain is not None:
        placement = _placement(model, measured)
        nodes_lost = _in_domain(given, placement, domain) if lose is None else chosen_nodes(model, placement, lose)
        document["lost"] = losing(model, plan, placement, nodes_lost)
    restores = _restores(measured)
    if restores is not None:
        document["restores"] = restores
    behind = {} if executed == A_PLAN else ((measured or {}).get("settings") or {}).get("behind_seconds") or {}
    if behind:
        document["behind_seconds"] = behind
    if as_json:
        print_json(document)
        return
    _print(document)
    if restores is not None:
        click.echo(restores_line(restores))
    if behind:
        click.echo(behind_line(behind))


def behind_line(behind: dict[str, float | None]) -> str:
    """Return a line for people about operators whose inputs wait for checkpoints at boundaries of segments."""
    each = (
        f"{name} by an interval" if seconds is None else f"{name} by up to {seconds:.3g} s"
        for name, seconds in behind.items()
    )
    return f"Behind, as blocks wait for a checkpoint: {', '.join(each)}, and the time to save"


def _restores(measured: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what restores of a run have read and taken, beside what was predicted; None: there were none."""
    found = (measured or {}).get("fragments") or {}
    return found if any(found.get(name) for name in ("bytes_from_peers", "bytes_from_folder")) else None


def restores_line(restores: dict[str, Any]) -> str:
    """Return a line for people about what restores have read and taken."""
    line = (
        f"Restored: {restores['bytes_from_peers']:,} bytes from peers, "
        f"{restores['bytes_from_folder']:,} from the durable folder"
    )
    if restores.get("predicted_seconds") is None:
        return line
    return (
        f"{line}; a partition from fragments in {restores['measured_seconds']:.3g} s, "
        f"predicted {restores['predicted_seconds']:.3g} s"
    )


def _read(given: str, own: dict[str, float | None]) -> tuple[JointModel, JointPlan, dict[str, Any] | None, str]:
    """Return the model and the plan of a plan's file, of a run, or of default settings."""
    from holdfast.planning.joint.explaining import read_plan
    from holdfast.planning.joint.model import JointModel

    path = Path(given)
    if path.is_file() and not given.endswith(".py"):
        try:
            document = json.loads(path.read_bytes())
        except ValueError:
            document = None  # a topology in YAML, or what no topology is: read below
        if isinstance(document, dict) and "plan" in document:
            model, plan, measured = read_plan(document, given)
            assumed = model.assumed.given(**own)
            return JointModel(model.topology, model.targets, assumed), plan, measured, A_PLAN
    from holdfast.cli.plan_targets import read_assumptions, read_measured
    from holdfast.planning.joint.as_set import as_set
    from holdfast.planning.joint.targets import Targets
    from holdfast.store.client.tuning import first_code

    if path.is_dir() or "://" in given:
        from holdfast.runtime.coordinator.profile_records import profile_of_run

        topology, measured = profile_of_run(given)
        what = "a run as it is"
    else:
        topology, measured = read_measured(given)
        what = "default settings"
    # A run without a plan has no targets: its figures are predictions.
    model = JointModel(topology, Targets(overhead=1.0), read_assumptions(measured, **own))
    return model, as_set(model, measured or {}, first_code), measured, what


def _planned(
    model: JointModel, before: Targets | None, recovery: tuple[str, ...], overhead: float | None, survive: int | None
) -> tuple[JointModel, JointPlan, list[str]]:
    """Return the plan that targets lead to, over those `before`, and what is to be said of it."""
    from holdfast.cli.plan_targets import read_targets
    from holdfast.cli.solver_output import solver_messages_on_stderr
    from holdfast.planning.joint.conflicts import refuse, require_room
    from holdfast.planning.joint.search import plan_jointly
    from holdfast.planning.joint.targets import Targets

    held = before or Targets()
    asked = read_targets(recovery, overhead, held.survive if survive is None else survive, held.replicas)
    wanted = replace(
        asked,
        recovery=asked.recovery if recovery else held.recovery,
        overhead=held.overhead if overhead is None else overhead,
    )
    moved = model.asking(wanted)
    with solver_messages_on_stderr():
        require_room(moved.topology, wanted, moved.assumed)
        found = plan_jointly(moved, clock=time.perf_counter, seconds=PLAN_SECONDS)
        if not found.keeps_targets:
            raise refuse(moved, time.perf_counter, finished=found.finished)
    return moved, found.plan, list(found.notes)


def _in_domain(given: str, placement: dict[str, str], domain: str | None) -> tuple[str, ...]:
    """Return the nodes of a run that are in a rack or zone, as the run's log has it."""
    from holdfast.dashboard.event_reader import EventReader
    from holdfast.errors import BadInput

    domains: dict[str, str] = {}
    with closing(EventReader(Path(given) / "run" / "events.jsonl")) as log:
        for event in log.read():
            if event.get("event") == "run":
                domains = {str(host): str(name) for host, name in (event.get("domains") or {}).items()}
    found = sorted({node for node in placement.values() if domains.get(node.rpartition("-")[0] or node) == domain})
    if not found:
        known = ", ".join(sorted(set(domains.values()))[:6]) or "none: see spark.holdfast.node.domains"
        raise BadInput(
            f"no node is in {domain!r}",
            field="--domain",
            remedy=f"give a run's directory and one of its domains; its log has {known}",
        )
    return tuple(found)


def _placement(model: JointModel, measured: dict[str, Any] | None) -> dict[str, str]:
    from holdfast.errors import BadInput
    from holdfast.planning.joint.as_set import placed_as_measured
    from holdfast.recovery.assignment import spread_evenly

    if placed := placed_as_measured(measured):
        return placed
    if not model.assumed.nodes:
        raise BadInput("needs nodes that can be lost", field="--lose", remedy="say how many there are with --nodes")
    return {str(p): f"N{slot + 1}" for p, slot in spread_evenly(model.topology, model.assumed.nodes).items()}


def _print(document: dict[str, Any]) -> None:
    from holdfast.cli.plan_auto import print_plan

    print_plan(document)
    lost = document.get("lost")
    if lost is None:
        return
    down = sorted(lost["down"], key=lambda one: (-one["priority"], one["query"]))
    print_table(
        f"After the loss of {', '.join(lost['nodes'])}: {len(down)} of {lost['queries']} queries are down",
        ["query", "priority", "back after, s", "fidelity meanwhile"],
        [
            (
                one["query"],
                one["priority"],
                "waits for nodes" if one["waits_for_nodes"] else one["seconds"],
                one["fidelity"],
            )
            for one in down[:_MOST_QUERIES]
        ],
        right=(1, 2, 3),
    )
    click.echo(f"{len(lost['partitions'])} partitions are lost; fidelity {lost['fidelity']:.4g} until they are back")
    if not lost["survives"]:
        click.echo("More nodes are lost than the code survives: the last durable checkpoint is restored")

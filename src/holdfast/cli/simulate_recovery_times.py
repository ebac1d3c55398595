"""The times of large clusters, for `holdfast simulate recovery --nodes`: tables and the result file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import print_json, print_table
from holdfast.cli.result_files import write_json
from holdfast.simulation.cluster_sizes import compare_strategies, draw_cluster
from holdfast.simulation.times import RecoveryTimes, TimeConstants
from holdfast.wording import counted

if TYPE_CHECKING:
    from holdfast.topology import Topology


def show_times(
    nodes: int,
    share: float,
    strategies: Sequence[str],
    seed: int,
    constants: TimeConstants,
    out: Path,
    as_json: bool,
    topology: Topology | None = None,
) -> None:
    """Simulate one failure of a topology, or of copies of hashtags, with each strategy; print what it costs."""
    cluster = draw_cluster(nodes, share, seed, topology)
    found = compare_strategies(cluster, strategies, constants)
    document = {
        "topology": cluster.topology.name,
        "nodes": nodes,
        "failed": len(cluster.failed),
        "partitions": len(cluster.placement),
        "queries": len(cluster.topology.outputs),
        "seed": seed,
        "constants": asdict(constants),
        "strategies": {name: _document(times) for name, times in found.items()},
    }
    write_json(out / "times.json", document)
    if as_json:
        print_json(document)
        return
    size = (
        f"{counted(len(cluster.topology.outputs), 'query', 'queries')}, {counted(len(cluster.topology), 'partition')}"
    )
    print_table(
        f"{cluster.topology.name}: {len(cluster.failed)} of {nodes} nodes fail; {size}",
        ["strategy", "unavailability", "last query back", "all level", "plans", "rolled back", "disturbance"],
        [
            (
                name,
                round(times.unavailability),
                _latest([one.back for one in times.queries if one.lost]),
                _latest([one.level for one in times.queries]),
                times.plans,
                times.rolled_back,
                round(times.disturbance),
            )
            for name, times in found.items()
        ],
        right=range(1, 7),
    )
    click.echo("unavailability: sum over queries that lost partitions of priority x seconds until their next output")
    click.echo("disturbance: the same for queries that lost nothing; times in seconds after the failure")
    if not any(one.lost for times in found.values() for one in times.queries):
        click.echo("No failed node had a partition: give fewer nodes, a larger --failed-share or another --first-seed.")
    click.echo(f"result: {out / 'times.json'}")


def _latest(times: Sequence[float | None]) -> str:
    return "never" if None in times else f"{max((one for one in times if one is not None), default=0.0):.0f}"


def _document(times: RecoveryTimes) -> dict[str, object]:
    return {
        "unavailability": times.unavailability,
        "disturbance": times.disturbance,
        "plans": times.plans,
        "rolled_back": times.rolled_back,
        "seconds": times.seconds,
        "queries": [{**asdict(one), "query": str(one.query)} for one in times.queries],
    }

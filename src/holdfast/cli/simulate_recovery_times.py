"""The times of large clusters, for `holdfast simulate recovery --nodes`: tables and the result file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.output import print_json, print_table
from holdfast.cli.result_files import write_json
from holdfast.simulation.recovery.cluster_sizes import compare_strategies, draw_cluster
from holdfast.simulation.recovery.times import RecoveryTimes, TimeConstants


def show_times(
    nodes: int,
    share: float,
    strategies: Sequence[str],
    seed: int,
    constants: TimeConstants,
    out: Path,
    as_json: bool,
) -> None:
    """Simulate one failure with each strategy, and print what it costs."""
    cluster = draw_cluster(nodes, share, seed)
    found = compare_strategies(cluster, strategies, constants)
    document = {
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
    size = f"{document['queries']} queries, {document['partitions']} partitions"
    print_table(
        f"{len(cluster.failed)} of {nodes} nodes fail; {size}",
        ["strategy", "unavailability", "last query back", "all level", "plans", "went back", "disturbance"],
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

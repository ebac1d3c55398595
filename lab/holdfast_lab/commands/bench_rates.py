"""`holdfast bench rates`: rates measured on an embedded Spark cluster beside those of the model."""

from __future__ import annotations

import time

import click

from holdfast.cli.output import json_option, print_json, print_table, steps

TOLERANCE = 0.05


@click.command("rates")
@click.option(
    "--nodes", default=3, show_default=True, type=click.IntRange(1, 200), help="Nodes of the embedded cluster."
)
@click.option(
    "--seconds", default=20, show_default=True, type=click.IntRange(11, 3600), help="Seconds of events to run."
)
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(0, 2**31), help="Seed of the synthetic events."
)
@json_option
def rates(nodes: int, seconds: int, seed: int, as_json: bool) -> None:
    """Run the traffic topology on an embedded Spark cluster; compare measured rates with the model's.

    Starts a real master and workers on loopback, runs the windowed average, the windowed count and the join of the
    traffic topology over seeded synthetic events, and checks that what each partition emits is what the model
    predicts, within 5 per cent. Status 1 when it is not. Nothing is left running.

    \b
    Example:
      holdfast bench rates --nodes 4 --seconds 30
    """
    from holdfast.errors import CheckFailed
    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast.spark.session import start_session
    from holdfast_lab.benches.routed_rates import run_routed_rates

    began = time.monotonic()
    names = ("start a master and workers", "start the driver", "run the traffic topology")
    with steps(names, quiet=as_json) as done, EmbeddedCluster(nodes) as cluster:
        done()
        spark = start_session("holdfast-rates", cluster.master_url)
        try:
            done()
            topology, lines = run_routed_rates(spark, seconds, seed)
            done()
            version = spark.version
        finally:
            spark.stop()
    worst = max(line.difference for line in lines)
    result = {
        "topology": topology.name,
        "spark": version,
        "nodes": nodes,
        "events": seconds * 20_500,
        "partitions": [
            {"id": line.partition, "predicted": line.predicted, "measured": line.measured} for line in lines
        ],
        "worst_difference": worst,
        "seconds": time.monotonic() - began,
    }
    if as_json:
        print_json(result)
    else:
        print_table(
            f"Traffic on Spark {version}, {nodes} nodes: rows per second out of each partition",
            ["partition", "predicted by the model", "measured on Spark", "difference"],
            [(one.partition, one.predicted, one.measured, f"{one.difference:.2%}") for one in lines],
            right=(1, 2, 3),
        )
        click.echo(f"Largest difference {worst:.2%} (allowed {TOLERANCE:.0%}), in {result['seconds']:.0f} s.")
    if worst > TOLERANCE:
        raise CheckFailed(
            f"measured rates differ from the model's by {worst:.1%}",
            where="bench rates",
            remedy="run it again with --json and report its output",
        )

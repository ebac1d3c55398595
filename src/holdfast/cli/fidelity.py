"""`holdfast fidelity`: how good the outputs are while some partitions are down (PPA, eq. 1-4)."""

from __future__ import annotations

import click

from holdfast.cli.output import json_option, print_json, print_table

_SHOWN = 20


@click.command("fidelity")
@click.argument("file")
@click.option(
    "--failed",
    required=True,
    help="Failed partitions, like O1[0],O2[3]; an operator's id means all of its own; all or none.",
)
@json_option
def fidelity(file: str, failed: str, as_json: bool) -> None:
    """Say how good the outputs of the topology in FILE are while partitions are down.

    Fidelity is the share of the input that still shapes the outputs, 1 when nothing has failed; a join is only as good
    as the product of its inputs. Completeness is the share of all input that is still processed anywhere.

    \b
    Examples:
      holdfast fidelity replication-fig2-joined --failed "O2[1]"
      holdfast fidelity traffic.json --failed "S1[0],O5"
    """
    import numpy as np

    from holdfast.cli.topology_files import read_partitions, read_topology
    from holdfast.errors import HoldfastError
    from holdfast.planning.replicas.fidelity import LossModel, Metric, working

    topology = read_topology(file)
    try:
        down = read_partitions(topology, failed)
    except HoldfastError as error:
        raise error.placed(file) from None
    alive = working(topology, down)
    model = LossModel(topology)
    kept = model.sweep(alive)[0]
    heads = topology.outputs
    document = {
        "fidelity": model.value(alive),
        "completeness": LossModel(topology, Metric.COMPLETENESS).value(alive),
        "failed": [str(one) for one in topology.partitions(down.tolist())],
        "outputs": {str(topology.partition(int(p))): float(kept[p]) for p in heads},
    }
    if as_json:
        print_json(document)
        return
    worst = heads[np.argsort(kept[heads], kind="stable")][:_SHOWN]
    more = f"; the {_SHOWN} worst of {len(heads):,}" if len(heads) > _SHOWN else ""
    click.echo(f"Outputs of {topology.name} with {len(down):,} of {len(topology):,} partitions failed{more}")
    print_table(
        None,
        ("output", "fidelity"),
        [(str(topology.partition(int(p))), float(kept[p])) for p in worst],
        right=(1,),
    )
    click.echo(f"fidelity {document['fidelity']:.6g}, completeness {document['completeness']:.6g}")

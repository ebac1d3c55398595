"""`holdfast topology`: list, show, check and generate topologies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.lazy import LazyGroup
from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.topology_files import TOPOLOGY, read_topology, topology_argument, write_text, writing
from holdfast.lab import has_lab, lab_module
from holdfast.wording import counted

if TYPE_CHECKING:
    from holdfast.topology import Topology

MOST_ROWS = 60
MOST_COUNTED = 10**4000
"""Counts of MC-trees from here on are left out of JSON: many readers refuse numbers of more than 4,300 digits."""


@click.group(
    cls=LazyGroup,
    lazy={"generate": ("holdfast_lab.commands.topology_generate:generate_command", "Make a random topology.")},
    no_args_is_help=True,
)
def topology() -> None:
    """List, show, check and generate topologies.

    A topology is operators joined by edges, cut into partitions: the model of an application that planners use.
    """


@topology.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the topologies that have a name: of the examples, and in a checkout those of the papers.

    \b
    Example:
      holdfast topology list --json
    """
    from holdfast.examples.registry import EXAMPLES
    from holdfast.topology import count_mc_trees, shapes_of

    entries = [(one.name, one.title, "example application", one.application().topology()) for one in EXAMPLES.values()]
    if has_lab():
        library = lab_module("topologies", needed_by="topology list")
        entries += [(one.name, one.title, one.origin, one.build()) for one in library.paper_topologies()]
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "title": title,
                    "origin": origin,
                    "operators": len(built.operators),
                    "partitions": len(built),
                    "edges": built.task_edges,
                    "queries": len(built.outputs),
                    "mc_trees": count_mc_trees(built),
                    "shapes": shapes_of(built).names(),
                }
                for name, title, origin, built in entries
            ]
        )
        return
    print_table(
        None,
        ["name", "what it is", "from", "operators", "partitions", "edges", "queries"],
        [
            (name, title, origin.partition(". ")[0], len(t.operators), len(t), t.task_edges, len(t.outputs))
            for name, title, origin, t in entries
        ],
        right=(3, 4, 5, 6),
    )
    click.echo("Look at one with `holdfast topology show NAME`, or draw it with `--png FILE`.")


@topology.command("show")
@topology_argument
@json_option
@click.option("--svg", type=click.Path(dir_okay=False), help="Also draw it into this SVG file.")
@click.option("--png", type=click.Path(dir_okay=False), help="Also draw it into this PNG file.")
@click.option("--yaml", "yaml_out", type=click.Path(dir_okay=False), help="Also write it as a YAML topology file.")
@click.option("--file", "json_out", type=click.Path(dir_okay=False), help="Also write it as a JSON topology file.")
def show_command(
    given: str, as_json: bool, svg: str | None, png: str | None, yaml_out: str | None, json_out: str | None
) -> None:
    """Show a topology: operators, rates, queries and shape; as JSON with every partition and edge.

    \b
    Examples:
      holdfast topology show traffic
      holdfast topology show my_app.py --file my-topology.json
      holdfast topology show my-topology.yaml --png picture.png
      holdfast topology show traffic --file traffic.json
    """
    from holdfast.topology import to_json, to_yaml

    found = read_topology(given)
    for path, kind in ((svg, "svg"), (png, "png")):
        if path is not None:
            from holdfast.pictures.topology_picture import draw_topology

            with writing(path):
                draw_topology(found, path, format=kind)
    for path, text_of in ((yaml_out, to_yaml), (json_out, to_json)):
        if path is not None:
            write_text(path, text_of(found))
    if as_json:
        print_json(expanded(found))
    else:
        print_for_people(found)
        for path in filter(None, (svg, png, yaml_out, json_out)):
            click.echo(f"Written: {path}")


def expanded(found: Topology) -> dict[str, Any]:
    """Return a topology with everything that follows from it: partitions, edges, rates, queries, shapes."""
    from holdfast.topology import Queries, count_mc_trees, decompose, rates_of, shapes_of, to_document

    rates, queries = rates_of(found), Queries(found)
    trees = count_mc_trees(found)
    names = [str(partition) for partition in found.partitions()]
    edge_to, link = found.edge_to, found.stream_link[found.edge_stream]
    kinds = [i.partitioning.value for operator in found.operators for i in operator.inputs]
    return {
        **to_document(found),
        "partitions": [
            {
                "id": name,
                "operator": found.operators[found.operator_of[p]].id,
                "level": int(found.level[p]),
                "input_rate": float(rates.input[p]),
                "output_rate": float(rates.output[p]),
                "cost": float(found.cost[p]),
                "reprocess_seconds": float(found.reprocess_seconds[p]),
                "domain": found.domains[found.domain_of[p]] if found.domain_of[p] >= 0 else None,
            }
            for p, name in enumerate(names)
        ],
        "edges": [
            {"from": names[u], "to": names[v], "partitioning": kinds[k], "rate": float(rate)}
            for u, v, k, rate in zip(found.edge_from.tolist(), edge_to.tolist(), link.tolist(), rates.edge, strict=True)
        ],
        "queries": [
            {
                "id": names[head],
                "priority": int(queries.priority[number]),
                "partitions": [names[p] for p in queries.members(number)],
            }
            for number, head in enumerate(queries.heads.tolist())
        ],
        "shapes": shapes_of(found).names(),
        "sub_topologies": [
            {"kind": sub.kind.value, "operators": [found.operators[one].id for one in sub.operators]}
            for sub in decompose(found)
        ],
        "mc_trees": trees if trees < MOST_COUNTED else None,
        "mc_trees_log10": math.log10(trees),
    }


def print_for_people(found: Topology) -> None:
    """Print tables of operators and queries."""
    from holdfast.topology import Queries, count_mc_trees, rates_of, shapes_of

    rates, queries = rates_of(found), Queries(found)
    trees = count_mc_trees(found)
    totals = [
        counted(len(found.operators), "operator"),
        counted(len(found), "partition"),
        counted(found.task_edges, "edge"),
        counted(len(queries), "query", "queries"),
        counted(trees, "MC-tree") if trees < 10**12 else f"about 10^{math.log10(trees):.0f} MC-trees",
    ]
    click.echo(f"{found.name}: {', '.join(totals)}")
    click.echo(f"shapes: {', '.join(shapes_of(found).names())}")
    rows = []
    for number, operator in enumerate(found.operators[:MOST_ROWS]):
        own = slice(int(found.first[number]), int(found.first[number + 1]))
        marks = [
            word
            for word, is_so in (
                ("source", operator.is_source),
                ("joins", operator.joins),
                ("output", bool(found.operator_outputs[number])),
            )
            if is_so
        ]
        rows.append(
            (
                operator.id,
                operator.parallelism,
                int(found.operator_level[number]),
                ", ".join(f"{i.source} ({i.partitioning})" for i in operator.inputs),
                float(rates.input[own].sum()),
                float(rates.output[own].sum()),
                ", ".join(marks),
            )
        )
    columns = ["operator", "partitions", "level", "inputs", "tuples/s in", "tuples/s out", ""]
    print_table("Operators", columns, rows, right=(1, 2, 4, 5))
    sizes = queries.sizes()
    print_table(
        "Queries",
        ["query", "priority", "partitions", "cost"],
        [
            (str(found.partition(head)), int(queries.priority[q]), int(sizes[q]), float(cost))
            for q, (head, cost) in enumerate(
                zip(queries.heads[:MOST_ROWS].tolist(), queries.weight(found.cost), strict=False)
            )
        ],
        right=(1, 2, 3),
    )
    if len(found.operators) > MOST_ROWS or len(queries) > MOST_ROWS:
        click.echo(f"Shown are the first {MOST_ROWS} of each; --json has all.")


@topology.command("check")
@click.argument("files", nargs=-1, required=True, metavar=f"{TOPOLOGY}...")
@json_option
def check_command(files: tuple[str, ...], as_json: bool) -> None:
    """Check topologies of applications and in files: status 0 when all are right, 2 with one line for each that is not.

    \b
    Examples:
      holdfast topology check my_app.py
      holdfast topology check traffic.json
      holdfast topology check *.yaml
    """
    from holdfast.errors import BadInput
    from holdfast.topology import rates_of

    results: list[dict[str, Any]] = []
    for file in files:
        try:
            found = read_topology(file)
            try:
                rates_of(found)
            except BadInput as error:
                raise error.placed(file) from None
            results.append(
                {"file": file, "ok": True, "name": found.name, "partitions": len(found), "edges": found.task_edges}
            )
        except BadInput as error:
            if len(files) == 1 and not as_json:
                raise
            problem = {"field": error.field, "problem": error.what, "remedy": error.remedy, "line": str(error)}
            results.append({"file": file, "ok": False, **problem})
    if as_json:
        print_json(results[0] if len(files) == 1 else results)
    for result in results:
        if not result["ok"]:
            click.echo(f"holdfast: {result['line']}", err=True)
        elif not as_json:
            size = f"{counted(result['partitions'], 'partition')}, {counted(result['edges'], 'edge')}"
            click.echo(f"{result['file']}: right ({size})")
    if not all(result["ok"] for result in results):
        raise click.exceptions.Exit(2)

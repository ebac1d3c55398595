"""The `holdfast-lab` command: experiments, benches and baselines, from a checkout."""

from __future__ import annotations

import sys

import click

from holdfast import __version__
from holdfast.cli.lazy import LazyGroup
from holdfast.cli.main import run


@click.group(
    cls=LazyGroup,
    lazy={
        "experiment": ("holdfast_lab.commands.experiment:experiment", "The papers' figures beside ours."),
        "bench": ("holdfast_lab.commands.bench:bench", "Measure this machine: time, memory, ratios."),
        "generate": ("holdfast_lab.commands.topology_generate:generate_command", "Make a random topology."),
        "simulate-ring": ("holdfast_lab.commands.simulate_ring:simulate_ring_command", "Rings of thousands of peers."),
        "soak-store": ("holdfast_lab.commands.store_soak:soak", "Kill peers of a ring and check every promise."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="holdfast-lab")
def lab() -> None:
    """Reproduce the papers' figures, measure this machine, compare with other systems.

    \b
    Examples:
      holdfast-lab bench throughput
      holdfast-lab experiment segments
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments, command=lab, name="holdfast-lab"))

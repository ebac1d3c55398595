"""Options that `plan auto`, `plan explain` and `run --plan` share, and topologies with what was measured of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from holdfast.planning.joint.targets import Assumptions, Targets
    from holdfast.planning.replicas.budget import ReplicaBudget
    from holdfast.topology import Topology

P = ParamSpec("P")
R = TypeVar("R")
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)


def cluster_options(function: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that stand for what a profile would have."""
    for option in (
        click.option("--cores", type=_ABOVE_ZERO, help="Cores of a node, in the unit of the partitions' costs."),
        click.option("--nodes", type=click.IntRange(1), help="Nodes of the cluster."),
        click.option("--fixed-seconds", type=_ABOVE_ZERO, help="From a failure to the first restore. Default: 3."),
        click.option(
            "--restore-bandwidth", type=_ABOVE_ZERO, help="Bytes/s of one partition's restore. Default: 50e6."
        ),
        click.option(
            "--bandwidth", type=_ABOVE_ZERO, help="Bytes/s that checkpoints may be written with. Default: 50e6."
        ),
    ):
        function = option(function)
    return function


def read_targets(
    recovery: tuple[str, ...], overhead: float | None, survive: int, replicas: str | ReplicaBudget
) -> Targets:
    """Read `--recovery 5:20 …` and the others."""
    from holdfast.planning.joint.targets import recovery_times, targets

    return targets(recovery=recovery_times(recovery), overhead=overhead, survive=survive, replicas=replicas)


def read_measured(given: str) -> tuple[Topology, dict[str, Any] | None]:
    """Return a topology, and what a run measured where it is a profile."""
    from holdfast.cli.topology_files import read_topology
    from holdfast.topology.file_format import load_document, measured_of

    topology = read_topology(given)
    path = Path(given)
    measured = None
    if not given.endswith(".py") and path.is_file():
        document = load_document(path.read_bytes(), given)
        measured = measured_of(document) if isinstance(document, dict) else None
    return topology, measured


def read_assumptions(measured: dict[str, Any] | None, **given: float | None) -> Assumptions:
    """Return what is assumed: measured values, and over them those given."""
    from holdfast.planning.joint.targets import assumptions_of

    return assumptions_of(measured).given(**given)

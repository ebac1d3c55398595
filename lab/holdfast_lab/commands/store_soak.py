"""`holdfast store soak`: peers killed at random points of save, retrieve and repair, and every promise checked."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.output import json_option, print_json, print_table, progress


@click.command()
@click.option("--peers", default=8, show_default=True, type=click.IntRange(3, 32), help="Peer processes.")
@click.option(
    "--data-fragments", default=3, show_default=True, type=click.IntRange(1, 31), help="Data fragments of a state, m."
)
@click.option(
    "--parity-fragments",
    default=3,
    show_default=True,
    type=click.IntRange(1, 31),
    help="Parity fragments of a state, k.",
)
@click.option("--kills", default=300, show_default=True, type=click.IntRange(1), help="Number of kills with SIGKILL.")
@click.option("--state-kb", default=200, show_default=True, type=click.IntRange(1), help="Size of each state.")
@click.option("--states", default=3, show_default=True, type=click.IntRange(1, 50), help="States written and read.")
@click.option("--seed", default=1, show_default=True, type=int, help="Seed of the victims and moments.")
@json_option
def soak(
    peers: int,
    data_fragments: int,
    parity_fragments: int,
    kills: int,
    state_kb: int,
    states: int,
    seed: int,
    as_json: bool,
) -> None:
    """Kill peers at random moments while states are saved, read and repaired; check every state that was acknowledged.

    Starts its own peers on loopback. Ends with status 1 if an acknowledged state is lost, torn or wrong. 300 kills take
    about two minutes.

    \b
    Example:
      holdfast store soak --kills 300 --seed 7
    """
    from holdfast.erasure.layout import Coding
    from holdfast.errors import BadInput, CheckFailed
    from holdfast_lab.testing.ring_of_peers import RingOfPeers
    from holdfast_lab.testing.store_soak import soak as run_soak

    coding = Coding(data_fragments, parity_fragments)
    if coding.total > peers:
        raise BadInput(f"{coding} needs {coding.total} peers", field="--peers", remedy="give more peers")
    with progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-soak-") as folder:
        task = bar.add_task("kill", total=kills)
        with RingOfPeers(peers, Path(folder), ["--repair-after", "0.3"]) as ring:
            result = run_soak(
                ring,
                coding,
                kills=kills,
                seed=seed,
                state_bytes=state_kb << 10,
                states=states,
                on_kill=lambda done: bar.update(task, completed=done),
            )
    document = {"soak": "store", "peers": peers, "coding": str(coding), **asdict(result)}
    if as_json:
        print_json(document)
    else:
        shown = [(name.replace("_", " "), value) for name, value in document.items() if name != "problems"]
        print_table("Soak of the fragment store", ("what", "value"), shown)
    if result.problems:
        raise CheckFailed(result.problems[0], remedy=f"run it again with --seed {seed}")

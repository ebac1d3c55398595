"""`holdfast simulate ring`: hops, balance, churn and correlated failures of a large ring, on the real ring code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast_lab.commands.phases import phases

if TYPE_CHECKING:
    from holdfast_lab.ring_simulation.scenario import RingOutcome


@click.command("ring")
@click.option("--peers", default=5000, show_default=True, type=click.IntRange(2, 20_000), help="Number of peers.")
@click.option("--applications", default=1000, show_default=True, type=click.IntRange(1), help="States to store.")
@click.option(
    "--data-fragments", default=10, show_default=True, type=click.IntRange(1, 32), help="Data fragments of a state, m."
)
@click.option(
    "--parity-fragments",
    default=20,
    show_default=True,
    type=click.IntRange(0, 31),
    help="Parity fragments of a state, k.",
)
@click.option("--domains", default=8, show_default=True, type=click.IntRange(0), help="Failure domains; 0: none known.")
@click.option("--keep-alive", default=30.0, show_default=True, type=float, help="T, seconds between keep-alives.")
@click.option("--loss", default=0.0, show_default=True, type=float, help="Share of messages that get lost.")
@click.option("--lookups", default=2000, show_default=True, type=click.IntRange(1), help="Lookups at each size.")
@click.option(
    "--churn", default=0.1, show_default=True, type=float, help="Share of peers that leave, and of peers that join."
)
@click.option(
    "--churn-seconds",
    default=300.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Seconds during which they leave and join.",
)
@click.option("--crash", default=0.5, show_default=True, type=float, help="Share that crashes at once, at the end.")
@click.option("--seed", default=1, show_default=True, type=int, help="Seed; the same seed gives the same run.")
@click.option(
    "--out",
    default=Path("out/simulate-ring"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for result.json.",
)
@json_option
def simulate_ring_command(
    peers: int,
    applications: int,
    data_fragments: int,
    parity_fragments: int,
    domains: int,
    keep_alive: float,
    loss: float,
    lookups: int,
    churn: float,
    churn_seconds: float,
    crash: float,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Simulate a ring of peers that store states as fragments.

    Peers join through the protocol one by one; routing is measured on the way up; states are saved; peers join, leave
    and crash while lost fragments are rebuilt; at the end many crash at once. The same seed gives the same result.

    \b
    Example:
      holdfast simulate ring --peers 1000 --applications 200 --crash 0.66
    """
    from holdfast.cli.result_files import write_json
    from holdfast.erasure.layout import Coding
    from holdfast_lab.ring_simulation.scenario import RingScenario, simulate_ring

    scenario = RingScenario(
        peers=peers,
        applications=applications,
        coding=Coding(data_fragments, parity_fragments),
        domains=domains,
        keep_alive=keep_alive,
        loss=loss,
        lookups=lookups,
        churn=churn,
        churn_seconds=churn_seconds,
        crash=crash,
        seed=seed,
    )
    with phases() as report:
        outcome = simulate_ring(scenario, report)
    document = outcome.document()
    write_json(out / "result.json", document)
    if as_json:
        print_json(document)
    else:
        print_outcome(outcome)
        click.echo(f"result: {out / 'result.json'}")


def print_outcome(outcome: RingOutcome) -> None:
    """Print the tables."""
    print_table(
        "Routing: random keys from random peers",
        ["peers", "lookups", "right", "mean hops", "most", "log16 N", "mean ms", "95 % within ms"],
        [
            (
                one.peers,
                one.lookups,
                one.right,
                round(one.mean_hops, 3),
                one.most_hops,
                round(one.logarithm, 3),
                round(1000 * one.mean_seconds, 2),
                round(1000 * one.slow_seconds, 2),
            )
            for one in outcome.routing
        ],
        right=range(8),
    )
    balance = outcome.balance
    print_table(
        f"Balance: {balance.states:,} states of {balance.coding.total} fragments on {balance.peers:,} peers",
        ["mean", "median", "95 % hold at most", "99 %", "most", "hold fewer than 25"],
        [
            (
                balance.mean,
                balance.median,
                balance.p95,
                balance.p99,
                balance.most,
                f"{100 * balance.holding_fewer[25]:.2f} %",
            )
        ],
        right=range(6),
    )
    churn = outcome.churn
    print_table(
        f"Churn: {churn.joins} joined, {churn.leaves} left, {churn.crashes} crashed in {churn.seconds:.0f} s",
        ["what", "value"],
        [
            ("lookups that ended at the right peer", f"{churn.lookups.right} of {churn.lookups.lookups}"),
            (
                "from a crash to its notice, mean and longest",
                f"{churn.detection_mean:.1f} s, {churn.detection_longest:.1f} s",
            ),
            ("live peers taken for lost", churn.false_losses),
            ("messages per peer and second", round(churn.messages_per_peer_second, 2)),
            ("fragments rebuilt", churn.rebuilt_fragments),
            ("fewest fragments any state had left", f"{churn.least_left} of {balance.coding.total}"),
            ("states lost", churn.lost_states),
            ("leaf sets right again after", "never" if churn.settled_after is None else f"{churn.settled_after:.1f} s"),
        ],
    )
    print_table(
        "Correlated failures: states still there",
        ["failed", "peers", "share", "code", "survived", "expected by eq. 3"],
        [
            (
                one.what,
                one.failed_peers,
                f"{100 * one.share:.1f} %",
                str(one.coding),
                f"{one.survived} of {one.states}",
                None if one.predicted is None else f"{one.predicted * one.states:.1f}",
            )
            for one in outcome.survival
        ],
        right=(1, 2, 4, 5),
    )
    recovery = outcome.recovery
    settled = "not" if recovery.settled_after is None else f"after {recovery.settled_after:.1f} s"
    print_table(
        f"After {recovery.failed_peers:,} peers ({100 * recovery.share:.1f} %) crashed in one moment",
        ["what", "value"],
        [
            ("leaf sets of the others right again", settled),
            ("lookups that ended at the right peer", f"{recovery.lookups.right} of {recovery.lookups.lookups}"),
            ("states still there", f"{recovery.survived} of {recovery.states}"),
            ("of them with all fragments again", recovery.full_again),
        ],
    )

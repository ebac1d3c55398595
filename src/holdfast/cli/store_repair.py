"""`holdfast store repair`: rebuild now what would be rebuilt soon."""

from __future__ import annotations

import click

from holdfast.cli.output import json_option
from holdfast.cli.store_options import client_options, open_client


@click.command()
@client_options
@click.option("--scrub", is_flag=True, help="First read every fragment from disk and check it.")
@click.option("--seconds", default=600.0, show_default=True, help="How long to wait for it.")
@json_option
def repair(
    peer: tuple[str, ...],
    secret_file: str | None,
    namespace: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_authority: str | None,
    scrub: bool,
    seconds: float,
    as_json: bool,
) -> None:
    """Rebuild lost fragments now, at every peer, and show the ring when it is done.

    Ends with status 4 if peers are still at work after --seconds, with 1 if a state stays below full redundancy.

    \b
    Example:
      holdfast store repair --peer 127.0.0.1:7400 --scrub
    """
    from holdfast.cli.store_status import show
    from holdfast.errors import CheckFailed, Undecided
    from holdfast.store.client.overview import overview, repair_now

    with open_client(peer, secret_file, tls_cert, tls_key, tls_authority) as store:
        ended = repair_now(store, scrub=scrub, seconds=seconds)
        seen = overview(store)
    show(seen, as_json)
    if not ended:
        raise Undecided(f"repair still runs after {seconds:g} s", remedy="look again with `holdfast store status`")
    short = [str(one.state) for one in seen.states if one.redundancy < one.parity]
    if short:
        raise CheckFailed(
            f"below full redundancy: {', '.join(short[:10])}", remedy="start more peers, or save these states again"
        )

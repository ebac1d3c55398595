"""`holdfast store status`: peers, states, redundancy left, repair progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.store_options import client_options, open_client

if TYPE_CHECKING:
    from holdfast.store.client.overview import RingOverview


@click.command()
@client_options
@json_option
def status(
    peer: tuple[str, ...],
    secret_file: str | None,
    namespace: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_authority: str | None,
    as_json: bool,
) -> None:
    """Show peers, states with the redundancy they have left, and repair.

    A state's redundancy is how many more of its fragments may be lost; below zero it cannot be read.

    \b
    Example:
      holdfast store status --peer 127.0.0.1:7400
    """
    from holdfast.store.client.overview import overview

    with open_client(peer, secret_file, tls_cert, tls_key, tls_authority) as store:
        seen = overview(store)
    show(seen, as_json)


def show(seen: RingOverview, as_json: bool) -> None:
    """Print an overview of the ring."""
    document = ring_document(seen)
    if as_json:
        print_json(document)
        return
    print_table(
        f"{len(seen.peers)} peers" + (f", {len(seen.silent)} silent: {', '.join(seen.silent)}" if seen.silent else ""),
        ("peer", "domain", "neighbours", "fragments", "bytes", "quarantined", "rebuilt", "to rebuild"),
        [
            (
                one["address"],
                one["domain"],
                one["neighbours"],
                one["fragments"]["fragments"],
                one["fragments"]["bytes"],
                one["fragments"]["quarantined"],
                (one["repair"] or {}).get("rebuilt", 0),
                (one["repair"] or {}).get("to_rebuild", 0),
            )
            for one in document["peers"]
        ],
        right=range(2, 8),
    )
    print_table(
        f"{len(seen.states)} states",
        ("state", "version", "epoch", "bytes", "m", "k", "fragments", "redundancy"),
        [
            (str(one.state), one.version, one.epoch, one.bytes, one.data, one.parity, one.present, one.redundancy)
            for one in seen.states
        ],
        right=range(1, 8),
    )


def ring_document(seen: RingOverview) -> dict[str, Any]:
    """Return an overview as JSON values."""
    return {
        "peers": seen.peers,
        "silent": seen.silent,
        "states": [
            {
                "namespace": one.state.namespace,
                "name": one.state.name,
                "version": one.version,
                "epoch": one.epoch,
                "bytes": one.bytes,
                "data": one.data,
                "parity": one.parity,
                "fragments": one.present,
                "redundancy": one.redundancy,
                "versions": one.versions,
            }
            for one in seen.states
        ],
        "repair": seen.repair,
    }

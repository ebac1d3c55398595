"""`holdfast store put`: a file becomes a state."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.store_options import client_options, open_client


@click.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
@client_options
@click.option("--data-fragments", type=click.IntRange(1, 32), metavar="M", help="Fragments that rebuild the state.")
@click.option("--parity-fragments", type=click.IntRange(0, 31), metavar="K", help="Fragments that may be lost.")
@click.option("--version", type=click.IntRange(0), help="Version (batch)  [default: one above the newest]")
@click.option("--epoch", type=click.IntRange(0), help="Epoch  [default: the namespace's highest]")
@click.option("--follows", type=click.IntRange(0), help="Save changes since this version, not a whole state.")
@click.option("--tolerate", type=click.IntRange(0), help="Losses it must survive to count as saved  [default: all K]")
@click.option("--keep", is_flag=True, help="Keep older versions.")
@json_option
def put(
    name: str,
    file: Path,
    peer: tuple[str, ...],
    secret_file: str | None,
    namespace: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_authority: str | None,
    data_fragments: int | None,
    parity_fragments: int | None,
    version: int | None,
    epoch: int | None,
    follows: int | None,
    tolerate: int | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Save FILE as the state NAME.

    Returns when all fragments are on the disks of their peers. Without M and K they are chosen for the peers there are.
    Older versions are released afterwards.

    \b
    Example:
      holdfast store put counts counts.arrow --peer 127.0.0.1:7400 --data-fragments 10 --parity-fragments 20
    """
    from holdfast.erasure.fragment import StateId
    from holdfast.erasure.layout import Coding
    from holdfast.errors import BadInput
    from holdfast.ids import BatchId, Epoch
    from holdfast.store.client.reading import mapped_file

    if (data_fragments is None) != (parity_fragments is None):
        raise BadInput("M without K or K without M", remedy="give --data-fragments and --parity-fragments together")
    coding = None
    if data_fragments is not None and parity_fragments is not None:
        coding = Coding(data_fragments, parity_fragments)
    state = StateId(namespace, name)
    with (
        open_client(peer, secret_file, tls_cert, tls_key, tls_authority, coding=coding, tolerate=tolerate) as store,
        mapped_file(file) as contents,
    ):
        current = Epoch(epoch) if epoch is not None else store.standing_epoch(namespace)
        if version is None:
            there = store.survey(state).encodings
            version = max((header.version for header in there), default=-1) + 1
        saved = store.save(
            state,
            BatchId(version),
            current,
            contents,
            follows=None if follows is None else BatchId(follows),
        )
        if not keep and follows is None:
            store.release(state, saved.version, current)
    for note in saved.notes:
        click.echo(f"holdfast: note: {note}", err=True)
    document = {
        "name": name,
        "bytes": saved.bytes,
        "data": saved.coding.data,
        "parity": saved.coding.parity,
        "stored": saved.stored,
        "seconds": saved.seconds,
        "namespace": namespace,
        "version": saved.version,
        "epoch": saved.epoch,
        "notes": list(saved.notes),
    }
    if as_json:
        print_json(document)
        return
    print_table(
        f"saved {state}",
        ("version", "bytes", "m", "k", "stored", "seconds"),
        [(saved.version, saved.bytes, saved.coding.data, saved.coding.parity, saved.stored, saved.seconds)],
        right=range(6),
    )

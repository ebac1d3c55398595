"""`holdfast store get`: a state becomes a file again."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.store_options import client_options, open_client


@click.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
@client_options
@click.option("--version", type=click.IntRange(0), help="Version (batch)  [default: the newest]")
@json_option
def get(
    name: str,
    file: Path,
    peer: tuple[str, ...],
    secret_file: str | None,
    namespace: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_authority: str | None,
    version: int | None,
    as_json: bool,
) -> None:
    """Read the state NAME into FILE.

    FILE appears only when every byte was verified; a state that cannot be rebuilt leaves it untouched, with status 1
    and a line that says which fragments are missing and which peers do not answer.

    \b
    Example:
      holdfast store get counts back.arrow --peer 127.0.0.1:7400
    """
    from holdfast.erasure.fragment import StateId
    from holdfast.errors import BadInput
    from holdfast.ids import BatchId

    if file.is_dir():
        raise BadInput("is a folder", where=str(file), remedy="name a file")
    state = StateId(namespace, name)
    with open_client(peer, secret_file, tls_cert, tls_key, tls_authority) as store:
        loaded = store.load_into(state, file, None if version is None else BatchId(version))
    document = {
        "name": name,
        "bytes": loaded.bytes,
        "used": loaded.used,
        "seconds": loaded.seconds,
        "namespace": namespace,
        "version": loaded.version,
        "parts": list(loaded.part_bytes),
        "lost": list(loaded.lost),
    }
    if as_json:
        print_json(document)
        return
    print_table(
        f"read {state} into {file}",
        ("version", "bytes", "parts", "fragments used", "lost", "seconds"),
        [(loaded.version, loaded.bytes, len(loaded.part_bytes), loaded.used, len(loaded.lost), loaded.seconds)],
        right=range(6),
    )
    for line in loaded.lost[:20]:
        click.echo(f"  lost: {line}")

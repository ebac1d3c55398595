"""Options that the store's client commands share, and the client made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from holdfast.erasure.layout import Coding
    from holdfast.store.client.client import PeerStore

Command = TypeVar("Command", bound=Callable[..., Any])


def client_options(command: Command) -> Command:
    """Add --peer, --secret-file, --namespace and the TLS files."""
    for option in reversed(
        (
            click.option(
                "--peer", required=True, multiple=True, metavar="HOST:PORT", help="A peer; may be given again."
            ),
            click.option("--secret-file", type=click.Path(), help="File with the cluster's secret."),
            click.option("--namespace", default="default", show_default=True, help="Whose states: an application."),
            click.option("--tls-cert", type=click.Path(), help="This side's certificate (PEM)."),
            click.option("--tls-key", type=click.Path(), help="Its key (PEM)."),
            click.option("--tls-authority", type=click.Path(), help="The authority certificates are checked against."),
        )
    ):
        command = option(command)
    return command


@contextmanager
def open_client(
    peer: tuple[str, ...],
    secret_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_authority: str | None,
    *,
    coding: Coding | None = None,
    tolerate: int | None = None,
) -> Iterator[PeerStore]:
    """Give the client that the options describe; where no peer answers, the line says what to do."""
    from holdfast.store.client.client import ClientSettings, PeerStore
    from holdfast.store.wire.failures import Unreachable
    from holdfast.store.wire.tls import TlsFiles

    tls = TlsFiles.given(tls_cert, tls_key, tls_authority)
    with PeerStore(ClientSettings(peer, secret_file, tls, coding=coding, tolerate=tolerate)) as store:
        try:
            yield store
        except Unreachable as error:
            remedy = error.remedy or "start a peer there (`holdfast store serve`), or name one that runs with --peer"
            raise Unreachable(error.what, where=error.where, field=error.field, remedy=remedy) from None

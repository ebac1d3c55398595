"""`holdfast store serve`: one peer as a process. Imports neither numpy nor the code, to start fast."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import click

from holdfast.store.wire.address import Address


@click.command()
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder for this peer's fragments.")
@click.option("--port", required=True, type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need a secret.")
@click.option("--join", multiple=True, metavar="HOST:PORT", help="A peer of the ring to enter; may be given again.")
@click.option("--join-seconds", default=60.0, show_default=True, help="How long to try to enter.")
@click.option("--secret-file", type=click.Path(), help="File with the cluster's secret.")
@click.option("--domain", help="Failure domain (rack, zone) of this peer.")
@click.option("--weight", default=1.0, show_default=True, help="Share of fragments relative to other peers.")
@click.option("--advertise", metavar="HOST:PORT", help="Address others use, where it is not the one listened on.")
@click.option("--restores", type=click.Path(path_type=Path), help="Folder for restores  [default: in --data]")
@click.option("--bandwidth", type=float, metavar="MBIT", help="Limit for each direction, megabits per second.")
@click.option("--memory", default=64, show_default=True, metavar="MB", help="Memory tier in front of the disk.")
@click.option("--quota", type=int, metavar="MB", help="Most that fragments may take on disk.")
@click.option("--namespace-quota", type=int, metavar="MB", help="Most that one namespace may take.")
@click.option("--keep-alive", default=1.0, show_default=True, metavar="SECONDS", help="Between keep-alives.")
@click.option("--repair-after", default=10.0, show_default=True, metavar="SECONDS", help="From a loss to its repair.")
@click.option("--repair-every", default=300.0, show_default=True, metavar="SECONDS", help="Repair without a loss.")
@click.option("--repair-bandwidth", default=268.0, show_default=True, metavar="MBIT", help="What repair may move.")
@click.option("--garbage-after", default=600.0, show_default=True, metavar="SECONDS", help="Rests of broken saves go.")
@click.option("--tls-cert", type=click.Path(), help="This peer's certificate (PEM).")
@click.option("--tls-key", type=click.Path(), help="Its key (PEM).")
@click.option("--tls-authority", type=click.Path(), help="The authority all certificates are checked against (PEM).")
@click.option("--verbose", is_flag=True, help="Log what goes well, too.")
def serve(
    data: Path,
    port: int,
    host: str,
    join: tuple[str, ...],
    join_seconds: float,
    secret_file: str | None,
    domain: str | None,
    weight: float,
    advertise: str | None,
    restores: Path | None,
    bandwidth: float | None,
    memory: int,
    quota: int | None,
    namespace_quota: int | None,
    keep_alive: float,
    repair_after: float,
    repair_every: float,
    repair_bandwidth: float,
    garbage_after: float,
    tls_cert: str | None,
    tls_key: str | None,
    tls_authority: str | None,
    verbose: bool,
) -> None:
    """Run one peer until it is stopped (Ctrl-C or SIGTERM).

    Prints one line when it is part of the ring and ready. Without --secret-file it serves loopback only.

    \b
    Example:
      holdfast store serve --data /var/lib/holdfast --port 7400 --join 10.0.0.5:7400 --secret-file secret --domain rack7
    """
    from dataclasses import replace

    from holdfast.errors import BadInput
    from holdfast.store.peer.limits import Limits
    from holdfast.store.peer.peer import RING, Peer, PeerSettings
    from holdfast.store.peer.repair import RepairSettings
    from holdfast.store.ring.messages import Contact
    from holdfast.store.wire.secret_files import weakness
    from holdfast.store.wire.tls import TlsFiles

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for address in (*join, *([advertise] if advertise else [])):
        Address.parse(address)
    for name, number in (
        ("--bandwidth", bandwidth),
        ("--keep-alive", keep_alive),
        ("--repair-every", repair_every),
        ("--repair-bandwidth", repair_bandwidth),
        ("--join-seconds", join_seconds),
    ):
        if number is not None and not number > 0:
            raise BadInput(f"{number:g} is not above zero", field=name, remedy="give a number above zero")
    defaults = Limits()
    settings = PeerSettings(
        data=data,
        host=host,
        port=port,
        advertise=advertise,
        join=join,
        join_seconds=join_seconds,
        secret_file=secret_file,
        tls=TlsFiles.given(tls_cert, tls_key, tls_authority),
        domain=domain,
        weight=weight,
        restores=restores,
        limits=replace(
            defaults,
            bandwidth=None if bandwidth is None else bandwidth * 1e6 / 8,
            memory_bytes=memory << 20,
            quota_bytes=defaults.quota_bytes if quota is None else quota << 20,
            namespace_quota_bytes=defaults.namespace_quota_bytes if namespace_quota is None else namespace_quota << 20,
            repair_bandwidth=repair_bandwidth * 1e6 / 8,
        ),
        ring=replace(RING, keep_alive=keep_alive),
        repair=RepairSettings(after=repair_after, every=repair_every, garbage_after=garbage_after),
    )

    def ready(contact: Contact, others: int) -> None:
        click.echo(f"ready {contact.address} with {others} other peer{'' if others == 1 else 's'}")
        sys.stdout.flush()

    async def run() -> None:
        peer = Peer(settings)
        if secret_file is not None and (warning := weakness(secret_file)) is not None:
            logging.getLogger("holdfast.store.peer.peer").warning("%s", warning)
        await peer.run(ready)

    asyncio.run(run())

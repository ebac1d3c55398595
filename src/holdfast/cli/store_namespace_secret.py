"""`holdfast store namespace-secret`: the secret of one namespace, made from the cluster's."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("namespace-secret")
@click.argument("namespace")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--secret-file",
    required=True,
    type=click.Path(path_type=Path),
    help="File with the cluster's secret.",
)
def namespace_secret(namespace: str, out: Path, secret_file: Path) -> None:
    """Write the secret of NAMESPACE into the file OUT, which only this user may read.

    A client or a run that has only OUT as its secret file can use NAMESPACE of the store, and nothing else. The name of
    an application opens the namespaces of its runs. Peers need no change: they make the same secret from the cluster's.
    Make it again when the cluster's secret is replaced.

    \b
    Example:
      holdfast store namespace-secret traffic traffic.secret --secret-file secret
    """
    from holdfast.durable_files import replace_privately
    from holdfast.erasure.fragment import StateId
    from holdfast.store.wire.secret_files import namespace_secrets

    StateId(namespace, "x")  # a name that no peer would take is refused here
    replace_privately(out, namespace_secrets(secret_file, namespace).encode())
    click.echo(f"{out} opens namespace {namespace}")

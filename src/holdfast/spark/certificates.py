"""The certificates of a run: an authority in memory, a certificate for the driver and each node. Runs on the driver.

The authority is made anew at every start of a driver and never leaves it; its key is in no file. A node's certificate
and key travel with its task, as the run's secret does. Only the driver needs the library that makes certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import BadInput
from holdfast.spark.settings import PREFIX, Settings
from holdfast.store.wire.address import is_loopback
from holdfast.store.wire.tls import Tls, TlsFiles, TlsMaterial

if TYPE_CHECKING:
    from cryptography import x509

VALID = datetime.timedelta(days=3650)
"""Longer than any run: what ends a certificate is the end of its driver."""
SKEW = datetime.timedelta(days=1)
"""Clocks of nodes may be so far behind the driver's."""


class RunAuthority:
    """Signs the certificates of one start of a driver."""

    def __init__(self, valid: datetime.timedelta = VALID, began: datetime.datetime | None = None) -> None:
        """Make a key and its own certificate."""
        from cryptography.hazmat.primitives.asymmetric import ec

        self._began = (began or datetime.datetime.now(datetime.UTC)) - SKEW
        self._valid = valid + SKEW
        self._name = f"holdfast run {secrets.token_hex(8)}"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(self._name, self._key.public_key(), [], authority=True)

    def issue(self, hosts: Sequence[str]) -> TlsMaterial:
        """Return a new key with a certificate for these names and numbers."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed("holdfast member", key.public_key(), hosts, authority=False)
        pem = serialization.Encoding.PEM
        return TlsMaterial(
            certificate.public_bytes(pem),
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
            self._certificate.public_bytes(pem),
        )

    def _signed(self, name: str, public_key: object, hosts: Sequence[str], *, authority: bool) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID

        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(public_key)  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._began)
            .not_valid_after(self._began + self._valid)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        )
        if hosts:
            names = [_general_name(host) for host in dict.fromkeys(hosts)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def tls_mode(settings: Settings, host: str) -> str:
    """Return `off`, `run` or `files` for a driver that listens at this host."""
    if settings.tls_mode != "auto":
        return settings.tls_mode
    return "off" if is_loopback(host) else "run"


def files_of(settings: Settings) -> TlsFiles:
    """Return the user's own files, which every node and the driver have under the same names."""
    if settings.tls_cert is None or settings.tls_key is None or settings.tls_ca is None:
        raise BadInput(
            "the mode is files, and not all three files are named",
            field=f"{PREFIX}tls.mode",
            remedy=f"set {PREFIX}tls.cert, {PREFIX}tls.key and {PREFIX}tls.ca",
        )
    return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca, names=True)


class RunTls:
    """What the processes of a run use below their connections."""

    def __init__(self, settings: Settings, hosts: Sequence[str]) -> None:
        """Decide for a driver that listens at the first of these, and is reached at all of them."""
        self.mode = tls_mode(settings, hosts[0])
        self._files = files_of(settings) if self.mode == "files" else None
        self._authority = None
        if self.mode == "run":
            try:
                self._authority = RunAuthority()
            except ImportError:
                raise BadInput(
                    "the certificates of the run cannot be made: the driver lacks the package cryptography",
                    field=f"{PREFIX}tls.mode",
                    remedy="install it where the driver runs, or set the mode to files or off",
                ) from None
        self.driver = self.member(hosts)

    def member(self, hosts: Sequence[str]) -> Tls | None:
        """Return what a process that is reached at these hosts uses; None: no TLS."""
        return self._files if self._authority is None else self._authority.issue(hosts)


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

"""TLS under the protocol: secrecy on the wire, and certificates on both sides. Runs on every side.

Both sides have a certificate of one authority and check the other's against it; where names are checked, the side that
connects also compares the name it connected to. The secret still decides who may connect: TLS adds secrecy and does not
replace the handshake. The certificates are a run's own, made by its driver and handed to its nodes with the secret
(`TlsMaterial`), or the user's files (`TlsFiles`). Only the standard library is needed to use them.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.errors import BadInput
from holdfast.store.wire.secret_files import check_private


class Tls(Protocol):
    """Where the contexts of connections come from."""

    def context(self, *, serving: bool) -> ssl.SSLContext:
        """Return the context for the side that listens, or for the one that connects."""
        ...


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Three PEM files: this side's certificate, its key, and the authority's certificate."""

    certificate: str
    key: str
    authority: str
    names: bool = False
    """Whether the name or number that was connected to must be in the other side's certificate."""

    @classmethod
    def given(cls, certificate: str | None, key: str | None, authority: str | None) -> TlsFiles | None:
        """All three, or none."""
        if certificate is None and key is None and authority is None:
            return None
        if certificate is None or key is None or authority is None:
            raise BadInput(
                "TLS needs a certificate, a key and an authority",
                remedy="give --tls-cert, --tls-key and --tls-authority together",
            )
        return cls(certificate, key, authority)

    def context(self, *, serving: bool) -> ssl.SSLContext:
        """See Tls; unreadable or unfitting files are named."""
        check_private(Path(self.key), "the TLS key")
        context = _strict_context(serving=serving, names=self.names)
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(
                f"the TLS files cannot be loaded: {error}",
                where=f"{self.certificate}, {self.key}, {self.authority}",
                remedy="give PEM files that belong together",
            ) from None
        return context


@dataclass(frozen=True, slots=True, repr=False)
class TlsMaterial:
    """Certificate, key and authority of one process of a run, as PEM text; never printed or written to a disk."""

    certificate: bytes
    key: bytes
    authority: bytes

    def context(self, *, serving: bool) -> ssl.SSLContext:
        """See Tls. Names are checked."""
        context = _strict_context(serving=serving, names=True)
        # OpenSSL takes a certificate's chain from a file only: this one is in memory.
        handle = os.memfd_create("holdfast-tls", os.MFD_CLOEXEC)
        try:
            with open(handle, "wb", closefd=False) as file:
                file.write(self.certificate + self.key)
            context.load_cert_chain(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
        context.load_verify_locations(cadata=self.authority.decode())
        return context


def server_name(context: ssl.SSLContext, host: str) -> str | None:
    """Return the name to compare with the other side's certificate, where names are checked."""
    return host if context.check_hostname else None


def explained(error: ssl.SSLError) -> str:
    """Return in a few words why TLS refused, here or at the other side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        known = {
            7: "the other side's certificate is of another authority",
            9: "the other side's certificate is not valid yet",
            10: "the other side's certificate has expired",
            18: "the other side's certificate is of another authority",
            19: "the other side's certificate is of another authority",
            20: "the other side's certificate is of another authority",
            62: "the other side's certificate is for another name",
            64: "the other side's certificate is for another name",
        }
        return known.get(error.verify_code, f"the other side's certificate is refused: {error.verify_message}")
    reason = error.reason or str(error)
    for word, text in (
        ("UNKNOWN_CA", "the other side refused this side's certificate: it is of another authority"),
        ("CERTIFICATE_EXPIRED", "the other side refused this side's certificate: it has expired"),
        ("CERTIFICATE_REQUIRED", "the other side asks for a certificate"),
        ("BAD_CERTIFICATE", "the other side refused this side's certificate"),
        ("PEER_DID_NOT_RETURN", "the other side has no certificate"),
        ("WRONG_VERSION_NUMBER", "the other side uses no TLS"),
        ("HTTP_REQUEST", "the other side uses no TLS"),
    ):
        if word in reason:
            return text
    return f"TLS failed: {reason}"


def _strict_context(*, serving: bool, names: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serving else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = names and not serving
    context.verify_mode = ssl.CERT_REQUIRED
    return context

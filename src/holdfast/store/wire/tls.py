"""Optional TLS under the protocol: secrecy on the wire. Runs in clients and peers.

Every peer has a certificate of the cluster's own authority and checks the other side's against it, clients too. The
cluster secret still decides who may connect: TLS adds secrecy, it does not replace the handshake. Host names are not
compared, because peers are known by address and every certificate of the authority is a member.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Three PEM files: this side's certificate, its key, and the authority's certificate."""

    certificate: str
    key: str
    authority: str

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
        """Return the context for one side; unreadable or unfitting files are named."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serving else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
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

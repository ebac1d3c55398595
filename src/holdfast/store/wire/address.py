"""Where a peer listens: HOST:PORT, read and written. Runs anywhere."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: object, where: str | None = None) -> Address:
        """Read `127.0.0.1:7400`, `host:7400` or `[::1]:7400`."""
        if isinstance(text, str):
            host, colon, port = text.strip().rpartition(":")
            host = host.removeprefix("[").removesuffix("]")
            if colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
                return cls(host, int(port))
        raise BadInput(f"{str(text)[:80]!r} is not HOST:PORT", where=where, remedy="write it like 127.0.0.1:7400")


def is_loopback(host: str) -> bool:
    """Return whether a host's name or number means this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

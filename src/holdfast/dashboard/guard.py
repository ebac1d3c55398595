"""Who may ask the page for what: hosts, origins, the token, and the headers of every answer. Pure.

A page on loopback is reachable from every web page in the user's browser: the name in `Host` keeps out those that have
their own name resolve to loopback, the origin those that post from elsewhere. Only requests that change something need
the token; it is sent in a header that no other page can set, and never in a cookie or an address.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    why: str


def host_name(header: str) -> str:
    """Return the name in a Host header, without the port: `[::1]:4050` is `::1`."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def refused(
    headers: Mapping[str, str], *, allowed: frozenset[str] | None, changes: bool, token: str | None
) -> Refusal | None:
    """Return why a request is refused; None: it is answered.

    `allowed` are the names that the page may be asked by, None: any (it listens for other machines); `changes`: it is
    to change something; `token`: what such a request must have, None: nothing can be changed here.
    """
    host = headers.get("host", "")
    if allowed is not None and host_name(host) not in allowed:
        return Refusal(403, "this page answers by its own address only")
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        return Refusal(403, "requests from other origins are refused")
    if headers.get("sec-fetch-site", "none") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
        return Refusal(403, "requests from other origins are refused")
    if changes:
        if token is None:
            return Refusal(403, "this page is read-only")
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), token.encode()):
            return Refusal(401, "the token is missing or wrong: it is in the run's directory, run/page-token")
    return None

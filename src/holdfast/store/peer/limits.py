"""The limits of a peer, in one place; docs/guides/store.md lists them (a test compares). Runs in peers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what others can make a peer do. Sizes in bytes, times in seconds."""

    connections: int = 512
    """Authenticated connections at once; one more is refused as busy."""
    strangers: int = 256
    """Connections still in the handshake; one more pushes the oldest of them out."""
    greeting_seconds: float = 5.0
    """A handshake that takes longer is ended."""
    idle_seconds: float = 600.0
    """A connection without a frame for so long is closed."""
    requests_per_second: float = 2000.0
    """Of one connection; more are delayed, not refused."""
    notes_per_second: float = 20_000.0
    """Ring messages from all others together; more are dropped."""
    unread_bytes: int = 4 << 20
    """Received but not yet handled, of one connection; beyond it the peer stops reading."""
    fragment_bytes: int = 64 << 30
    """The largest fragment taken."""
    quota_bytes: int = 1 << 40
    """Fragments on disk, in all."""
    namespace_quota_bytes: int = 1 << 40
    """Fragments on disk of one namespace."""
    reserve_bytes: int = 64 << 20
    """Disk space left free: a put that would go below it is refused as if the quota were reached."""
    memory_bytes: int = 64 << 20
    """The memory tier in front of the disk."""
    bandwidth: float | None = None
    """Bytes per second, each direction on its own; None: no limit."""
    repair_bandwidth: float = 32 << 20
    """Bytes per second that repair may move through this peer."""
    restores: int = 2
    """Restores into local files that run at once; further ones wait."""

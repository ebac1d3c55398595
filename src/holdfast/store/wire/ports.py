"""Which ports a process may listen at: any, one, or the first free one of a range. Pure; runs anywhere.

    Ports.parse("7400-7403").tried(1)     # (7401, 7402, 7403, 7400)

A process begins where it is told to (the second process of a node at the second port) and takes the next port where one
is taken by another process: another executor of the same host, another run.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import BadInput

T = TypeVar("T")
HIGHEST = 65535
NEXT = (errno.EADDRINUSE, errno.EACCES)
"""What concerns one port and perhaps not the next: it is taken, or it is reserved."""


@dataclass(frozen=True, slots=True)
class Ports:
    """From the first port to the last; both 0: any that is free."""

    first: int = 0
    last: int = 0

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def is_any(self) -> bool:
        """Whether the system chooses."""
        return not self.first

    @classmethod
    def parse(cls, text: str) -> Ports:
        """Read `7400`, `7400-7409`, or `0`."""
        first, dash, last = (part.strip() for part in text.strip().partition("-"))
        if not _is_port(first) or (dash and not _is_port(last)):
            raise ValueError(f"must be a port (7400), a range of ports (7400-7409) up to {HIGHEST}, or 0")
        found = cls(int(first), int(last) if dash else int(first))
        if dash and not 0 < found.first <= found.last:
            raise ValueError("must be a range from a port above 0 up to one that is not lower, such as 7400-7409")
        return found

    def widened(self, count: int) -> Ports:
        """Return room for so many processes, where only the port of the first of them is given."""
        alone = self.first == self.last and not self.is_any
        return Ports(self.first, min(HIGHEST, self.first + count - 1)) if alone else self

    def tried(self, begin: int = 0) -> tuple[int, ...]:
        """Return all ports in the order in which the process with this number tries them."""
        if self.is_any:
            return (0,)
        return tuple(self.first + (begin + step) % len(self) for step in range(len(self)))


ANY = Ports()
"""Any port that is free."""


def listen_at_first_free(ports: Sequence[int], host: str, listen: Callable[[int], T]) -> T:
    """Return what listens at the first of these ports that is free; where none is, say so in one line."""
    for port in ports:
        try:
            return listen(port)
        except OSError as error:
            if error.errno not in NEXT or port == ports[-1]:
                raise none_free(ports, port, host, error) from None
    raise ValueError("no port is given")


def none_free(ports: Sequence[int], last: int, host: str, problem: OSError) -> BadInput:
    """Return the error of a process that could listen at none of these ports, and why not at the last it tried."""
    if len(ports) > 1 and problem.errno in NEXT:
        return BadInput(
            f"cannot listen on {host}: all {len(ports)} ports from {min(ports)} to {max(ports)} are taken",
            remedy="free one of them, or give a wider range",
        )
    at = f"[{host}]" if ":" in host else host
    why = "the port is taken" if problem.errno == errno.EADDRINUSE else (problem.strerror or str(problem)).lower()
    remedy = "free it, or give another port or a range" if problem.errno in NEXT else "choose another host or port"
    return BadInput(f"cannot listen on {at}:{last}: {why}", remedy=remedy)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= HIGHEST

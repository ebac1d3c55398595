"""What is said to an agent, and by it, in files of its spool: settings, the ring, whom it lives with, when to stop.

Runs wherever an agent is started, watched or told something; each file is written at once or not at all.

| file | written by | says |
|---|---|---|
| `settings.json` | who starts the agent | `AgentSettings` |
| `ring.json` | the driver | the peers through which it enters the ring, and those it should know |
| `executor` | the executor's task | the process that the agent lives with |
| `stop` | who ends the run | end now |
| `faults.json` | drills | messages to lose |
| `agent.json` | the agent | where it listens, its process, whether it is ready |
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from holdfast.errors import BadInput
from holdfast.store.agent.spool import make_folders

SURVIVE = 0.5
"""Share of the peers that may be lost at once, where nothing else is asked for."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How an agent runs: plain values and file names, no secret. Written to SPOOL/settings.json."""

    host: str = "127.0.0.1"
    """Where it listens; others than loopback need a secret."""
    port: int = 0
    peer: bool = True
    """Keep fragments for others. Without it, the agent only does its node's work."""
    wait_for_ring: bool = False
    """Enter the ring as SPOOL/ring.json says, once it is there."""
    peers: tuple[str, ...] = ()
    """Peers of the ring: to join, or to use where no fragments are kept here. None, and no peer here: no ring."""
    join_seconds: float = 60.0
    secret_file: str | None = None
    domain: str | None = None
    durable: str | None = None
    """The durable folder: a path every node reaches. Tasks may name another one for their run."""
    data_fragments: int | None = None
    parity_fragments: int | None = None
    survive: float = SURVIVE
    """Share of the peers whose loss a save must survive, where fragments are not given."""
    fewest_peers: int = 1
    settle: float = 5.0
    """A snapshot is lost when for so many seconds not enough fragments were found: the ring may be mending."""
    keep_alive: float = 1.0
    """How often neighbours on the ring hear from this peer, seconds."""
    memory_mb: int = 32
    """The peer's memory tier."""
    linger: float = 600.0
    """How long it outlives the process that SPOOL/executor names (`live_with`), seconds; none named, it stays."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if (self.data_fragments is None) != (self.parity_fragments is None):
            raise BadInput("data and parity fragments come together", remedy="give both, or neither")
        if not 0 <= self.survive < 1:
            raise BadInput(f"{self.survive:g} of the peers", field="survive", remedy="give a share from 0 to below 1")


def write_settings(spool: Path, settings: AgentSettings) -> None:
    """Prepare a spool for its agent."""
    make_folders(spool)
    write_note(spool / "settings.json", asdict(settings))


def read_settings(spool: Path) -> AgentSettings:
    """Read what an agent was told."""
    path = spool / "settings.json"
    try:
        plain = json.loads(path.read_bytes())
        strange = set(plain) - {field.name for field in fields(AgentSettings)}
        if strange:
            raise BadInput(f"there is no setting {min(strange)!r}", where=str(path))
        return AgentSettings(**{**plain, "peers": tuple(plain.get("peers", ()))})
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path), remedy="start the agent again") from None


def enter_ring(spool: Path, join: Sequence[str]) -> None:
    """Tell a waiting agent how to enter: through these peers; none, or only itself, means that it is the first.

    Told again, an agent that has entered meets those that it does not know.
    """
    told = {"join": list(join)}
    if read_note(spool / "ring.json") != told:
        write_note(spool / "ring.json", told)


def live_with(spool: Path, process: int) -> None:
    """Let the agent of a spool end some time after this process has; the last one named counts."""
    executor = {"pid": process, "began": process_began(process)}
    if read_note(spool / "executor") != executor:
        write_note(spool / "executor", executor)


def stop_agent(spool: Path) -> None:
    """Let the agent of a spool end now: its run is over."""
    (spool / "stop").touch()


def process_began(process: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None where it has ended. Ids are used again."""
    try:
        about = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if about[0] in "ZX" else int(about[19])
    except (OSError, IndexError, ValueError):
        return None


def lose_messages(spool: Path, share: float, seed: int = 1) -> None:
    """For drills: let an agent lose this share of the messages that come to it, from a seed; 0 ends it.

    A lost note is gone; with a lost request its connection is cut.
    """
    write_note(spool / "faults.json", {"lose": share, "seed": seed})


def agent_ready(spool: Path) -> bool:
    """Say whether the agent of a spool has said that it is part of the ring (or needs none)."""
    return bool((read_note(spool / "agent.json") or {}).get("ready"))


def write_note(path: Path, plain: dict[str, Any]) -> None:
    """Write plain values to a file of the spool, at once or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    part.write_text(json.dumps(plain))
    part.rename(path)


def read_note(path: Path) -> Any:
    """Read what `write_note` wrote; None where nothing that can be read is there."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None

"""The files through which an agent is configured, watched and stopped, in its spool. Runs on the driver and on nodes.

Each file is replaced atomically.

| file | written by | contents |
|---|---|---|
| `settings.json` | the process that starts the agent | `AgentSettings` |
| `code.json` | the executor's task | how the run fixes the code, where it does: `CodeSettings` |
| `ring.json` | the driver | addresses of peers: the agent joins the ring through them |
| `executor` | the executor's task | the process after whose exit the agent stops |
| `stop` | the process that ends the run | the agent stops at once |
| `faults.json` | drills | the share of messages that the agent drops |
| `agent.json` | the agent | its address and process, whether it is in the ring, what its saves lack, its codes |
| `problem.json` | the agent | why it could not start; null once it has |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from holdfast.durable_files import replace_atomically
from holdfast.errors import BadInput
from holdfast.store.agent.spool import make_folders

RELIABILITY = 0.999
"""Default of the probability that a restore finds enough fragments."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How an agent runs: plain values and file names, no secret. Written to SPOOL/settings.json."""

    host: str = "127.0.0.1"
    """The address it listens on; any but loopback needs a secret."""
    port: int = 0
    last_port: int = 0
    """The last one of a range of ports that begins at `port`; 0: there is no range."""
    reached_at: str | None = None
    """The host by which others reach it; None: where it listens."""
    peer: bool = True
    """Store fragments for other nodes. False: the agent only serves the tasks of its node."""
    wait_for_ring: bool = False
    """Wait for SPOOL/ring.json and join the ring through the peers in it."""
    peers: tuple[str, ...] = ()
    """Peers to join through, or to use when this agent stores no fragments. Empty, and `peer` False: no ring."""
    join_seconds: float = 60.0
    secret_file: str | None = None
    tls: tuple[str, str, str] | None = None
    """Files of this agent's certificate, its key, and the authority; None: no TLS."""
    domain: str | None = None
    durable: str | None = None
    """The durable folder: a path that every node can write to. The tasks of a run may name another one."""
    data_fragments: int | None = None
    parity_fragments: int | None = None
    survive: float | None = None
    """Share of the peers whose loss a save must survive, where m and k are not given. None: the agent tunes them."""
    reliability: float = RELIABILITY
    """Probability that a restore finds enough fragments, which a code that is tuned must reach."""
    fewest_peers: int = 1
    settle: float = 5.0
    """Seconds without enough fragments after which a snapshot counts as lost; the ring may be repairing before."""
    keep_alive: float = 1.0
    """Seconds between two keep-alives to each neighbour on the ring."""
    memory_mb: int = 32
    """Memory for fragments in MB."""
    linger: float = 600.0
    """Seconds for which the agent outlives the process in SPOOL/executor (`live_with`); without one it stays."""
    expiry: float = 0.0
    """Seconds after which it removes spools that other runs have left on this host; 0: never."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if (self.data_fragments is None) != (self.parity_fragments is None):
            raise BadInput("only one of data and parity is set", remedy="set both, or neither")
        if not 0 < self.reliability < 1:
            raise BadInput(
                f"{self.reliability:g} is not a probability", field="reliability", remedy="give one like 0.999"
            )
        if self.survive is not None and not 0 <= self.survive < 1:
            raise BadInput(
                f"{self.survive:g} is not a share of the peers",
                field="survive",
                remedy="give a number from 0 to below 1",
            )


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """How a run wants its snapshots coded. Written to SPOOL/code.json; replaces what the agent started with."""

    data_fragments: int | None = None
    parity_fragments: int | None = None
    survive: float | None = None
    reliability: float = RELIABILITY


def write_code(spool: Path, code: CodeSettings) -> None:
    """Tell the agent of a spool how the run wants its snapshots coded; the last call counts."""
    if read_note(spool / "code.json") != asdict(code):
        write_note(spool / "code.json", asdict(code))


def with_code(settings: AgentSettings, note: Any) -> AgentSettings:
    """Return the settings with what SPOOL/code.json says; what cannot be read changes nothing."""
    try:
        return replace(settings, **asdict(CodeSettings(**note))) if isinstance(note, dict) else settings
    except (TypeError, BadInput):
        return settings


def agent_codes(spool: Path) -> tuple[dict[str, Any], ...]:
    """Return the codes that a spool's agent has chosen, one for each class of sizes, as `CodeChoice` has them."""
    return tuple((read_note(spool / "agent.json") or {}).get("codes") or ())


def write_settings(spool: Path, settings: AgentSettings) -> None:
    """Prepare a spool for its agent."""
    make_folders(spool)
    write_note(spool / "settings.json", asdict(settings))


def read_settings(spool: Path) -> AgentSettings:
    """Read an agent's settings."""
    path = spool / "settings.json"
    try:
        plain = json.loads(path.read_bytes())
        strange = set(plain) - {field.name for field in fields(AgentSettings)}
        if strange:
            raise BadInput(f"unknown setting {min(strange)!r}", where=str(path))
        return AgentSettings(
            **{**plain, "peers": tuple(plain.get("peers", ())), "tls": tuple(plain.get("tls") or ()) or None}
        )
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"the agent's settings cannot be read: {error}", where=str(path), remedy="start the agent again"
        ) from None


def enter_ring(spool: Path, join: Sequence[str]) -> None:
    """Let a waiting agent join the ring through these peers; none, or only itself: it starts the ring.

    An agent that has joined contacts peers of the list that are unknown to it.
    """
    entrance = {"join": list(join)}
    if read_note(spool / "ring.json") != entrance:
        write_note(spool / "ring.json", entrance)


def live_with(spool: Path, process: int) -> None:
    """Let the agent of a spool stop some time after this process exits; the last call counts."""
    executor = {"pid": process, "began": process_began(process)}
    if read_note(spool / "executor") != executor:
        write_note(spool / "executor", executor)


def note_problem(spool: Path, line: str | None) -> None:
    """Note why an agent has ended at its start; None: it has started."""
    write_note(spool / "problem.json", {"line": line})


def agent_problem(spool: Path) -> str | None:
    """Return why the agent of a spool ended at its last start; None: it did not, as far as is known."""
    line = (read_note(spool / "problem.json") or {}).get("line")
    return None if line is None else str(line)


def stop_agent(spool: Path) -> None:
    """Stop the agent of a spool: its run is over."""
    (spool / "stop").touch()


def process_began(process: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None where it has ended. Ids are used again."""
    try:
        about = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if about[0] in "ZX" else int(about[19])
    except (OSError, IndexError, ValueError):
        return None


def lose_messages(spool: Path, share: float, seed: int = 1) -> None:
    """For drills: let an agent drop this share of the messages it receives, drawn from a seed; 0 ends it.

    A dropped one-way message is gone; a dropped request closes its connection.
    """
    write_note(spool / "faults.json", {"lose": share, "seed": seed})


def agent_degraded(spool: Path) -> str | None:
    """Return what the saves of a spool's agent lack; None: nothing."""
    line = (read_note(spool / "agent.json") or {}).get("degraded")
    return None if line is None else str(line)


def agent_ready(spool: Path) -> bool:
    """Return whether the agent of a spool has joined the ring (or needs none)."""
    return bool((read_note(spool / "agent.json") or {}).get("ready"))


def write_note(path: Path, plain: dict[str, Any]) -> None:
    """Write plain values to a file of the spool, at once or not at all."""
    replace_atomically(path, json.dumps(plain).encode())


def read_note(path: Path) -> Any:
    """Read what `write_note` wrote; None where nothing that can be read is there."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None

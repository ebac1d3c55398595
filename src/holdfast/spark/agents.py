"""Agents on a user's own cluster: the first task on an executor starts one, and all find each other. Runs in tasks.

On an embedded cluster every node has its agent already, and tasks find its spool in their environment. Elsewhere a task
calls `ensure_agent`: it returns at once, starts an agent where none runs (detached: it outlives Python workers, and for
a while the executor, so that the next driver finds the fragments), and reports where it listens. The driver
collects that in a `Roster`, and the next tasks pass on whom to join. No agent has to know another beforehand, and no
port has to be set.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import BadInput
from holdfast.ids import NodeId
from holdfast.spark.certificates import files_of
from holdfast.spark.own_executor import own_executor_process
from holdfast.spark.pinned_jobs import own_host
from holdfast.spark.settings import PREFIX, Settings
from holdfast.storage.storage import is_url
from holdfast.store.agent.agent_files import (
    AgentSettings,
    CodeSettings,
    agent_codes,
    agent_degraded,
    agent_problem,
    agent_ready,
    enter_ring,
    live_with,
    note_problem,
    write_code,
    write_settings,
)
from holdfast.store.agent.spool import SPOOL_VARIABLE, agent_address, make_folders
from holdfast.store.wire.address import Address, is_loopback

START_SECONDS = 5.0
"""An agent that does not hold its spool's lock so long after its start is started again."""


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What a task reports to the driver of its node's agent."""

    spool: str
    address: str | None
    """Where it listens; None: it has only just been started."""
    ready: bool
    """It is part of the ring, or needs none."""
    problem: str | None = None
    """Why this node has none."""
    degraded: str | None = None
    """What its saves lack, although they are acknowledged; without an address, why it does not start."""
    codes: tuple[dict[str, Any], ...] = ()
    """The codes that it has chosen, one for each class of sizes (`CodeChoice`); none where the run fixes the code."""


def node_spool(run: str, host: str | None = None) -> Path:
    """Return this node's spool: of the embedded cluster's agent, or one of this run's own, by host.

    A run that starts again finds it: its name decides, not the executor's.
    """
    given = os.environ.get(SPOOL_VARIABLE)
    if given is not None:
        return Path(given)
    name = hashlib.blake2b(run.encode(), digest_size=8).hexdigest()
    ours = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    ours.mkdir(mode=0o700, exist_ok=True)
    if ours.lstat().st_uid != os.getuid():
        raise BadInput("belongs to another user", where=str(ours), remedy="have it removed, or set TMPDIR elsewhere")
    return ours / name / (host or own_host())


def agent_settings(settings: Settings, host: str, domain: str | None = None) -> AgentSettings:
    """Return how the agent of a node runs. A failure domain that is not known is the host: all on it fails together."""
    given, listens, ports = bool(settings.store_peers), settings.node_bind_address or host, settings.store_port
    if settings.store_secret_file is None and not is_loopback(listens):
        raise BadInput(
            f"will not serve {listens} without a secret",
            field=f"{PREFIX}store.secretFile",
            remedy="write a secret into a file on every node (mode 600), and name it",
        )
    files = files_of(settings) if settings.tls_mode == "files" else None
    return AgentSettings(
        host=listens,
        port=ports.first,
        last_port=ports.last,
        reached_at=settings.reached_at(host),
        peer=not given,
        peers=settings.store_peers,
        wait_for_ring=not given,
        secret_file=settings.store_secret_file,
        tls=None if files is None else (files.certificate, files.key, files.authority),
        domain=domain or dict(settings.node_domains).get(host) or host,
        durable=None if is_url(settings.store_durable or "") else settings.store_durable,
        data_fragments=settings.store_data_fragments,
        parity_fragments=settings.store_parity_fragments,
        survive=settings.store_tolerate_node_loss,
        reliability=settings.store_reliability,
        linger=settings.store_linger_seconds,
        expiry=settings.store_expiry_seconds,
    )


def ensure_agent(
    spool: Path, settings: AgentSettings, join: Sequence[str] = (), *, executor: int | None = None
) -> AgentReport:
    """See that an agent serves this spool, and tell where it is; returns at once and may be called in every task.

    `join`: whom to enter the ring with, once the driver knows (`Roster.join`). `executor`: the process it lives with;
    None: the executor of this task.
    """
    embedded = os.environ.get(SPOOL_VARIABLE) == str(spool)
    make_folders(spool)
    if not embedded:
        live_with(spool, own_executor_process() if executor is None else executor)
    code = CodeSettings(settings.data_fragments, settings.parity_fragments, settings.survive, settings.reliability)
    write_code(spool, code)
    if join:
        enter_ring(spool, join)
    if not _runs(spool):
        if not _just_started(spool):
            if not embedded:
                write_settings(spool, settings)
            if spool not in _tried:  # what kept an agent of an earlier run from starting may be over
                _tried.add(spool)
                note_problem(spool, None)
            _start(spool, own_session=not embedded)
        return AgentReport(str(spool), None, ready=False, degraded=_does_not_start(spool, settings))
    address = agent_address(spool)
    listens = None if address is None else str(address)
    return AgentReport(
        str(spool), listens, agent_ready(spool), degraded=agent_degraded(spool), codes=agent_codes(spool)
    )


def _does_not_start(spool: Path, settings: AgentSettings) -> str | None:
    """Return why the last agent of a spool that was started has ended; None: it has not, as far as is known."""
    problem = agent_problem(spool)
    if problem is None:
        return None
    key = f" ({PREFIX}store.port)" if settings.port else ""
    return (
        f"the store agent of {settings.reached_at or settings.host} does not start, and is tried again: {problem}{key}"
    )


class Roster:
    """The agents that have reported to the driver, and whom the others are to join."""

    def __init__(self) -> None:
        self._reports: dict[NodeId, AgentReport] = {}
        self._failing: set[NodeId] = set()
        """Nodes whose agents do not start: nobody waits for them."""

    def add(self, reports: Mapping[NodeId, AgentReport]) -> None:
        """Take what tasks reported."""
        self._reports.update({node: report for node, report in reports.items() if report.address is not None})
        for node, report in reports.items():
            fails = report.address is None and report.degraded is not None
            (self._failing.add if fails else self._failing.discard)(node)

    def lose(self, node: NodeId) -> None:
        """Forget a node that is gone."""
        self._reports.pop(node, None)
        self._failing.discard(node)

    def join(self, nodes: Sequence[NodeId]) -> tuple[str, ...]:
        """Return whom agents of these nodes are to enter the ring with; nobody, until it is sure who is first.

        Executors of one host share an agent, which is named once: saves count whom they are to survive. Agents that are
        part of the ring come first. Without any, all nodes must have reported, but for those whose
        agents do not start: the first of them begins the ring, and two must never do so.
        """
        ready = {str(one.address) for one in self._reports.values() if one.ready}
        waiting = {str(one.address) for one in self._reports.values() if not one.ready} - ready
        return (*sorted(ready), *sorted(waiting)) if ready or set(nodes) <= set(self._reports) | self._failing else ()

    def ready(self, nodes: Sequence[NodeId]) -> bool:
        """Say whether the agents of all these nodes can save."""
        return all(node in self._reports and self._reports[node].ready for node in nodes)

    def addresses(self) -> dict[NodeId, Address]:
        """Return where agents listen, for keep-alives."""
        return {node: Address.parse(one.address) for node, one in self._reports.items() if one.address is not None}


_started: list[subprocess.Popen[bytes]] = []
_tried: set[Path] = set()
"""Spools for which this process has started an agent."""


def _just_started(spool: Path) -> bool:
    """Say whether one is on its way: until it has the lock, others need not try."""
    try:
        age = time.time() - (spool / "started").stat().st_mtime
    except FileNotFoundError:
        return False
    return 0 <= age < START_SECONDS  # below 0: the clock was set back since, and may take long to come here again


def _runs(spool: Path) -> bool:
    """Say whether an agent holds the spool's lock."""
    with (spool / "agent.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _start(spool: Path, *, own_session: bool) -> None:
    """Start an agent; of two started at once, one takes the lock and the other ends."""
    (spool / "started").touch()
    with (spool / "log").open("ab") as log:
        # Kept: a worker that lives longer than the agent reaps it when the next one is started.
        _started.append(
            subprocess.Popen(
                [sys.executable, "-m", "holdfast.store.agent.agent", str(spool)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=spool,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=own_session,
            )
        )
    _started[:] = [process for process in _started if process.poll() is None]

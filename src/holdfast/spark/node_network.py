"""A network of their own for the nodes of an embedded cluster, which can be cut. Runs beside the cluster, as root.

Every node has a network namespace, joined by a pair of virtual interfaces to a bridge of this machine, on which the
master and the driver listen. A node is cut off by moving its end of the pair to a second bridge: those that are there
reach each other and nobody else, no connection is closed, and packets are lost in silence, as when a switch fails.
Nothing of it reaches another machine. Names carry the process's number; the process reaper removes what is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from pathlib import Path

from holdfast.errors import BadInput, CheckFailed

REMEDY_TOOL = "install it: apt-get install iproute2"


def check_network() -> None:
    """Refuse, with one line, where this process cannot make networks: it needs root and the command `ip`."""
    if os.geteuid() != 0:
        raise BadInput("needs network namespaces, and those need root", field="--partition", remedy="run it as root")
    if shutil.which("ip") is None:
        raise BadInput("needs the command ip, which is not there", field="--partition", remedy=REMEDY_TOOL)


class NodeNetwork:
    """The bridges and namespaces of one cluster."""

    def __init__(self) -> None:
        """Make the bridges; nodes are joined as they start."""
        check_network()
        process = os.getpid()
        self._short = f"hf{process:x}"
        self._long = f"holdfast-{process}"
        self._prefix = f"198.18.{process % 254 + 1}"  # of the range that RFC 2544 sets apart for tests
        self.host = f"{self._prefix}.1"
        """Where master and driver listen."""
        self._main, self._apart = f"{self._short}b0", f"{self._short}b1"
        self._links: dict[str, str] = {}
        self._lock = threading.Lock()
        sweep()
        for bridge in (self._main, self._apart):
            _ip("link", "add", bridge, "type", "bridge")
            _ip("link", "set", bridge, "up")
        _ip("addr", "add", f"{self.host}/24", "dev", self._main)

    def undo_commands(self) -> list[list[str]]:
        """Return what removes the bridges, however often it is run."""
        return [["ip", "link", "del", bridge] for bridge in (self._main, self._apart)]

    def host_of(self, number: int) -> str:
        """Return the address of a node that is started as the number-th."""
        return f"{self._prefix}.{number + 1}"

    def join(self, host: str) -> tuple[list[str], list[str]]:
        """Make a node's namespace; return the words before its command, and the command that removes it."""
        number = int(host.rpartition(".")[2])
        space, link = f"{self._long}-{number}", f"{self._short}n{number}"
        with self._lock:
            _ip("netns", "add", space)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", link, "master", self._main, "up")
            _ip("-n", space, "addr", "add", f"{host}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            self._links[host] = link
        return ["ip", "netns", "exec", space], ["ip", "netns", "del", space]

    def cut(self, host: str) -> None:
        """Cut a node off from all but the others that are cut off."""
        _ip("link", "set", self._links[host], "master", self._apart)

    def heal(self, host: str) -> None:
        """Connect a node again."""
        _ip("link", "set", self._links[host], "master", self._main)


def sweep() -> None:
    """Remove networks whose process is gone: one that died with its reaper leaves them behind."""
    folder = Path("/run/netns")
    for space in sorted(folder.glob("holdfast-*-*")) if folder.is_dir() else []:
        if _is_gone(space.name.split("-")[1]):
            subprocess.run(["ip", "netns", "del", space.name], check=False, capture_output=True)
    for link in Path("/sys/class/net").glob("hf*b[01]"):
        with contextlib.suppress(ValueError):
            if _is_gone(str(int(link.name[2:-2], 16))):
                subprocess.run(["ip", "link", "del", link.name], check=False, capture_output=True)


def _is_gone(process: str) -> bool:
    return process.isdigit() and not Path(f"/proc/{process}").exists()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise CheckFailed(
            f"ip {' '.join(words)}: {why}", where="network of the nodes", remedy="see that `ip` may do it"
        )

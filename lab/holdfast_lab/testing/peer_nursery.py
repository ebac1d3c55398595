"""A process that has loaded what a peer needs and forks one per request: thirty peers in a second instead of ten.

Runs as `python -m holdfast_lab.testing.peer_nursery MODULE:FUNCTION MODULE…`, started by `ring_of_peers`: the function
runs a command line, the modules are loaded beforehand. Each line on standard input is a JSON list of arguments for
`holdfast store serve` with, first, the files for its output and its log; the answer is the new process's id. The peers
are ordinary processes running the ordinary command. They end with the nursery's standard input.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from importlib import import_module

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Fork until there is nothing more to read."""
    command, *preloaded = sys.argv[1:]
    for module in preloaded:
        import_module(module)
    module, _, name = command.partition(":")
    run = getattr(import_module(module), name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for them: the kernel may forget them at once.
    nursery = os.getpid()
    for line in sys.stdin:
        output, log, *arguments = json.loads(line)
        child = os.fork()
        if child:
            sys.stdout.write(f"{child}\n")
            sys.stdout.flush()
            continue
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != nursery:
            os._exit(1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        status = run(["store", "serve", *arguments])
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()

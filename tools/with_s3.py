"""Start an S3 server on loopback, run a command with what it needs in its environment, and end the server.

Run: `python tools/with_s3.py holdfast drill mixed --storage s3://holdfast/drills`. The bucket is `holdfast`.
"""

from __future__ import annotations

import os
import subprocess
import sys

from holdfast_lab.s3_server import S3Server


def main(words: list[str]) -> int:
    """Run the command; its status is ours."""
    if not words:
        print(__doc__)
        return 2
    with S3Server() as server:
        return subprocess.run(words, env={**os.environ, **server.environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

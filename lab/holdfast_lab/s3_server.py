"""An S3 server on loopback, for tests and measurements: `versitygw` over a folder of its own.

It honours create-only puts (`If-None-Match: *`) among any number of writers and starts in a fifth of a second. S3Proxy
2.9.0 does not honour them: of eight puts at once, several succeed.

The program is the one of this version in the user's cache folder, or else `versitygw` on the PATH, or else it is built
once with Go, which takes minutes: `python -m holdfast_lab.s3_server` does that beforehand.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from holdfast.errors import BadInput, one_line
from holdfast.spark.process_reaper import ProcessReaper

MODULE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "v1.8.0"
REGION = "us-east-1"
BUILD_SECONDS = 540
START_SECONDS = 30


class S3Server:
    """A running server with one empty bucket; it ends with the block, or with this process however that ends."""

    def __init__(self, bucket: str = "holdfast", *, build: bool = True) -> None:
        """Start it; `build`: where its program is not there, build it, which takes minutes."""
        program = find_program(build=build)
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-s3-"))
        self._reaper = ProcessReaper()
        self._reaper.watch_folder(str(self.folder))
        (self.folder / "buckets" / bucket).mkdir(parents=True)
        self._access, self._secret = secrets.token_hex(10), secrets.token_hex(20)
        try:
            self.port = self._start(program)
        except BaseException:
            self._reaper.close()
            raise
        self.url = f"s3://{bucket}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use the bucket."""
        return {
            "AWS_ACCESS_KEY_ID": self._access,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def close(self) -> None:
        """End the server and remove its folder."""
        self._reaper.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, program: Path) -> int:
        port = free_port()
        log = self.folder / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [program, "--quiet", "--region", REGION, "--port", f"127.0.0.1:{port}", "posix", "buckets"],
                cwd=self.folder,
                env={"ROOT_ACCESS_KEY": self._access, "ROOT_SECRET_KEY": self._secret, "HOME": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._reaper.watch_group(self._process.pid)
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(errors="replace").splitlines() or ["it printed nothing"]
                raise OSError(f"the S3 server did not start: {one_line(lines[-1])}")
            time.sleep(0.02)
        return port


def find_program(*, build: bool = True) -> Path:
    """Return the server's program; builds it where there is none. Raises `BadInput` where that cannot be done."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    kept = cache / f"versitygw-{VERSION}"
    if kept.exists():
        return kept
    if on_path := shutil.which("versitygw"):
        return Path(on_path)
    if not build:
        raise BadInput("no S3 server: versitygw is not built", remedy="run `python -m holdfast_lab.s3_server` once")
    go = shutil.which("go")
    if go is None:
        raise BadInput("no S3 server: neither versitygw nor Go is on the PATH", remedy="install one of them")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "versitygw.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _build(go, Path(folder))
            Path(folder, "versitygw").replace(kept)
    return kept


def _build(go: str, folder: Path) -> None:
    try:
        done = subprocess.run(
            [go, "install", f"{MODULE}@{VERSION}"],
            env={**os.environ, "GOBIN": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"no S3 server: building versitygw took more than {BUILD_SECONDS} s",
            remedy="run `python -m holdfast_lab.s3_server` again: what was built is kept",
        ) from None
    if done.returncode:
        lines = done.stderr.splitlines() or ["no output"]
        raise BadInput(
            f"no S3 server: go install failed: {one_line(lines[-1], 200)}",
            remedy="install versitygw, or let Go fetch its modules",
        )


def free_port() -> int:
    """Return a port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_program()}\n")
    except BadInput as missing:
        sys.exit(str(missing))

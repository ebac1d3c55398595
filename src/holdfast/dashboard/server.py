"""A small HTTP server for one run: a table of routes, answered by threads, bounded in number and time.

It runs beside the driver or in `holdfast dashboard`. A handler takes a `Request` and returns an `Answer`; the table
maps paths to `Route`. What a handler raises becomes one line and a status; nothing here reaches the run.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from holdfast.dashboard.guard import LOOPBACK, SECURITY_HEADERS, refused
from holdfast.errors import BadInput, HoldfastError, one_line

_LOG = logging.getLogger("holdfast.dashboard")
MOST_CONNECTIONS = 64
MOST_BODY = 4096
READ_SECONDS = 15.0
"""How long a connection may take to send or to receive something before it is closed."""
PORTS_TRIED = 16


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: a body, or pieces that follow one another until the reader goes."""

    body: bytes = b""
    content_type: str = "application/json; charset=utf-8"
    status: int = 200
    pieces: Iterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Answer]


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers a path, and how it may be asked."""

    handler: Handler
    changes: bool = False
    """Asked by POST, and with the token; all others are asked by GET."""


def as_json(value: Any, status: int = 200) -> Answer:
    """Answer with JSON."""
    return Answer(json.dumps(value, separators=(",", ":"), allow_nan=False, default=str).encode(), status=status)


def as_text(text: str, content_type: str = "text/plain; charset=utf-8", status: int = 200) -> Answer:
    """Answer with text."""
    return Answer(text.encode(), content_type, status)


class PageServer:
    """Listens until it is closed."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        """Listen at a port; where that is taken, at one of the next, else at any. `token` lets requests change things.

        On loopback it answers by loopback's names only; elsewhere by every name.
        """
        self._routes, self._token = dict(routes), token
        self._allowed = LOOPBACK if host in LOOPBACK else None
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        server = self._listen(host, port)
        self._server = server
        name, bound = server.server_address[:2]
        shown = f"[{name!s}]" if ":" in str(name) else str(name)
        self.host, self.port = str(name), int(bound)
        self.url = f"http://{shown}:{bound}/"
        self._thread = threading.Thread(target=server.listen, name="holdfast-page", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._server.connections

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all threads of the page so far: of the one that listens, and of connections, open or ended."""
        return self._server.cpu_seconds()

    def _listen(self, host: str, port: int) -> _Server:
        tried = [port, *range(port + 1, min(65536, port + PORTS_TRIED)), 0] if port else [0]
        handler = _handler_class(self)
        problem: OSError | None = None
        for one in tried:
            try:
                return _Server(self._room, host, one, handler)
            except OSError as error:
                problem = error
        raise BadInput(
            f"the page cannot listen at {host}: {problem}",
            field="spark.holdfast.page.host",
            remedy="name an address of this machine, or switch the page off: spark.holdfast.page.enabled=false",
        )

    def close(self) -> None:
        """Listen no more; connections that are open end with their next piece."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer one request; a function of its arguments and of what handlers say."""
        parts = urlsplit(target)
        route = self._routes.get(parts.path)
        refusal = refused(headers, allowed=self._allowed, changes=bool(route and route.changes), token=self._token)
        if refusal is not None:
            return as_json({"error": refusal.why}, refusal.status)
        if route is None:
            return as_json({"error": "there is nothing here; see /api"}, 404)
        wanted = ("POST",) if route.changes else ("GET", "HEAD")
        if method not in wanted:
            answer = as_json({"error": f"ask with {wanted[0]}"}, 405)
            return Answer(answer.body, status=405, headers={"Allow": ", ".join(wanted)})
        try:
            return route.handler(Request(method, parts.path, dict(parse_qsl(parts.query)), body))
        except HoldfastError as error:
            return as_json({"error": one_line(str(error))}, 400)
        except Exception:  # a fault of the page is not one of the run
            _LOG.exception("the page cannot answer %s", parts.path)
            return as_json({"error": "the page failed to answer; the driver's log says why"}, 500)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, room: threading.BoundedSemaphore, host: str, port: int, handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = room
        self._counting = threading.Lock()
        self._ended_seconds, self._running = 0.0, set[int]()
        """CPU time of threads that have ended, and those that run."""
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        # HTTPServer would look its own name up, which may take seconds.
        self.allow_reuse_address = True
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            # What was not read when a connection is closed resets it, and the answer may be lost with it.
            request.settimeout(0.2)
            with suppress(OSError):
                request.recv(65536)
            with suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def listen(self) -> None:
        """Take connections until the server is shut down."""
        with self._counted():
            self.serve_forever(poll_interval=0.2)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._counted():
            try:
                super().process_request_thread(request, client_address)
            finally:
                self._room.release()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the CPU time of this thread, while it runs and afterwards."""
        mine = threading.get_ident()
        with self._counting:
            self._running.add(mine)
        try:
            yield
        finally:
            with self._counting:
                self._running.discard(mine)
                self._ended_seconds += time.thread_time()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        with self._counting:
            return max(0, len(self._running) - 1)  # one listens

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads so far."""
        with self._counting:
            running = sum(time.clock_gettime(time.pthread_getcpuclockid(one)) for one in self._running)
            return self._ended_seconds + running

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away, or took too long, is no error."""


def _handler_class(page: PageServer) -> type[BaseHTTPRequestHandler]:
    class PageRequestHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "holdfast"
        sys_version = ""
        timeout = READ_SECONDS

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def do_OPTIONS(self) -> None:
            self._answer()

        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self._body(headers)
            if body is None:
                self.close_connection = True
                answer = as_json({"error": f"the body must have a length of at most {MOST_BODY} bytes"}, 413)
            else:
                answer = page.answer(self.command, self.path, headers, body)
            try:
                self._send(answer)
            except OSError:
                self.close_connection = True  # the reader has gone, or is too slow

        def _body(self, headers: Mapping[str, str]) -> bytes | None:
            if "transfer-encoding" in headers:
                return None
            try:
                length = int(headers.get("content-length", "0"))
            except ValueError:
                return None
            return self.rfile.read(length) if 0 <= length <= MOST_BODY else None

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in {**SECURITY_HEADERS, **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", answer.content_type)
            if answer.pieces is None:
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)
                return
            self.close_connection = True
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                for piece in answer.pieces:
                    self.wfile.write(piece)
                    self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: the run's log is for the run."""

    return PageRequestHandler

"""The page of one run: its event file folded on demand, its routes, its token. Runs beside the driver, or alone.

Nothing is computed while nobody looks. All who look share one view, made at most a few times a second, whatever the
rate of events, and less often where it takes long to make; each stream sends what changed since its last message, and
streams that are at the same view share that message.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast.dashboard.changes import changes
from holdfast.dashboard.event_reader import EventReader
from holdfast.dashboard.metric_totals import MetricTotals
from holdfast.dashboard.metrics import CONTENT_TYPE, exposition
from holdfast.dashboard.server import Answer, PageServer, Request, Route, as_json, as_text
from holdfast.dashboard.view import view_of
from holdfast.dashboard.view_model import RunModel
from holdfast.errors import BadInput, HoldfastError

TICK_SECONDS = 0.25
"""A view is made anew at most so often."""
MOST_TICK_SECONDS = 2.0
"""And at least so often, while a browser is connected."""
STANDING_SECONDS = 1.0
"""A view stands so long where no event comes: ages in it, the estimate of a recovery among them, go on so often."""
CORE_SHARE = 0.005
"""In between, views take no more than this share of a core: one that takes long to make is made less often."""
BEAT_SECONDS = 5.0
"""A stream sends something at least so often, so that a reader that has gone is noticed."""
DRIVER_SECONDS = 5.0
"""How often it is looked whether the driver is alive."""
MOST_STREAMS = 24
TOKEN_FILE = "page-token"
_SCRIPT = "text/javascript; charset=utf-8"
_STATIC = {
    "/": ("page.html", "text/html; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", _SCRIPT) for name in ("page", "dom", "topology", "recovery", "what_if")},
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
"""The page's own files, by path."""


class LivePage:
    """Everything the page shows of one run."""

    def __init__(
        self,
        events: Path,
        *,
        resume: Callable[[str], Mapping[str, Any]] | None = None,
        what_if: Callable[[Mapping[str, str]], Mapping[str, Any]] | None = None,
        driver: Callable[[], str | None] = lambda: None,
        topology: Callable[[], tuple[object, Mapping[str, str]] | None] = lambda: None,
        ring: Callable[[], Mapping[str, Any] | None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`events` is the run's event file; the rest are what only storage, the store or a planner know.

        `driver` says whether the driver is `alive`, `gone` or has `ended`; `topology` is asked where the log has none.
        """
        self._reader, self._model, self._totals = EventReader(events), RunModel(), MetricTotals()
        self._resume, self._what_if = resume, what_if
        self._driver_of, self._topology_of, self._ring_of, self._now = driver, topology, ring, now
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._view: dict[str, Any] | None = None
        self._made_at = self._due_at = self._driver_at = -1e9
        self._message: tuple[Any, Any, bytes] | None = None
        """The last message of a stream, with the views that it leads from and to."""
        self._driver: str | None = None
        self._streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.cpu_seconds: Callable[[], float | None] = lambda: None
        """What the page's threads have cost so far; None: no server runs."""

    # -- the view ------------------------------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """Return the newest view, at most a tick old."""
        with self._lock:
            clock = time.monotonic()
            if self._view is None or clock >= self._due_at:
                began = time.thread_time()
                self._view = self._make(clock)
                self._due_at = time.monotonic() + pause_after(time.thread_time() - began)
            return self._view

    def _make(self, clock: float) -> dict[str, Any]:
        """Return the view now: the last one where no event has come since, for as long as times in it may stand."""
        before = self._model.seen
        for event in self._reader.read():
            self._model.take(event)
            self._totals.take(event)
        if self._view is not None and self._model.seen == before and clock - self._made_at < STANDING_SECONDS:
            return self._view
        self._made_at = clock
        if clock - self._driver_at >= DRIVER_SECONDS:
            self._driver_at = clock
            with suppress(OSError, HoldfastError):
                self._driver = self._driver_of()
            if self._model.topology is None:
                with suppress(OSError, HoldfastError):
                    found = self._topology_of()
                    if found is not None:
                        self._model.describe(*found)
        return view_of(self._model, self._now(), driver=self._driver, ring=self._ring_of())

    def close(self) -> None:
        """End all streams."""
        self._closing.set()
        with self._lock:
            self._reader.close()

    # -- routes --------------------------------------------------------------------------------------------------------

    def routes(self) -> dict[str, Route]:
        """Return who answers which path."""
        found = {path: Route(_file_handler(name, kind)) for path, (name, kind) in _STATIC.items()}
        found |= {
            "/healthz": Route(self._healthz),
            "/metrics": Route(self._metrics),
            "/api": Route(lambda asked: as_json(API)),
            "/api/view": Route(lambda asked: as_json({"now": self._now(), **self.view()})),
            "/api/stream": Route(self._stream),
            "/api/what-if": Route(self._what_if_answer),
            "/api/resume": Route(self._resume_answer, changes=True),
        }
        return found

    def _healthz(self, asked: Request) -> Answer:
        """Say whether the run is well: 200 while it runs, 503 where its driver is gone or it failed."""
        view = self.view()
        state = view["run"]["state"]
        well = state not in ("gone", "failed")
        document = {"status": "ok" if well else "failed", "state": state, "headline": view["headline"]["text"]}
        return as_json(document, 200 if well else 503)

    def _metrics(self, asked: Request) -> Answer:
        """Answer Prometheus; counters are those of the events that the view has."""
        view = self.view()
        with self._lock:
            self._totals.page_cpu_seconds = self.cpu_seconds()
            text = exposition(view, self._totals, self._now())
        return as_text(text, CONTENT_TYPE)

    def _stream(self, asked: Request) -> Answer:
        if not self._streams.acquire(blocking=False):
            return as_json({"error": "too many streams are open; ask /api/view instead"}, 503)
        return Answer(content_type="text/event-stream; charset=utf-8", pieces=_Releasing(self._pieces(), self._streams))

    def _pieces(self) -> Iterator[bytes]:
        before: dict[str, Any] | None = None
        sent_at = time.monotonic()
        yield b"retry: 1000\n\n"
        while not self._closing.is_set():
            view = self.view()
            piece = b"" if view is before else self._piece(before, view)
            if not piece and time.monotonic() - sent_at >= BEAT_SECONDS:
                piece = self._written(None, {})
            if piece:
                yield piece
                sent_at = time.monotonic()
            before = view
            self._closing.wait(TICK_SECONDS)

    def _piece(self, before: dict[str, Any] | None, view: dict[str, Any]) -> bytes:
        """Return the message from one view to another, made once for all streams; nothing where nothing changed."""
        held = self._message
        if held is not None and held[0] is before and held[1] is view:
            return held[2]
        changed = changes(before, view)
        piece = self._written(before, changed) if changed else b""
        if before is not None:
            self._message = before, view, piece
        return piece

    def _written(self, before: dict[str, Any] | None, changed: dict[str, Any]) -> bytes:
        message = {"now": self._now(), "whole": before is None and bool(changed), "changed": changed}
        return b"data: " + json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n\n"

    def _what_if_answer(self, asked: Request) -> Answer:
        if self._what_if is None:
            return as_json({"error": "this page has no run's directory to plan with"}, 404)
        return as_json(self._what_if(asked.query))

    def _resume_answer(self, asked: Request) -> Answer:
        if self._resume is None:
            return as_json({"error": "this page has no run's directory to write a request to"}, 404)
        try:
            query = json.loads(asked.body)["query"]
        except (ValueError, KeyError, TypeError):
            raise BadInput("the body is not a query", remedy='send {"query": "jams[0]"}') from None
        if not isinstance(query, str):
            raise BadInput("the body is not a query", remedy='send {"query": "jams[0]"}')
        return as_json(self._resume(query), 202)


def pause_after(cpu_seconds: float) -> float:
    """Return for how many seconds a view is kept, by the CPU seconds that it took to make."""
    return min(MOST_TICK_SECONDS, max(TICK_SECONDS, cpu_seconds / CORE_SHARE))


class _Releasing:
    """Pieces of a stream; its place is free again when it ends, however that comes about."""

    def __init__(self, pieces: Iterator[bytes], places: threading.BoundedSemaphore) -> None:
        self._pieces, self._places = pieces, places
        self._held = True

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        finally:
            self._release()

    def __next__(self) -> bytes:
        return next(self._pieces)

    def __del__(self) -> None:
        self._release()

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._places.release()


def _file_handler(name: str, kind: str) -> Callable[[Request], Answer]:
    text = (files("holdfast.dashboard") / "static" / name).read_text()
    return lambda asked: as_text(text, kind)


def token_of(folder: Path) -> str:
    """Return the token of a run, made where there is none: a file in its folder that its owner alone may read."""
    path = folder / TOKEN_FILE
    with suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    if path.stat().st_mode & 0o077:
        raise BadInput("others may read it", where=str(path), remedy=f"chmod 600 {path}, or delete it")
    token = path.read_text().strip()
    if len(token) < 16:
        raise BadInput("has no token", where=str(path), remedy="delete it: the next start makes a new one")
    return token


def serve(page: LivePage, *, host: str, port: int, token: str | None) -> PageServer:
    """Let a page be asked over HTTP."""
    server = PageServer(page.routes(), host=host, port=port, token=token)
    page.cpu_seconds = lambda: server.cpu_seconds
    return server


API = {
    "holdfast": 1,
    "routes": {
        "GET /": "the page",
        "GET /healthz": "200 while the run is well, 503 where it failed or its driver is gone",
        "GET /metrics": "metrics for Prometheus",
        "GET /api/view": "everything the page shows, as one document",
        "GET /api/stream": "server-sent events: the view, then the sections and partitions that change",
        "GET /api/what-if?lose=NODES": "what would be down: NODES is a number, or names: a,b; or ?domain=RACK",
        "POST /api/resume": 'lets a parked query go on: {"query": "jams[0]"}; needs Authorization: Bearer TOKEN',
    },
}
"""What `/api` answers."""

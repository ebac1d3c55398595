"""The page's server on loopback: routes, token, origin, hosts, hostile names, slow readers, streams."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dashboard.made_up import Log, lines, topology, write
from holdfast.dashboard.guard import SECURITY_HEADERS, host_name, refused
from holdfast.dashboard.page import (
    CORE_SHARE,
    MOST_TICK_SECONDS,
    TICK_SECONDS,
    TOKEN_FILE,
    LivePage,
    pause_after,
    serve,
    token_of,
)
from holdfast.dashboard.server import MOST_BODY, Answer, PageServer, Request, Route, as_json
from holdfast.dashboard.view_model import RunModel
from holdfast.errors import BadInput

TOKEN = "only-a-test-has-this-token"
HOSTILE = "<img src=x onerror=alert(1)>"


@dataclass
class Served:
    page: LivePage
    server: PageServer
    file: Path
    log: Log
    resumed: list[str]

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def post(self, body: object, **headers: str) -> int:
        return self.ask("/api/resume", "POST", json.dumps(body).encode(), **headers)[0]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    log = Log(topology(("s", 2), ("m", 4), ("out", 2))).started()
    file = write(tmp_path / "run" / "events.jsonl", log.events)
    resumed: list[str] = []

    def resume(query: str) -> dict[str, Any]:
        if query != "out[0]":
            raise BadInput(f"no query {query!r} is parked")
        resumed.append(query)
        return {"queries": [query], "request": 0}

    page = LivePage(file, resume=resume, now=lambda: log.at)
    server = serve(page, host="127.0.0.1", port=0, token=TOKEN)
    yield Served(page, server, file, log, resumed)
    page.close()
    server.close()


def test_the_page_and_its_files_have_security_headers(served: Served) -> None:
    for path in ("/", "/page.css", "/page.js", "/dom.js", "/topology.js", "/recovery.js", "/what_if.js", "/api"):
        status, headers, body = served.ask(path)
        assert (status, bool(body)) == (200, True), path
        for name, value in SECURITY_HEADERS.items():
            assert headers[name.lower()] == value
    html = served.ask("/")[2].decode()
    found = [one for one in ("<script>", "style=", "onclick", "http://", "https://") if one in html]
    assert found == [], "the policy would refuse scripts and styles in it, and what comes from elsewhere"


def test_the_view_and_health(served: Served) -> None:
    status, headers, body = served.ask("/api/view")
    view = json.loads(body)
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    assert view["headline"]["text"] == "8 of 8 partitions live, every query is up"
    status, _, body = served.ask("/healthz")
    assert (status, json.loads(body)["status"]) == (200, "ok")
    write(served.file, [{"at": served.log.at + 1, "event": "ended", "start": "one", "problem": "the disk is full"}])
    served.page._due_at = -1e9
    status, _, body = served.ask("/healthz")
    assert (status, json.loads(body)["state"]) == (503, "failed")


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/nothing", "GET", 404),
        ("/../page.py", "GET", 404),
        ("/static/page.py", "GET", 404),
        ("//etc/passwd", "GET", 404),
        ("/api/view", "POST", 405),
        ("/api/view", "DELETE", 405),
        ("/", "PUT", 405),
    ],
)
def test_unknown_paths_and_methods(served: Served, path: str, method: str, status: int) -> None:
    assert served.ask(path, method)[0] == status


def test_resume_needs_the_token_and_nothing_else_does(served: Served) -> None:
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert served.post({"query": "out[0]"}) == 401
    assert served.post({"query": "out[0]"}, Authorization="Bearer wrong") == 401
    assert served.ask("/api/resume", **right)[0] == 405
    assert served.resumed == []
    assert served.post({"query": "out[0]"}, **right) == 202
    assert served.resumed == ["out[0]"]
    assert served.post({"query": "out[9]"}, **right) == 400
    assert served.post({"query": 5}, **right) == 400
    assert served.post(["out[0]"], **right) == 400
    assert served.ask("/api/resume", "POST", b"x" * (MOST_BODY + 1), **right)[0] == 413
    assert served.resumed == ["out[0]"]


def test_another_origin_is_refused_even_with_the_token(served: Served) -> None:
    port, right = served.server.port, f"Bearer {TOKEN}"
    assert served.post({"query": "out[0]"}, Authorization=right, Origin="http://evil.example") == 403
    assert served.post({"query": "out[0]"}, Authorization=right, Origin="null") == 403
    assert served.ask("/api/view", Origin="http://evil.example")[0] == 403
    assert served.ask("/api/view", Host="evil.example")[0] == 403, "a name that resolves to loopback"
    assert served.ask("/api/view", Host=f"evil.example:{port}")[0] == 403
    assert served.ask("/api/view", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors")[0] == 403
    assert served.resumed == []
    own = f"127.0.0.1:{port}"
    assert served.post({"query": "out[0]"}, Authorization=right, Origin=f"http://{own}") == 202
    assert "access-control-allow-origin" not in served.ask("/api/view")[1]


def test_hosts_and_their_names() -> None:
    assert [host_name(one) for one in ("127.0.0.1:4050", "LOCALHOST", "[::1]:4050", "a.example:1")] == [
        "127.0.0.1",
        "localhost",
        "::1",
        "a.example",
    ]
    assert refused({"host": "any.example"}, allowed=None, changes=False, token=None) is None
    without = refused({"host": "x"}, allowed=None, changes=True, token=None)
    assert getattr(without, "status", None) == 403, "a page without a token changes nothing"


def test_hostile_names_are_data(served: Served) -> None:
    write(
        served.file,
        [
            {
                "at": served.log.at,
                "event": "parked",
                "query": HOSTILE,
                "partition": HOSTILE,
                "batch": 1,
                "error": HOSTILE,
            },
            {"at": served.log.at, "event": "node-arrived", "nodes": [HOSTILE], "capacity": {}},
        ],
    )
    served.log.document["operators"][0]["id"] = HOSTILE
    with pytest.raises(BadInput):
        RunModel().describe(served.log.document, {})
    status, headers, body = served.ask("/api/view")
    assert status == 200
    assert headers["content-type"].startswith("application/json")
    assert headers["x-content-type-options"] == "nosniff"
    assert json.loads(body)["nodes"][0]["name"] == HOSTILE


def _messages(stream: socket.socket) -> Iterator[dict[str, Any]]:
    data = b""
    while True:
        while b"\n\n" in data:
            message, _, data = data.partition(b"\n\n")
            if (at := message.find(b"data: ")) >= 0:
                yield json.loads(message[at + 6 :])
        piece = stream.recv(65536)
        if not piece:
            return
        data += piece


def _stream(port: int) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", port), timeout=60)
    stream.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return stream


def test_a_stream_sends_the_view_and_then_only_what_changes(served: Served) -> None:
    with _stream(served.server.port) as stream:
        messages = _messages(stream)
        first = next(messages)
        assert first["whole"]
        assert len(first["changed"]["partitions"]) == 8
        served.log.after(1).lose("node-1", "m[1]")
        write(served.file, served.log.events[-2:])
        second = next(messages)
        assert not second["whole"]
        assert list(second["changed"]["partitions"]) == ["m[1]"]
        assert "operators" not in second["changed"]
        assert "checkpoint" not in second["changed"]


def test_a_view_that_takes_long_is_made_less_often() -> None:
    assert pause_after(0.0) == TICK_SECONDS
    assert pause_after(0.003) == pytest.approx(0.003 / CORE_SHARE)
    assert pause_after(10.0) == MOST_TICK_SECONDS, "and a large history is read once"


def test_the_page_counts_what_its_threads_cost(served: Served) -> None:
    served.ask("/api/view")
    _, _, body = served.ask("/metrics")
    (told,) = [line for line in body.decode().splitlines() if line.startswith("holdfast_page_cpu_seconds_total")]
    first = float(told.split()[1])
    assert first > 0
    served.ask("/api/view")
    assert served.server.cpu_seconds > first, "of connections that are open, and of those that have ended"


def test_a_reader_that_reads_nothing_holds_up_nobody(served: Served) -> None:
    idle = [_stream(served.server.port) for _ in range(3)]
    half = socket.create_connection(("127.0.0.1", served.server.port), timeout=60)
    half.sendall(b"GET / HTTP/1.1\r\nHost: loc")
    try:
        for number in range(300):
            served.log.after(0.01).state("m[1]", "", "lost" if number % 2 else "running", "node-1")
        write(served.file, served.log.events[-300:])
        served.page._due_at = -1e9
        assert served.ask("/api/view")[0] == 200
    finally:
        for one in (*idle, half):
            one.close()


def test_too_many_streams_and_connections_are_turned_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.page._streams = threading.BoundedSemaphore(1)
    with _stream(served.server.port) as stream:
        next(_messages(stream))
        assert served.ask("/api/stream")[0] == 503
        deadline = time.monotonic() + 60
        while served.server.connections > 1 and time.monotonic() < deadline:
            time.sleep(0.01)  # the one that was refused is still being closed, and would make room again
        for _ in range(64):
            if not served.server._room.acquire(blocking=False):
                break
        connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=30)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 503
        connection.close()


def test_what_a_handler_raises_is_a_status_and_the_next_request_is_answered() -> None:
    def fail(asked: Request) -> Answer:
        raise RuntimeError("a fault")

    server = PageServer({"/": Route(fail), "/well": Route(lambda asked: as_json(dict(asked.query)))})
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert (answer.status, b"a fault" in answer.read()) == (500, False)
        connection.request("GET", "/well?a=%3Cb%3E")
        answer = connection.getresponse()
        assert json.loads(answer.read()) == {"a": "<b>"}
        connection.close()
    finally:
        server.close()


def test_a_port_that_is_taken_gives_the_next_one() -> None:
    first = PageServer({})
    try:
        second = PageServer({}, port=first.port)
        assert second.port != first.port
        second.close()
    finally:
        first.close()
    with pytest.raises(BadInput, match="cannot listen"):
        PageServer({}, host="203.0.113.1")


def test_the_token_is_a_file_that_its_owner_alone_reads(tmp_path: Path) -> None:
    token = token_of(tmp_path)
    path = tmp_path / TOKEN_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(tmp_path) == token
    assert len(token) > 30
    path.chmod(0o644)
    with pytest.raises(BadInput, match="others may read"):
        token_of(tmp_path)


def test_a_log_that_grows_is_rotated_and_damaged(tmp_path: Path) -> None:
    from holdfast.dashboard.event_reader import EventReader

    file = tmp_path / "events.jsonl"
    reader = EventReader(file)
    assert list(reader.read()) == [], "there is no file yet"
    write(file, [{"at": 1, "event": "a"}])
    with file.open("a") as open_file:
        open_file.write('{"at": 2, "eve')
        open_file.flush()
        assert [one["at"] for one in reader.read()] == [1]
        open_file.write('nt": "b"}\nno json\n[1]\n')
        open_file.flush()
        assert list(reader.read()) == [{"at": 2, "event": "b"}, {}, {}]
        open_file.write(lines([{"at": 3, "event": "c"}]))
    file.replace(tmp_path / "events.1.jsonl")
    write(file, [{"at": 4, "event": "d"}])
    assert [one["at"] for one in reader.read()] == [3, 4]
    reader.close()
    again = EventReader(file)
    assert [one.get("at") for one in again.read()] == [1, 2, None, None, 3, 4]
    again.close()

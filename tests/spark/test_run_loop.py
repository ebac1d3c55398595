"""The thread of a run, without Spark: how it ends, by the input, by a request and by a failure."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId
from holdfast.runtime.coordinator.publishing import Publishing, PublishSettings
from holdfast.runtime.coordinator.sink_calls import InlineRunner
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.program import Program
from holdfast.spark.feed import GivenFeed
from holdfast.spark.run_loop import RunLoop
from holdfast.storage.memory import MemoryStorage


class Fake:
    """A run, its feed and its view in one: what is called is written down."""

    def __init__(self, batches: float = 0, *, live: bool = True, fails: dict[str, Exception] | None = None) -> None:
        self.left, self.live, self.fails = batches, live, fails or {}
        self.calls: list[str] = []
        self.program = SimpleNamespace(name="fake")
        self.logged = self.processed = -1
        self.coordinator = SimpleNamespace(
            status=self,
            outputs=SimpleNamespace(publishing=Publishing({}, InlineRunner(), PublishSettings(), time.monotonic)),
            busy=False,
            read_reports=lambda: None,
            publish_gathered=self._publish_gathered,
            run=self._rest,
        )
        self.worked_once, self.waiting, self.waits = threading.Event(), threading.Event(), False

    def _call(self, name: str) -> None:
        if not self.calls or self.calls[-1] != name:
            self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def _rest(self, gives_up: Callable[[], bool]) -> None:
        self.processed = self.logged

    published = 0

    def _publish_gathered(self, gives_up: Callable[[], bool]) -> None:
        self.published += 1
        if "publish_gathered" in self.fails:
            raise self.fails["publish_gathered"]

    def logged_rows(self, batch: BatchId) -> dict[str, int]:
        return {"rows": 1}

    def marks_logged(self) -> Callable[[], bool]:
        return lambda: True

    # the feed
    @property
    def reading(self) -> bool:
        return self.left > 0

    def log_batches(self) -> bool:
        if self.left > 0:
            self.left -= 1
            self.logged += 1
            return True
        return False

    def available(self) -> Callable[[], bool]:
        return lambda: self.left == 0

    def stop(self) -> None:
        self._call("feed.stop")

    pending = False
    ends = True

    # the run
    closed = False
    all_parked = False
    parked_problem: Exception | None = None
    can_go_on = False
    standing = 0

    def take_requests(self) -> None:
        """Nobody has asked for anything."""

    def advance(self) -> bool:
        self._call("advance")
        worked, self.processed = self.processed < self.logged, self.logged
        self.worked_once.set()
        return worked

    def run(self, *, gives_up: Callable[[], bool]) -> None:
        self._call("run")
        if self.waits:
            self.waiting.set()
            while not gives_up():
                time.sleep(0.005)

    def log(self, batch: object, *, last: bool = False) -> None:
        self._call("close windows")

    def checkpoint(self, *, gives_up: Callable[[], bool]) -> None:
        self._call("checkpoint")

    # the view
    has_news = False

    def advanced(self) -> dict[str, Any] | None:
        return {"batchId": self.processed}

    def all_live(self) -> bool:
        return self.live

    def is_published(self, through: int) -> bool:
        return self.processed >= through

    def checkpoint_batch(self) -> int:
        return self.processed


def loop_of(fake: Fake, lines: list[str] | None = None, *, close: bool = False) -> RunLoop:
    held = ExitStack()
    held.callback(fake.calls.append, "released")
    log = (lambda line: None) if lines is None else lines.append
    loop = RunLoop(fake, fake, fake, held, close=close, log=log)  # type: ignore[arg-type]
    loop.start()
    return loop


def test_an_input_that_ends_is_finished_with_a_checkpoint() -> None:
    fake = Fake(3)
    loop = loop_of(fake, close=True)
    loop.process_all_available()
    assert fake.processed == 2
    assert loop.wait(10)
    assert loop.problem is None
    assert fake.calls == ["advance", "feed.stop", "close windows", "run", "checkpoint", "released"]
    assert [one["batchId"] for one in loop.reports][-1] == 2


class ReadLater(Fake):
    """Its last rows are read while nothing else is to do, as where a sink is at work or a node is lost."""

    read = False

    @property
    def pending(self) -> bool:  # type: ignore[override]
        return self.read and self.logged == 0

    def log_batches(self) -> bool:
        if self.pending:
            self.logged += 1
            return True
        return super().log_batches()

    def advance(self) -> bool:
        self._call("advance")
        return False

    def _rest(self, gives_up: Callable[[], bool]) -> None:
        self.read, self.processed = True, self.logged


def test_behind_the_last_rows_there_is_a_batch_that_moves_watermarks() -> None:
    """A run of `--available-now` with a single batch gave nothing: no window closed."""
    fake = ReadLater(1)
    loop = loop_of(fake)
    assert loop.wait(10)
    assert loop.problem is None
    assert (fake.logged, fake.processed) == (1, 1)
    assert fake.calls == ["advance", "feed.stop", "run", "checkpoint", "released"]


class Parked(Fake):
    """A run whose queries are all parked, from the beginning or after its first batch, until it takes a request."""

    def __init__(self, batches: int, *, at_once: bool) -> None:
        super().__init__(batches)
        self.all_parked = at_once

    def take_requests(self) -> None:
        self.all_parked = False

    def advance(self) -> bool:
        self.all_parked = self.logged == 0 and self.left > 0
        return super().advance()

    def run(self, *, gives_up: Callable[[], bool]) -> None:
        super().run(gives_up=gives_up)
        if self.all_parked:
            raise BadInput("parked")


def test_windows_stay_open_where_all_queries_are_parked_before_the_input_has_ended() -> None:
    """What is in no batch yet is read by the next start: nothing can follow a batch that closes the sources."""
    fake = Parked(3, at_once=False)
    loop = loop_of(fake, close=True)
    assert loop.wait(10)
    assert str(loop.problem) == "parked"
    assert fake.left == 2, "not all of the input is read"
    assert fake.calls == ["advance", "feed.stop", "run", "released"]


def test_queries_that_were_resumed_while_no_driver_ran_go_on() -> None:
    """A run whose input has an end ends where all its queries are parked: not before it has looked for requests."""
    fake = Parked(1, at_once=True)
    loop = loop_of(fake)
    assert loop.wait(10)
    assert loop.problem is None
    assert fake.processed == 0


def test_a_requested_stop_drains_and_takes_a_checkpoint() -> None:
    fake, lines = Fake(float("inf")), list[str]()
    loop = loop_of(fake, lines)
    assert fake.worked_once.wait(10)
    loop.request_stop()
    assert loop.wait(10)
    assert loop.problem is None
    assert fake.calls == ["advance", "feed.stop", "checkpoint", "released"]
    assert "the next start continues" in lines[-1]


class SlowToStop(Fake):
    """Whoever waits for a source gets an exception once it is stopped; the drain takes until somebody lets it end."""

    def __init__(self) -> None:
        super().__init__(math.inf)
        self.asked, self.stopped, self.draining, self.drained = (threading.Event() for _ in range(4))

    def available(self) -> Callable[[], bool]:
        self.asked.set()
        assert self.stopped.wait(10)
        raise RuntimeError("the query was stopped")

    def stop(self) -> None:
        super().stop()
        self.stopped.set()

    def checkpoint(self, *, gives_up: Callable[[], bool]) -> None:
        super().checkpoint(gives_up=gives_up)
        self.draining.set()
        assert self.drained.wait(10)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_stop_while_all_available_is_awaited_waits_for_the_drain(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception of a source that was stopped came out after five seconds of a drain, and cut the rest off."""

    def ended_soon(self: RunLoop) -> bool:
        self.request_stop()  # where it was not before
        return False

    monkeypatch.setattr(RunLoop, "_ended_soon", ended_soon)
    fake = SlowToStop()
    loop = loop_of(fake)

    def process() -> bool:
        loop.process_all_available()
        return loop.active

    with ThreadPoolExecutor(1) as pool:
        processing = pool.submit(process)
        assert fake.asked.wait(10)
        if is_first:
            loop.request_stop()
        else:
            fake.stopped.set()
        assert fake.draining.wait(10)
        fake.drained.set()
        assert processing.result() is False, "it has ended"
    assert loop.problem is None
    assert fake.calls[-2:] == ["checkpoint", "released"]


def test_a_stop_during_a_recovery_does_not_wait_for_nodes() -> None:
    fake, lines = Fake(float("inf"), live=False), list[str]()
    loop = loop_of(fake, lines)
    assert fake.worked_once.wait(10)
    loop.request_stop()
    assert loop.wait(10)
    assert "checkpoint" not in fake.calls
    assert any("no checkpoint was taken" in line for line in lines)


def test_a_stop_ends_the_wait_for_nodes_of_an_input_that_has_ended() -> None:
    """Waiting for nodes has no end of its own."""
    fake, lines = Fake(3, live=False), list[str]()
    fake.waits = True
    loop = loop_of(fake, lines)
    assert fake.waiting.wait(10)
    loop.request_stop()
    assert loop.wait(10)
    assert loop.problem is None
    assert "checkpoint" not in fake.calls
    assert any("no checkpoint was taken" in line for line in lines)


@pytest.mark.parametrize("error", [OSError("the JVM is gone"), CheckFailed("no node")])
def test_a_stop_after_spark_has_gone_is_still_a_stop(error: Exception) -> None:
    fake, lines = Fake(float("inf"), fails={"checkpoint": error, "feed.stop": OSError("gone")}), list[str]()
    loop = loop_of(fake, lines)
    assert fake.worked_once.wait(10)
    loop.request_stop()
    assert loop.wait(10)
    assert loop.problem is None
    assert any(str(error) in line and "the next start processes them" in line for line in lines)
    assert fake.published == 1, "gathered outputs are published all the same"


def test_a_stop_that_cannot_publish_gathered_rows_is_still_a_stop() -> None:
    fake, lines = Fake(float("inf"), fails={"publish_gathered": OSError("the JVM is gone")}), list[str]()
    loop = loop_of(fake, lines)
    assert fake.worked_once.wait(10)
    loop.request_stop()
    assert loop.wait(10)
    assert loop.problem is None
    assert "gathered rows were not published: the JVM is gone" in "".join(lines)
    assert "the next start continues" in lines[-1]


def test_a_failure_is_kept_and_everything_is_released() -> None:
    fake = Fake(float("inf"), fails={"advance": BadInput("wrong")})
    loop = loop_of(fake)
    assert loop.wait(10)
    assert str(loop.problem) == "wrong"
    assert fake.calls == ["advance", "feed.stop", "released"]
    loop.process_all_available()  # does not wait for what never comes
    assert "wrong" in loop.phase


def test_given_batches_come_once_whoever_logs_them() -> None:
    """The driver before logs one more while the next one starts; a new layout has an empty batch of its own."""
    app = Application("given")
    app.source("s", schema={"n": "int64"}).output()
    storage, sources = MemoryStorage(), Program(app).sources
    given = [{"s": pa.table({"n": [number]})} for number in range(6)]

    def started(claim: int, generation: int) -> tuple[GivenFeed, BatchLog]:
        log = BatchLog(sources, "given", storage, claim=claim, generation=generation)
        running = SimpleNamespace(batch_log=log, log=log.append, logged=log.frontier, live_frontier=BatchId(100))
        return GivenFeed(given, running), log  # type: ignore[arg-type]

    old, _ = started(1, 0)
    assert old.log_batches()
    new, log = started(2, 0)
    assert old.log_batches(), "it does not know that it is over"
    while not new._ended and log.frontier < 2:
        new.log_batches()
    assert log.fence(log.sources)
    last, log = started(3, 1)
    while last.log_batches():
        pass
    logged = [log.record(BatchId(number)) for number in range(log.frontier + 1)]
    rows = [
        value
        for number, record in enumerate(logged)
        if record is not None
        for reader in [BatchLog(sources, "given", storage, generation=record.generation)]
        if (block := reader.block(OperatorId("s"), BatchId(number), 0, Epoch(1)).rows) is not None
        for value in block["n"].to_pylist()
    ]
    assert rows == [0, 1, 2, 3, 4, 5]


def test_a_stop_with_a_parked_query_takes_no_checkpoint_and_says_why() -> None:
    fake, lines = Fake(math.inf), list[str]()
    fake.parked_problem = ValueError("thirteen")
    loop = loop_of(fake, lines)
    fake.worked_once.wait(30)
    loop.request_stop()
    loop.wait()
    assert loop.problem is None
    assert "checkpoint" not in fake.calls
    assert "queries are parked, so no checkpoint was taken: thirteen" in lines


def test_an_input_with_an_end_does_not_wait_where_everything_is_parked() -> None:
    """It would wait for ever: no batch is logged before somebody resumes a query."""
    problem = ValueError("thirteen")
    fake = Fake(math.inf, fails={"run": problem})
    fake.all_parked = True
    loop = loop_of(fake)
    loop.wait()
    assert loop.problem is problem
    assert "checkpoint" not in fake.calls

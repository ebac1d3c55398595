"""Ctrl-C and SIGTERM: the first stops a run in order, the second ends at once; handlers are put back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.spark.handle import Run
from holdfast.spark.listeners import Listeners
from holdfast.spark.stop_signals import StopSignals


class FakeRun:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def request_stop(self) -> None:
        self.calls.append("request_stop")

    def abandon(self) -> None:
        self.calls.append("abandon")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_stops_and_the_second_ends_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    run, lines = FakeRun(), list[str]()
    with StopSignals(lines.append) as signals:
        signal.signal(number, signal.default_int_handler)  # as PySpark does, when a context is made
        signals.stop(run)  # type: ignore[arg-type]
        signal.raise_signal(number)
        assert run.calls == ["request_stop"]
        assert len(lines) == 1
        assert "Ctrl-C again" in lines[0]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert run.calls == ["request_stop", "abandon"]
    assert signal.getsignal(number) is before


def test_before_there_is_a_run_a_signal_ends_the_start() -> None:
    with StopSignals(lambda line: None), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_other_threads_install_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def enter() -> None:
        with StopSignals(lambda line: None):
            found.append(signal.getsignal(signal.SIGTERM) is before)

    in_thread(enter)
    assert found == [True]


def test_another_thread_that_waits_too_leaves_the_handlers() -> None:
    def enter() -> None:
        with signals:
            pass

    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(lambda line: None) as signals:
        mine = signal.getsignal(signal.SIGTERM)
        in_thread(enter)
        assert signal.getsignal(signal.SIGTERM) == mine != before
    assert signal.getsignal(signal.SIGTERM) is before


def in_thread(call: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def handle(calls: FakeRun, lines: list[str], **does: Callable[..., object]) -> Run:
    """Return a handle whose loop does this."""
    loop: Any = SimpleNamespace(
        log=lines.append, problem=None, request_stop=calls.request_stop, abandon=calls.abandon, **does
    )
    running: Any = SimpleNamespace(parked_problem=None)
    nothing: Any = None
    return Run(running, nothing, nothing, loop, "directory", listeners=Listeners("id", "start", "name", lines.append))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_a_run_that_a_program_waits_for(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    lines, calls = list[str](), FakeRun()

    def wait(timeout: float | None) -> bool:
        signal.raise_signal(number)
        return timeout is None

    run = handle(calls, lines, wait=wait)
    assert signal.getsignal(number) is before, "hf.start by itself handles no signal"
    assert run.awaitTermination(1.0) is False
    assert signal.getsignal(number) is before
    assert (calls.calls, len(lines)) == (["request_stop"], 1)
    with pytest.raises(KeyboardInterrupt):  # a second signal, though in another wait
        run.awaitTermination()
    assert calls.calls == ["request_stop", "abandon"]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_all_available_is_processed_drains_the_run_and_then_interrupts(number: signal.Signals) -> None:
    """The program must not go on as if all were processed, and the end of the process must not cut off the drain."""
    before, calls, lines = signal.getsignal(number), FakeRun(), list[str]()

    def wait() -> bool:
        calls.calls.append("wait")
        return True

    def process() -> None:
        if not lines:
            signal.raise_signal(number)

    run = handle(calls, lines, wait=wait, process_all_available=process)
    with pytest.raises(KeyboardInterrupt):
        run.processAllAvailable()
    assert calls.calls == ["request_stop", "wait"]
    assert len(lines) == 1
    assert signal.getsignal(number) is before
    run.processAllAvailable()  # of a run that has ended, as in PySpark


def test_a_signal_that_the_main_thread_takes_interrupts_no_other_thread() -> None:
    calls, lines = FakeRun(), list[str]()
    waits, goes_on = Event(), Event()

    def process() -> None:
        waits.set()
        assert goes_on.wait(10)

    run = handle(calls, lines, wait=lambda: True, process_all_available=process)
    with run._signals, ThreadPoolExecutor(1) as pool:
        processing = pool.submit(run.processAllAvailable)
        assert waits.wait(10)
        signal.raise_signal(signal.SIGTERM)
        goes_on.set()
        assert processing.exception(10) is None
    assert calls.calls == ["request_stop"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_run_stops_does_not_cut_the_drain_off_and_the_next_one_does(number: signal.Signals) -> None:
    before, calls, lines = signal.getsignal(number), FakeRun(), list[str]()
    run = handle(calls, lines, wait=lambda: signal.raise_signal(number))
    run.stop()
    assert calls.calls == ["request_stop", "request_stop"]
    assert len(lines) == 1
    with pytest.raises(KeyboardInterrupt):
        run.stop()
    assert calls.calls[-1] == "abandon"
    assert signal.getsignal(number) is before

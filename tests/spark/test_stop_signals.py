"""Ctrl-C and SIGTERM: the first stops a run in order, the second ends at once; handlers are put back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_a_run_that_a_program_waits_for(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    lines, calls = list[str](), FakeRun()

    def wait(timeout: float | None) -> bool:
        signal.raise_signal(number)
        return timeout is None

    loop: Any = SimpleNamespace(
        log=lines.append, wait=wait, problem=None, request_stop=calls.request_stop, abandon=calls.abandon
    )
    nothing: Any = None
    run = Run(nothing, nothing, nothing, loop, "directory", listeners=Listeners("id", "start", "name", lines.append))
    assert signal.getsignal(number) is before, "hf.start by itself handles no signal"
    assert run.awaitTermination(1.0) is False
    assert signal.getsignal(number) is before
    assert (calls.calls, len(lines)) == (["request_stop"], 1)
    with pytest.raises(KeyboardInterrupt):  # a second signal, though in another wait
        run.awaitTermination()
    assert calls.calls == ["request_stop", "abandon"]
    assert signal.getsignal(number) is before

"""Ctrl-C and SIGTERM: the first stops a run in order, the second ends at once; handlers are put back."""

from __future__ import annotations

import signal
import threading

import pytest

from holdfast.cli.stop_signals import StopSignals


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

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [True]

"""An attempt to write to Kafka that does not come back, without a broker."""

from __future__ import annotations

from threading import Event

import pytest

from holdfast.errors import BadInput, CheckFailed
from holdfast.runtime.io.kafka_sink import _in_time


def test_an_attempt_that_does_not_come_back_is_a_failure_that_names_the_topic() -> None:
    answered = Event()

    def wait() -> int:
        answered.wait()
        return 1

    with pytest.raises(CheckFailed, match=r"topic pages: the brokers have not answered for 0\.05 s"):
        _in_time(0.05, wait, "pages")
    answered.set()


def test_what_an_attempt_returns_or_raises_comes_through() -> None:
    assert _in_time(60, lambda: 3, "pages") == 3

    def fail() -> int:
        raise BadInput("has no column 'page'")

    with pytest.raises(BadInput, match="no column"):
        _in_time(60, fail, "pages")

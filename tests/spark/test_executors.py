"""The executors of a run as its driver sees them; Spark is a stub."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from holdfast.spark import executors
from holdfast.spark.executors import ExecutorWatch
from holdfast.spark.pinned_jobs import Executor


@pytest.mark.parametrize(
    ("answer", "alive", "told"),
    [
        (RuntimeError("the gateway is gone"), ["7"], "the gateway is gone"),
        ([False], ["7"], "it was refused"),
        ([False], [], None),
        ([True], ["7"], None),
    ],
)
def test_a_silent_executor_that_spark_does_not_replace_is_named(
    monkeypatch: pytest.MonkeyPatch, answer: Any, alive: list[str], told: str | None
) -> None:
    """It holds its cores and no other comes: without a line, people see a run that waits for a node."""
    context, lines = Mock(), list[str]()
    context._jsc.sc().killAndReplaceExecutor.side_effect = answer
    monkeypatch.setattr(executors, "executors_of", lambda context: [Executor(one, "h") for one in alive])
    watch = ExecutorWatch(context, "web", expected=None, wait_seconds=1.0, keep_alive=None, log=lines.append)
    watch._end_executor("7")
    named = [line.partition("Spark does not replace it: ")[2].partition(";")[0] for line in lines]
    assert named == ([] if told is None else [told])
    assert all("executor 7 " in line for line in lines)

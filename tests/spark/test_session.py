"""Sessions: what is held back while a JVM starts, and what is asked of one that somebody else prepared."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.spark.session import _not_from_py4j, interrupts_held, submitted_session
from holdfast.spark.start import run_place


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = []

    def interrupted() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is before


def test_without_an_interrupt_nothing_is_raised_and_an_error_goes_through() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_held():
        pass
    with pytest.raises(ValueError, match="bad"), interrupts_held():
        raise ValueError("bad")
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_hold_nothing() -> None:
    done = []

    def work() -> None:
        with interrupts_held():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_only_what_py4j_logs_is_dropped() -> None:
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)

    assert not _not_from_py4j(record("/site-packages/py4j/java_gateway.py"))
    assert _not_from_py4j(record("/site-packages/pyspark/core/context.py"))


def test_spark_submit_names_the_master_and_nobody_else() -> None:
    with pytest.raises(BadInput, match=r"--master: spark-submit names the master.*before the file"):
        submitted_session("x", "spark://127.0.0.1:7077")


def test_a_cluster_beyond_this_machine_needs_a_directory() -> None:
    with pytest.raises(BadInput, match=r"--directory: other machines would not reach.*spark\.holdfast\.directory"):
        run_place("x", "spark://10.0.0.1:7077", None)
    assert run_place("x", "spark://10.0.0.1:7077", "/data/x") == Path("/data/x")
    here = run_place("a/b", "spark://127.0.0.1:7077", None)
    assert here.is_dir(), "here a new folder does"
    here.rmdir()

"""Which executor a task finds itself on."""

from __future__ import annotations

import pytest

from holdfast.spark import pinned_jobs
from holdfast.spark.own_executor import executor_id_of
from holdfast.spark.pinned_jobs import Executor, is_here


@pytest.mark.parametrize(("own", "here"), [("1", True), ("2", False), (None, True)])
def test_a_process_compares_its_executor_where_it_knows_it(
    own: str | None, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pinned_jobs, "own_executor_id", lambda: own)
    assert is_here(Executor("1", "localhost")) is here
    assert not is_here(Executor("1", "192.0.2.55"))


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("java -Xmx1g Backend --driver-url spark://a:1 --executor-id 12 --hostname 10.0.0.3", "12"),
        ("java Backend --driver-url spark://a:1 --executor-id EXECID --hostname 10.0.0.3", None),
        ("java -Xmx1g org.apache.spark.deploy.SparkSubmit app.py", None),
        ("java Backend --executor-id", None),
        ("", None),
    ],
)
def test_the_id_of_an_executor_is_in_its_command_line(command: str, number: str | None) -> None:
    assert executor_id_of(command.replace(" ", "\0").encode() + b"\0") == number

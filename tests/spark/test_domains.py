"""Failure domains of hosts: by a setting, by Spark, by a script; and limits of lost executors."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.spark.agents import agent_settings
from holdfast.spark.domains import Domains, SparkTopology, topology_of
from holdfast.spark.requirements import check_settings, executor_limit_hint, session_settings
from holdfast.spark.settings import PREFIX, Settings


def settings(**given: str) -> Settings:
    return Settings.of({f"{PREFIX}{key.replace('__', '.')}": value for key, value in given.items()})


def script(folder: Path, text: str) -> str:
    path = folder / "topology.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_setting_goes_before_spark_and_spark_before_a_script(tmp_path: Path) -> None:
    chosen = settings(node__domains="a=/one, b = /two", node__topologyScript=script(tmp_path, "echo /script/$1"))
    lines: list[str] = []
    domains = Domains(chosen, lambda: {"a": "/spark", "c": "/spark"}, lines.append)
    assert [domains.of(host) for host in "abcd"] == ["/one", "/two", "/spark", "/script/d"]
    assert not lines


def test_a_host_that_nobody_knows_is_named_in_one_line(tmp_path: Path) -> None:
    lines: list[str] = []
    domains = Domains(settings(node__topologyScript=script(tmp_path, "echo /default-rack")), dict, lines.append)
    assert [domains.of("host-a"), domains.of("host-a"), domains.of("127.0.0.1")] == [None, None, None]
    (line,) = lines
    assert line.startswith("the failure domain of host-a is not known")
    assert f"{PREFIX}node.domains" in line


def test_a_script_that_fails_and_a_spark_that_says_nothing_end_no_run(tmp_path: Path) -> None:
    def ended() -> dict[str, str]:
        raise RuntimeError("the context is closed")

    lines: list[str] = []
    domains = Domains(settings(node__topologyScript=script(tmp_path, "exit 3")), ended, lines.append)
    assert domains.of("host-a") is None
    assert len(lines) == 2
    assert "does not answer for host-a" in lines[0]


def test_what_block_managers_were_told_is_read() -> None:
    def manager(host: str, info: str | None) -> SimpleNamespace:
        option = SimpleNamespace(isDefined=lambda: info is not None, get=lambda: info)
        return SimpleNamespace(host=lambda: host, topologyInfo=lambda: option)

    assert topology_of([manager("a", "/rack-1"), manager("b", None)]) == {"a": "/rack-1"}


ASKED = """
import sys
from pyspark.sql import SparkSession
from holdfast.spark.domains import domains_from_spark
conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.storage.replication.topologyMapper": "org.apache.spark.storage.FileBasedTopologyMapper",
        "spark.storage.replication.topologyFile": sys.argv[1]}
spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
print(domains_from_spark(spark.sparkContext))
spark.stop()
"""


@pytest.mark.cluster
def test_a_real_spark_says_what_its_topology_mapper_knows(tmp_path: Path) -> None:
    """In a process of its own: a topology mapper belongs to a Spark application from its start."""
    (tmp_path / "racks.properties").write_text("127.0.0.1=/rack-7\n")
    done = subprocess.run(
        [sys.executable, "-c", ASKED, str(tmp_path / "racks.properties")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.stdout.strip() == "{'127.0.0.1': '/rack-7'}", done.stderr
    assert "Exception in thread" not in done.stderr


def test_agents_get_their_domain() -> None:
    chosen = settings(node__domains="127.0.0.1=/rack-1")
    assert agent_settings(chosen, "127.0.0.1").domain == "/rack-1"
    assert agent_settings(chosen, "127.0.0.1", "/rack-2").domain == "/rack-2"
    assert agent_settings(settings(), "127.0.0.1").domain == "127.0.0.1", "its host: other agents there fail with it"


@pytest.mark.parametrize("text", ["host", "=rack", "host="])
def test_a_pair_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="HOST=DOMAIN"):
        settings(node__domains=text)


# -- cluster managers that end an application after a few lost executors -----------------------------------------------


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.master": "spark://h:7077"}, None),
        ({"spark.master": "yarn"}, "YARN ends this application after 4 lost executors in all its life"),
        (
            {"spark.master": "k8s://h:443", "spark.executor.instances": "8"},
            "Kubernetes ends this application after 16 lost",
        ),
        ({"spark.master": "yarn", "spark.executor.failuresValidityInterval": "1h"}, "after 4 lost executors within 1h"),
        ({"spark.master": "yarn", "spark.executor.maxNumFailures": "100"}, "after 100 lost executors in all its life"),
        (
            {
                "spark.master": "yarn",
                "spark.executor.maxNumFailures": "100",
                "spark.executor.failuresValidityInterval": "10min",
            },
            None,
        ),
    ],
)
def test_a_limit_of_lost_executors_is_named_with_the_remedy(conf: dict[str, str], expected: str | None) -> None:
    hint = executor_limit_hint(conf)
    if expected is None:
        assert hint is None
    else:
        assert hint is not None
        assert expected in hint
        assert "set spark.executor.failuresValidityInterval=10min and spark.executor.maxNumFailures=" in hint
        assert hint in check_settings({**session_settings(), **conf})


def test_a_spark_that_cannot_be_asked_is_not_asked_again() -> None:
    """Each attempt in vain loads a class in vain, which has ended a JVM."""
    asked: list[int] = []

    class Context:
        @property
        def _jvm(self) -> Any:
            asked.append(1)
            raise RuntimeError("NoClassDefFoundError")

    topology = SparkTopology()
    context: Any = Context()
    assert [topology.ask(context), topology.ask(context)] == [{}, {}]
    assert len(asked) == 1

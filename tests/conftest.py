"""What the whole suite shares: one embedded cluster and one Spark session, started when the first test asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast_lab.s3_server import S3Server

# Commands and executors that tests start import what the tests import, also in a second checkout of the repository.
_ROOT = Path(__file__).resolve().parent.parent
_PATHS = [str(_ROOT / "src"), str(_ROOT / "lab"), os.environ.get("PYTHONPATH", "")]
_TESTS = _ROOT / "tests"
_WITH_CLUSTERS = [
    _TESTS / "drill" / "test_drill_on_a_cluster.py",
    _TESTS / "docs" / "test_start_page.py",
    _TESTS / "docs" / "test_blocks.py",
    _TESTS / "tools" / "test_trace_path.py",
]
"""Files whose tests start clusters of their own."""
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))

# One seed reproduces a run on any machine; a slow machine is not a failure.
settings.register_profile(
    "holdfast", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("holdfast")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one of the suite's processes have all tests with a cluster, first of all; the others have the rest.

    Two clusters at once on two cores would hold each other up, and a cluster beside pure tests does not. It comes before
    the hook of xdist, which looks for groups.
    """

    def has_cluster(item: pytest.Item) -> bool:
        fixtures = {"cluster", "spark", "s3"} & set(getattr(item, "fixturenames", ()))
        return bool(fixtures) or item.path.is_relative_to(_TESTS / "spark") or item.path in _WITH_CLUSTERS

    for item in items:
        if has_cluster(item):
            item.add_marker(pytest.mark.xdist_group("cluster"))
    items.sort(key=lambda item: not has_cluster(item))


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """A real master and three real workers on loopback."""
    from holdfast.spark.cluster import EmbeddedCluster

    with EmbeddedCluster(3) as running:
        yield running


@pytest.fixture(scope="session")
def spark(cluster: EmbeddedCluster) -> Iterator[SparkSession]:
    """The session's one Spark application."""
    from holdfast.spark.session import start_session

    secret = {"spark.holdfast.store.secretFile": str(cluster.secret_file)}
    session = start_session("holdfast-tests", cluster.master_url, settings=secret)
    yield session
    session.stop()


@pytest.fixture
def unhurried(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, for runs in which nobody fails: no node is taken for failed because the machine is busy."""
    spark.conf.set("spark.holdfast.keepalive.seconds", "600s")
    yield spark
    spark.conf.unset("spark.holdfast.keepalive.seconds")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server on loopback with one bucket; `environment` has what a process needs to use it."""
    from holdfast.errors import BadInput
    from holdfast_lab.s3_server import S3Server

    try:
        server = S3Server(build=False)
    except BadInput as missing:
        pytest.skip(str(missing))
    with server:
        yield server

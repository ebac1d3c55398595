"""What the whole suite shares: one embedded cluster and one Spark session, started when the first test asks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from sizes import LONG

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast_lab.kafka_broker import KafkaBroker
    from holdfast_lab.s3_server import S3Server

# Commands and executors that tests start import what the tests import, also in a second checkout of the repository.
_ROOT = Path(__file__).resolve().parent.parent
_PATHS = [str(_ROOT / "src"), str(_ROOT / "lab"), os.environ.get("PYTHONPATH", "")]
_TESTS = _ROOT / "tests"
_OWN_CLUSTERS = [
    _TESTS / "docs" / "test_start_page.py",
    _TESTS / "drill" / "test_drill_on_a_cluster.py",
    _TESTS / "dashboard" / "test_page_in_a_drill.py",
    _TESTS / "tools" / "test_trace_path.py",
    *(
        _TESTS / "spark" / f"test_{name}.py"
        for name in [
            "domains",
            "end_to_end_examples",
            "on_s3",
            "own_cluster",
            "run_command",
            "stopping",
        ]
    ),
]
"""Files whose tests start clusters of their own."""
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))
# Drivers' JVMs live for a minute and see a few rows: one compiler, and SQL that is not compiled.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)

# One seed reproduces a run on any machine; a slow machine is not a failure.
settings.register_profile(
    "holdfast", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("holdfast")


def _process_of(nodeid: str) -> str:
    """Return the tests that a test shares a process with, by name.

    One process has the tests on the suite's cluster, one those with clusters of their own, one those with the broker:
    more of each at once would hold each other up on two cores; beside pure tests they do not. Other files stay
    together, for their fixtures are made once. Tests of the simulator and of the runtime share nothing.
    """
    file = _ROOT / nodeid.partition("::")[0]
    if file in _OWN_CLUSTERS:
        return "own clusters"
    if file.is_relative_to(_TESTS / "spark") or file == _TESTS / "docs" / "test_blocks.py":
        return "cluster"
    if file.is_relative_to(_TESTS / "kafka"):
        return "broker"
    alone = any(file.is_relative_to(_TESTS / one) for one in ("simulation", "runtime"))
    return nodeid if alone else str(file)


def _turn_of(nodeid: str) -> int:
    """Return when a test comes: those with clusters first, for they are the longest; single short ones last."""
    order = ["own clusters", "cluster", "broker"]
    process = _process_of(nodeid)
    if process in order:
        return order.index(process)
    if nodeid.startswith("tests/simulation/"):
        return 3
    return 5 if process == nodeid else 4


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests to `make test-long` and `-m long`; put the others into the order of their processes."""
    taken = LONG or "long" in config.option.markexpr
    left = [item for item in items if not taken and item.get_closest_marker("long") is not None]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: _turn_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share tests out among processes. (The groups of xdist 3.8 have no effect with pytest 9.)"""
    from xdist.scheduler import LoadScopeScheduling

    class ByProcess(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _process_of(nodeid)

    config.option.loadscopereorder = False  # the order is that of the collection
    return ByProcess(config, log)


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """A real master and three real workers on loopback."""
    from holdfast.spark.cluster import EmbeddedCluster

    with EmbeddedCluster(3) as running:
        yield running


@pytest.fixture(scope="session")
def spark(cluster: EmbeddedCluster) -> Iterator[SparkSession]:
    """The session's one Spark application, with an executor on each node."""
    from holdfast.spark.pinned_jobs import executors_of
    from holdfast.spark.session import start_session

    settings = {"spark.holdfast.store.secretFile": str(cluster.secret_file), "spark.decommission.enabled": "true"}
    session = start_session("holdfast-tests", cluster.master_url, settings=settings)
    deadline = time.monotonic() + 300
    while len(executors_of(session.sparkContext)) < len(cluster.nodes):
        assert time.monotonic() < deadline, "the executors did not register"
        time.sleep(0.05)
    yield session
    session.stop()


@pytest.fixture
def unhurried(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, for runs in which nobody fails: no node is taken for failed because the machine is busy."""
    spark.conf.set("spark.holdfast.keepalive.seconds", "600s")
    yield spark
    spark.conf.unset("spark.holdfast.keepalive.seconds")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium; tests that need one are skipped where there is none.

    Not for the whole session: its driver keeps an event loop running, and other tests run loops of their own.
    """
    from holdfast_lab.browser import chromium, missing_browser

    if (missing := missing_browser()) is not None:
        pytest.skip(missing)
    with chromium() as running:
        yield running


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


@pytest.fixture(scope="session")
def kernel() -> Callable[..., tuple[list[dict[str, Any]], dict[str, int]]]:
    """A second reader of Delta tables; see `read_with_kernel`."""
    from holdfast.errors import BadInput
    from holdfast_lab.delta_kernel import check_available, read_with_kernel

    try:
        check_available(fetch=False)
    except BadInput as missing:
        pytest.skip(str(missing))
    return read_with_kernel


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A real Kafka broker on loopback; tests may kill it and start it again, and leave it running."""
    from holdfast.errors import BadInput
    from holdfast_lab.kafka_broker import KafkaBroker

    try:
        running = KafkaBroker(fetch=False)
    except BadInput as missing:
        pytest.skip(str(missing))
    with running:
        yield running

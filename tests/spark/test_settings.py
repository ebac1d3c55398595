"""Settings: each has a key, a default and a help text; the page says the same; what is wrong is refused."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadInput
from holdfast.spark.requirements import NEEDS, check_requirements, check_settings, check_version, session_settings
from holdfast.spark.run_settings import buffer_bound, node_capacity
from holdfast.spark.settings import PREFIX, STRATEGIES, Settings, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"


def test_without_settings_there_are_defaults() -> None:
    assert Settings.of({}) == Settings()
    assert Settings.of({"spark.master": "spark://x:7077"}) == Settings()


def test_every_setting_is_read_from_its_key() -> None:
    given = {
        "directory": "/data/run",
        "checkpoint.batches": "7",
        "checkpoint.seconds": "1min",
        "checkpoint.durableEvery": "2",
        "checkpoint.boundaries": "held",
        "store.peers": "10.0.0.1:7400, 10.0.0.2:7400",
        "store.dataFragments": "3",
        "store.parityFragments": "2",
        "store.tolerateNodeLoss": "0.25",
        "store.reliability": "0.99",
        "store.secretFile": "/etc/secret",
        "tls.mode": "files",
        "tls.cert": "/etc/cert.pem",
        "tls.key": "/etc/key.pem",
        "tls.ca": "/etc/ca.pem",
        "store.durable": "/data/durable",
        "store.linger": "1h",
        "store.expiry": "1d",
        "exchange": "shuffle",
        "exchange.window": "3",
        "exchange.port": "7410-7417",
        "driver.port": "7402",
        "store.port": "7420-7423",
        "node.bindAddress": "0.0.0.0",
        "node.addresses": "host-a=10.0.0.1,host-b=10.0.0.2",
        "keepalive.seconds": "1500ms",
        "driver.heartbeat.seconds": "5s",
        "retention": "all",
        "node.processes": "2",
        "node.stall.seconds": "2min",
        "node.memoryMb": "900",
        "node.capacity": "12.5",
        "node.costs": "measured",
        "node.bound": "0.9",
        "node.bound.seconds": "5min",
        "node.moveAbove": "0.5",
        "node.wait": "30min",
        "node.domains": "host-a=/rack-1,host-b=/rack-2",
        "node.topologyScript": "/etc/hadoop/topology.sh",
        "replicas.budget": "0.5",
        "replicas.partitions": "speeds[0],jams",
        "replicas.algorithm": "greedy",
        "replicas.lag": "3",
        "replicas.adaptSeconds": "5m",
        "replicas.tolerance": "0.2",
        "replicas.margin": "0.05",
        "replicas.patience": "2",
        "tentative.outputs": "pages,jams",
        "tentative.minFidelity": "0.5",
        "recovery.strategy": "blocking",
        "recovery.incrementalAfterLosses": "4",
        "cycle.timeBudget": "0.5",
        "recovery.bufferMb": "64",
        "recovery.waitingMb": "64",
        "errors.sinkSeconds": "5min",
        "errors.retries": "5",
        "errors.backoff": "200ms",
        "errors.quarantineRows": "7",
        "keep.aside": "7d",
        "keep.outputs": "90d",
        "cycle.batches": "3",
        "ingest.maxPendingBatches": "9",
        "ingest.batchBytes": "16m",
        "ingest.batchSeconds": "2s",
        "ingest.maxEventAhead": "1h",
        "ingest.idleAfter": "40s",
        "ingest.maxBatchesAhead": "5",
        "ingest.maxBatchesBehind": "50",
        "page.enabled": "true",
        "page.host": "::1",
        "page.port": "8080",
        "tracing.enabled": "true",
        "plan.adapt": "false",
    }
    assert {PREFIX + key for key in given} == {one.metadata["key"] for one in fields(Settings)}
    settings = Settings.of({PREFIX + key: text for key, text in given.items()})
    assert settings.store_peers == ("10.0.0.1:7400", "10.0.0.2:7400")
    assert (settings.checkpoint_seconds, settings.store_linger_seconds, settings.keepalive_seconds) == (60, 3600, 1.5)
    for one in fields(Settings):
        assert getattr(settings, one.name) != one.default, f"{one.name} was not read"
    assert (settings.wait_seconds, Settings().wait_seconds) == (1800.0, math.inf), "a wait has no end unless one is set"


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("checkpoint.batchs", "3", "there is no such setting; the nearest is spark.holdfast.checkpoint.batches"),
        ("durable", "/x", "the nearest is spark.holdfast.store.durable"),
        ("checkpoint.batches", "0", "spark.holdfast.checkpoint.batches: '0': must be 1 or more"),
        ("checkpoint.batches", "often", "'often': not a number"),
        ("store.tolerateNodeLoss", "1", "must be from 0 to below 1"),
        ("store.peers", "somewhere", "'somewhere' is not HOST:PORT; write it like 127.0.0.1:7400"),
        ("recovery.strategy", "best", f"must be one of {', '.join(STRATEGIES)}"),
        ("store.dataFragments", "3", "set spark.holdfast.store.parityFragments as well, or neither"),
        ("keepalive.seconds", "0s", "must be above 0"),
        ("keepalive.seconds", "soon", "must be a time such as 10s, 1min or 500ms, or a number of seconds"),
        ("node.bound", "nan", "must be above 0, up to 1"),
        ("directory", " ", "must not be empty"),
    ],
)
def test_what_is_wrong_is_refused_with_the_remedy(key: str, text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        Settings.of({PREFIX + key: text})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_more_fragments_than_the_code_has_are_refused() -> None:
    with pytest.raises(BadInput, match="at most 32"):
        Settings.of({f"{PREFIX}store.dataFragments": "20", f"{PREFIX}store.parityFragments": "20"})


def test_processes_for_which_there_are_no_ports_are_refused() -> None:
    Settings.of({f"{PREFIX}exchange.port": "65534", f"{PREFIX}node.processes": "2"})
    with pytest.raises(BadInput, match="leaves no ports for 3 processes"):
        Settings.of({f"{PREFIX}exchange.port": "65534", f"{PREFIX}node.processes": "3"})


@pytest.mark.parametrize(
    ("given", "cores", "cpus", "capacity"),
    [
        ({}, "4", 2, 2.0),
        ({"node.costs": "declared"}, "4", 2, math.inf),
        ({"node.capacity": "7"}, "4", 2, 7.0),
        ({"node.capacity": "7", "node.costs": "measured"}, "4", 2, 7.0),
        ({"node.costs": "measured"}, "4", 1, 1.0),
        ({"node.costs": "measured"}, "4", 2, 2.0),
        ({"node.costs": "measured", "node.processes": "3"}, "4", 1, 3.0),
        ({"node.costs": "measured", "node.processes": "6"}, "4", 1, 4.0),
        ({"node.costs": "measured", "node.processes": "6"}, None, 1, 6.0),
        ({"node.costs": "measured", "exchange": "shuffle"}, "4", 1, 4.0),
    ],
)
def test_a_node_carries_the_cores_that_its_processes_can_use(
    given: dict[str, str], cores: str | None, cpus: int, capacity: float
) -> None:
    settings = Settings.of({PREFIX + key: text for key, text in given.items()})
    assert node_capacity(settings, cores, cpus) == capacity


def test_the_page_lists_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `(spark\.holdfast\.[\w.]+)` \| (\S+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == Settings.table()


def test_a_default_may_be_set_as_the_page_writes_it() -> None:
    written = {key: default for key, default, _ in Settings.table() if default != "none"}
    assert Settings.of(written) == Settings()


def test_the_page_lists_what_spark_must_be_set_to() -> None:
    rows = re.findall(r"^\| `(spark\.(?!holdfast)[\w.]+)` \| `(\S+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(need.key, need.set_to, need.because) for need in NEEDS]


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("3", 3), ("500ms", 0.5), ("2min", 120), ("1h", 3600), ("1m", 60), ("1d", 86400)]
)
def test_times_are_read_as_spark_writes_them(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_sparks_own_settings_are_checked() -> None:
    ours = session_settings()
    assert check_settings(ours) == []
    assert check_settings({**ours, "spark.python.unix.domain.socket.enabled": "false"}) == [
        "spark.python.unix.domain.socket.enabled: true would be faster"
    ]
    for key, wrong in (
        ("spark.speculation", "true"),
        ("spark.locality.wait", "0"),
        ("spark.dynamicAllocation.enabled", "true"),
        ("spark.excludeOnFailure.enabled", "true"),
        ("spark.python.worker.reuse", "false"),
        ("spark.task.maxFailures", "1"),
        ("spark.cleaner.periodicGC.interval", "30min"),
        ("spark.cleaner.periodicGC.interval", "seldom"),
    ):
        with pytest.raises(BadInput, match=rf"^{key}: {wrong} does not do: .*; set it to {ours[key]}$"):
            check_settings({**ours, key: wrong})
    with pytest.raises(BadInput, match="has no executors"):
        check_settings({**ours, "spark.master": "local[4]"})


@pytest.mark.parametrize("version", ["3.5.9", "5.0.0", "2.4.8", "nonsense"])
def test_versions_that_are_not_supported_are_refused(version: str) -> None:
    with pytest.raises(BadInput, match=f"Spark {version} is not supported; use Spark 4.0 to 4.x"):
        check_version(version)


def test_a_version_that_was_not_tested_gets_a_hint() -> None:
    assert check_version("4.3.0") is None
    assert "not among the versions tested" in str(check_version("4.9.1"))


def test_a_connect_session_gets_a_clear_message() -> None:
    with pytest.raises(BadInput, match="Connect session"):
        check_requirements(object())


@pytest.mark.cluster
def test_a_session_of_ours_is_as_needed_and_read(spark: SparkSession) -> None:
    assert check_requirements(spark) == []
    secret = spark.conf.get(f"{PREFIX}store.secretFile")
    assert Settings.read(spark) == Settings(store_secret_file=secret), "the tests' session has a secret, and no more"
    spark.conf.set(f"{PREFIX}ingest.maxPendingBatches", "5")
    try:
        assert Settings.read(spark).max_pending_batches == 5
    finally:
        spark.conf.unset(f"{PREFIX}ingest.maxPendingBatches")


def test_outboxes_have_a_bound_that_grows_with_the_executors() -> None:
    """Those behind an operator that is not deterministic are never dropped: they filled the disks."""
    settings = Settings()
    assert buffer_bound(settings, None) == buffer_bound(settings, 2) == 4 << 30
    assert buffer_bound(settings, 10) == 10 << 30
    assert buffer_bound(replace(settings, recovery_waiting_mb=64), 2) == 256 << 20
    assert buffer_bound(replace(settings, recovery_buffer_mb=7), 50) == 7 << 20
    assert buffer_bound(replace(settings, recovery_buffer_mb=0), 2) == math.inf

"""Settings: each has a key, a default and a help text; the page says the same; what is wrong is refused."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadInput
from holdfast.spark.requirements import NEEDS, check_requirements, check_settings, check_version, session_settings
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
        "store.peers": "10.0.0.1:7400, 10.0.0.2:7400",
        "store.dataFragments": "3",
        "store.parityFragments": "2",
        "store.tolerateNodeLoss": "0.25",
        "store.secretFile": "/etc/secret",
        "store.durable": "/data/durable",
        "store.linger": "1h",
        "exchange": "resident",
        "exchange.window": "3",
        "exchange.port": "7401",
        "driver.port": "7402",
        "keepalive.seconds": "1500ms",
        "driver.heartbeat.seconds": "5s",
        "retention": "all",
        "node.capacity": "12.5",
        "node.costs": "measured",
        "node.bound": "0.9",
        "recovery.strategy": "blocking",
        "recovery.incrementalAfterLosses": "4",
        "cycle.timeBudget": "0.5",
        "recovery.bufferMb": "64",
        "cycle.batches": "3",
        "ingest.maxPendingBatches": "9",
    }
    assert {PREFIX + key for key in given} == {one.metadata["key"] for one in fields(Settings)}
    settings = Settings.of({PREFIX + key: text for key, text in given.items()})
    assert settings.store_peers == ("10.0.0.1:7400", "10.0.0.2:7400")
    assert (settings.checkpoint_seconds, settings.store_linger_seconds, settings.keepalive_seconds) == (60, 3600, 1.5)
    for one in fields(Settings):
        assert getattr(settings, one.name) != one.default, f"{one.name} was not read"


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
        ("keepalive.seconds", "soon", "not a number"),
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


def test_the_page_lists_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `(spark\.holdfast\.[\w.]+)` \| (\S+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == Settings.table()


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

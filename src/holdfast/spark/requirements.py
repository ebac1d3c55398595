"""What Holdfast needs of Spark: its version and its own settings, checked at start. Runs on the driver.

Every rule has a reason that was seen to matter; `start_session` sets what is needed, and a session that a user made is
refused with the remedy where it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import BadInput
from holdfast.spark.settings import seconds_of

TESTED = ("4.0", "4.1", "4.2", "4.3")
"""Versions of Spark that were tried: the last runs the whole suite (docs/reference/settings.md)."""
OLDEST, BELOW = (4, 0), (5, 0)


@dataclass(frozen=True, slots=True)
class Need:
    """One of Spark's settings: its default in Spark, the right value, and why."""

    key: str
    default: str
    right: Callable[[str], bool]
    set_to: str
    """What `start_session` sets, and the remedy names."""
    because: str


def _off(text: str) -> bool:
    return text.lower() == "false"


def _on(text: str) -> bool:
    return text.lower() == "true"


NEEDS = (
    Need("spark.speculation", "false", _off, "false", "a second copy of a task would run where its state is not"),
    Need(
        "spark.locality.wait",
        "3s",
        lambda text: seconds_of(text) >= 3,
        "3s",
        "a task that does not wait for its node runs where its state is not",
    ),
    Need("spark.dynamicAllocation.enabled", "false", _off, "false", "an executor that is given back takes state along"),
    Need("spark.excludeOnFailure.enabled", "false", _off, "false", "tasks are pinned: a node left out would be missed"),
    Need("spark.python.worker.reuse", "true", _on, "true", "a new Python worker for every task costs seconds"),
    Need(
        "spark.task.maxFailures", "4", lambda text: int(text) >= 2, "4", "one lost Python worker would fail a whole job"
    ),
    Need(
        "spark.cleaner.periodicGC.interval",
        "30min",
        lambda text: seconds_of(text) <= 600,
        "2min",
        "files of finished exchanges wait for it, and there are several for each batch",
    ),
)

MOST_FAILURES, VALIDITY = "spark.executor.maxNumFailures", "spark.executor.failuresValidityInterval"
"""After how many failed executors a cluster manager ends an application, and for how long each of them counts."""

HELPFUL = {
    "spark.python.daemon.module": "holdfast.spark.python_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Not needed, and faster."""


def session_settings() -> dict[str, str]:
    """Return what a session for Holdfast is started with."""
    return {need.key: need.set_to for need in NEEDS} | HELPFUL


def check_classic(spark: Any) -> None:
    """Refuse a session of Spark Connect."""
    if not hasattr(spark, "sparkContext") or type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadInput(
            "a Spark Connect session has no way to pin tasks to executors",
            where="holdfast",
            remedy="use a classic session: SparkSession.builder.master(…).getOrCreate() on the driver",
        )


def check_requirements(spark: Any) -> list[str]:
    """Refuse a session that cannot work, with the remedy; return hints about what would be faster."""
    check_classic(spark)
    hint = check_version(str(spark.version))
    # The context's: a session says what it was asked for, also where that came too late to count.
    return [*([] if hint is None else [hint]), *check_settings(dict(spark.sparkContext.getConf().getAll()))]


def check_settings(conf: Mapping[str, str]) -> list[str]:
    """Refuse settings of Spark that cannot work; return hints."""
    master = conf.get("spark.master", "")
    if master.startswith("local") and not master.startswith("local-cluster"):
        raise BadInput(
            f"{master} has no executors to place partitions on",
            field="spark.master",
            remedy="use `holdfast run` without --master for a cluster on this machine, or name a cluster",
        )
    for need in NEEDS:
        text = conf.get(need.key, need.default)
        try:
            right = need.right(text)
        except ValueError:
            right = False
        if not right:
            raise BadInput(f"{text} does not do: {need.because}", field=need.key, remedy=f"set it to {need.set_to}")
    limit = executor_limit_hint(conf)
    hints = [] if limit is None else [limit]
    return hints + [
        f"{key}: {value} would be faster" for key, value in HELPFUL.items() if conf.get(key, "false") != value
    ]


def executor_limit_hint(conf: Mapping[str, str]) -> str | None:
    """Return what to set where the cluster manager ends the application after a few lost executors; None: it does not.

    YARN and Kubernetes count executors that failed, by default for as long as the application lives; a stream that
    survives losses is ended by them all the same. (Spark's own master counts executors that fail in a row, by its own
    `spark.deploy.maxExecutorRetries`.)
    """
    master = conf.get("spark.master", "")
    if master != "yarn" and not master.startswith("k8s://"):
        return None
    interval = conf.get(VALIDITY, conf.get("spark.yarn.executor.failuresValidityInterval", ""))
    most = conf.get(MOST_FAILURES, conf.get("spark.yarn.max.executor.failures", ""))
    executors = int(conf.get("spark.executor.instances", "2"))
    limit = int(most) if most else max(3, 2 * executors)
    lasts = bool(interval) and seconds_of(interval) > 0
    if lasts and limit > 2 * executors:
        return None
    when = f"within {interval}" if lasts else "in all its life"
    return (
        f"{'YARN' if master == 'yarn' else 'Kubernetes'} ends this application after {limit} lost executors {when}: "
        f"set {VALIDITY}=10min and {MOST_FAILURES}={max(16, 4 * executors)}"
    )


def check_version(version: str) -> str | None:
    """Refuse a Spark that is too old or too new; return a hint where it was not tested."""
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found.group(1)), int(found.group(2))) if found else (0, 0)
    if not OLDEST <= number < BELOW:
        raise BadInput(
            f"Spark {version} is not supported",
            where="holdfast",
            remedy=f"use Spark {OLDEST[0]}.{OLDEST[1]} to 4.x; tested: {', '.join(TESTED)}",
        )
    tested = f"{number[0]}.{number[1]}" in TESTED
    return None if tested else f"Spark {version} is not among the versions tested ({', '.join(TESTED)})"

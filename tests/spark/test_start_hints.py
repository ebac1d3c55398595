"""What a start says about settings that leave something off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.spark.settings import Settings
from holdfast.spark.start_hints import start_hints

DEFAULT = Settings()
FILES = replace(DEFAULT, tls_mode="files")


@pytest.mark.parametrize(
    ("settings", "conf", "expected"),
    [
        (DEFAULT, {}, []),
        (DEFAULT, {"spark.master": "spark://h:7077", "spark.driver.host": "127.0.0.1"}, []),
        (FILES, {"spark.master": "yarn", "spark.decommission.enabled": "true", "spark.driver.host": "10.0.0.1"}, []),
        (FILES, {"spark.master": "yarn"}, ["YARN may take executors away", "set spark.decommission.enabled=true"]),
        (FILES, {"spark.master": "k8s://h:443"}, ["Kubernetes may take", "set spark.decommission.enabled=true"]),
        (
            replace(FILES, exchange="shuffle"),
            {"spark.master": "yarn"},
            ["no leases of nodes, no evacuation", "set spark.holdfast.exchange=resident"],
        ),
        (
            DEFAULT,
            {"spark.driver.host": "10.0.0.1"},
            ["not encrypted", "set spark.holdfast.tls.mode=files with spark.holdfast.tls.cert"],
        ),
        (
            FILES,
            {"spark.master": "yarn", "spark.decommission.enabled": "true", "spark.task.cpus": "4"},
            ["killed above 76 MB", "set spark.executor.memoryOverhead=1280m or more, or spark.holdfast.node.memoryMb"],
        ),
        (replace(DEFAULT, node_processes=2), {"spark.executor.memoryOverhead": "384m"}, ["killed above 153 MB"]),
        (replace(DEFAULT, node_memory_mb=100), {"spark.executor.memoryOverhead": "100m"}, []),
    ],
)
def test_what_is_off_is_named_with_the_remedy(settings: Settings, conf: dict[str, str], expected: list[str]) -> None:
    found = start_hints(settings, conf)
    assert len(found) == bool(expected)
    assert all(part in found[0] for part in expected)

"""A query that waits for a node, for three seconds, not an hour: the tool says what grows, and that it is exact."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from tools.loading import load_tool

tool = load_tool("wait_for_a_node")


def test_a_short_wait(tmp_path: Path) -> None:
    given = Namespace(
        minutes=0.05, rate=20.0, words=2, payload=10, checkpoint_seconds=0.5, sample=0.025, waiting_kb=2.0
    )
    found: dict[str, Any] = tool.wait(given, tmp_path)
    assert found["wrong"] == {}
    assert [one["minute"] for one in found["samples"]] == [0, 0.03, 0.05, "after"]
    assert {"kept-no-more", "regenerated"} <= {one["kind"] for one in found["events"]}
    assert found["checkpoints_without_the_waiting"] > 0

"""Requests name queries and outputs, also by the names that an application gave to its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.requests import RunRecord
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.messages import Failed, OperatorFailed
from holdfast.storage.storage import open_storage


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("by-page", "pages-count"), ("by-page[1]", "pages-count[1]"), ("pages-count[0]", "pages-count[0]"), ("x", "x")],
)
def test_an_output_is_named_by_its_name_or_its_operator(tmp_path: Path, given: str, wanted: str) -> None:
    progress = Progress(open_storage(f"{tmp_path}/run"), "a")
    progress.describe({"outputs": {"pages-count": "by-page", "users": "pages"}})
    progress.end()
    assert RunRecord(str(tmp_path)).by_operator(given) == wanted


def test_what_resumes_a_query_is_a_command_that_can_be_copied() -> None:
    failed = Failed(PartitionId(OperatorId("map"), 0), BatchId(3), "ValueError: no")
    error = OperatorFailed(failed, ["pages[0]", "pages[1]", "users[0]"], "/data/my app")
    assert "`holdfast resume '/data/my app' pages && holdfast resume '/data/my app' users`" in str(error)

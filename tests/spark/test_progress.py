"""The batch log: what a killed, a second and an old driver find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch
from holdfast.runtime.stores import StaleEpoch
from holdfast.spark.progress import ProgressFile


def test_what_was_written_is_found(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    first = ProgressFile(path, "app")
    wanted = replace(first.now, epoch=Epoch(3), checkpoint=BatchId(7), checkpoint_epoch=Epoch(2))
    first.write(wanted)
    assert ProgressFile(path, "app").now == wanted
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


def test_an_old_driver_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    old, new = ProgressFile(path, "app"), ProgressFile(path, "app")
    old.write(replace(old.now, epoch=Epoch(1)))
    new.write(replace(new.now, epoch=Epoch(2)))
    with pytest.raises(StaleEpoch):
        old.write(replace(old.now, checkpoint=BatchId(5)))
    assert ProgressFile(path, "app").now == new.now


@pytest.mark.parametrize("text", ["", "{", "[]", '{"application": "app"}', '{"application": "app", "epoch": "x"}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text(text)
    with pytest.raises(CheckFailed, match="damaged"):
        ProgressFile(path, "app")


def test_another_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    one = ProgressFile(path, "one")
    one.write(one.now)
    with pytest.raises(BadInput, match="belongs to application"):
        ProgressFile(path, "two")

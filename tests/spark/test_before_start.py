"""What is refused before a cluster is started. No Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.runtime.coordinator.liveness import SignWriter, this_driver
from holdfast.runtime.coordinator.progress import Progress
from holdfast.spark.before_start import check_before_start
from holdfast.storage.storage import open_storage

CONF = {"spark.holdfast.driver.heartbeat.seconds": "0.5"}


def application(folder: Path) -> hf.Application:
    folder.mkdir(exist_ok=True)
    app = hf.Application("a")
    app.source("s", hf.files(str(folder), "json"), schema="n int").output("n")
    return app


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """The directory of a run whose driver is alive."""
    storage = open_storage(f"{tmp_path}/run")
    progress = Progress(storage, "a", driver=this_driver())
    signs, over = SignWriter(storage, progress.claim), threading.Event()

    def give_signs() -> None:
        while not over.wait(0.1):
            signs.write()

    thread = threading.Thread(target=give_signs)
    thread.start()
    yield tmp_path
    over.set()
    thread.join()


def test_a_second_start_is_refused_before_a_cluster_is_started(live: Path) -> None:
    app = application(live / "in")
    with pytest.raises(BadInput, match=r"another driver runs this application.*--take-over"):
        check_before_start(app, CONF, master=None, directory=live, reads=True)
    check_before_start(app, CONF, master=None, directory=live, reads=True, take_over=True)


def test_a_run_that_ended_may_go_on(tmp_path: Path) -> None:
    Progress(open_storage(f"{tmp_path}/run"), "a", driver=this_driver()).end()
    check_before_start(application(tmp_path / "in"), CONF, master=None, directory=tmp_path, reads=True)

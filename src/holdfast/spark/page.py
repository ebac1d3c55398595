"""The live page beside a driver: whether there is one, and what it knows of the cluster's ring. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.dashboard.ring_watch import RingWatch
from holdfast.dashboard.run_page import RunPage
from holdfast.errors import HoldfastError, one_line
from holdfast.spark.certificates import files_of
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast.store.client.client import ClientSettings, PeerStore
from holdfast.store.client.overview import RingOverview, overview


def wants_page(asked: bool | None, settings: Settings, *, own: bool) -> bool:
    """Whether a run serves a page: as asked, else as set; `own`: it has an embedded cluster."""
    if asked is not None:
        return asked
    return own if settings.page_enabled == "auto" else settings.page_enabled == "true"


def open_page(
    running: SparkRun, settings: Settings, directory: str, events: Path, log: Callable[[str], object]
) -> RunPage | None:
    """Serve the page of a run; where that fails, the run goes on without, and a line says why."""

    def ask() -> RingOverview | None:
        peers = settings.store_peers or running.backend.agents
        if not peers:
            return None
        tls = files_of(settings) if settings.tls_mode == "files" else None
        with PeerStore(ClientSettings(tuple(peers), running.store_secret_file, tls)) as store:
            return overview(store)

    try:
        return RunPage(directory, events=events, host=settings.page_host, port=settings.page_port, ring=RingWatch(ask))
    except (HoldfastError, OSError) as error:
        log(f"there is no page: {one_line(str(error), 300)}")
        return None

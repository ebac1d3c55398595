"""The page of the run in a directory: its event file, its storage, its token. Runs beside the driver, or alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from holdfast.dashboard.page import LivePage, serve, token_of
from holdfast.dashboard.ring_watch import RingWatch
from holdfast.dashboard.server import PageServer
from holdfast.dashboard.what_if import what_if
from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.runtime.coordinator.liveness import driver_state
from holdfast.runtime.coordinator.parking import parked_named
from holdfast.runtime.coordinator.profile_records import last_profile, profile_of_run
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.runtime.coordinator.requests import ResumeRequests
from holdfast.storage.storage import is_url, open_storage


class RunPage:
    """A page that is served until it is closed."""

    def __init__(
        self,
        directory: str,
        *,
        events: Path | None = None,
        host: str,
        port: int,
        ring: Callable[[], Mapping[str, Any] | None] = lambda: None,
        require_run: bool = False,
    ) -> None:
        """Serve the page of a run; `events` where its event file is elsewhere, as with object storage.

        `require_run`: a directory in which no run began is refused.
        """
        directory = directory.rstrip("/")
        if events is None and is_url(directory):
            raise BadInput(
                "a bucket holds no event file",
                where=directory,
                remedy="give the file that the run named at its start: --events FILE",
            )
        file = events if events is not None else Path(directory) / "run" / "events.jsonl"
        self._storage, self._directory = open_storage(f"{directory}/run"), directory
        if require_run and last_driver(self._storage) is None:
            raise BadInput("no run began here", where=directory, remedy="give the directory of a run")
        with ExitStack() as held:
            self.page = LivePage(
                file,
                resume=self._resume,
                what_if=self._what_if,
                driver=lambda: driver_state(self._storage),
                topology=self._topology,
                ring=ring,
            )
            held.callback(self.page.close)
            self._server: PageServer = serve(self.page, host=host, port=port, token=token_of(file.parent))
            held.pop_all()
        self._ring = ring
        self.page.cpu_seconds = lambda: self.cpu_seconds
        self.url = self._server.url

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all threads of the page so far, those that ask the ring among them."""
        ring = self._ring.cpu_seconds if isinstance(self._ring, RingWatch) else 0.0
        return self._server.cpu_seconds + ring

    def close(self) -> None:
        """Serve no more."""
        self.page.close()
        self._server.close()

    def _topology(self) -> tuple[object, Mapping[str, str]] | None:
        found = last_profile(self._storage)
        return None if found is None else (found, {})

    def _what_if(self, asked: Mapping[str, str]) -> Mapping[str, Any]:
        view = self.page.view()
        domains = {one["name"]: one["domain"] or one["host"] for one in view["nodes"]}
        rows = view["partitions"].values()
        placed = {row["id"]: row["node"] for row in rows} if all(row["node"] for row in rows) else None
        return what_if(profile_of_run(self._directory), asked, domains, placement=placed)

    def _resume(self, query: str) -> Mapping[str, Any]:
        """Write a request as `holdfast resume` does; the driver that runs, or the next one, reads it."""
        last = last_driver(self._storage)
        machine: Mapping[str, Any] = {} if last is None else last["machine"] or {}
        named = parked_named([PartitionId.parse(one) for one in machine.get("parked", {})], query)
        number = ResumeRequests(self._storage).add(query)
        return {"queries": [str(one) for one in named], "request": number}

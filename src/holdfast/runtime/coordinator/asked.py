"""What people ask of a run while it goes on: that parked queries go on, that queries give tentative outputs, or none.

Runs on the driver. A request is taken once: its number is in the progress before it is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from holdfast.recovery.events import Event
from holdfast.runtime.coordinator.parking import Parking
from holdfast.runtime.coordinator.tentative import TentativeChoices


class Asked:
    """See the module."""

    def __init__(
        self,
        parking: Parking,
        choices: TentativeChoices,
        handle: Callable[[Event], None],
        emit: Callable[..., object],
        log: Callable[[str], object],
    ) -> None:
        self._parking, self._choices, self._handle, self._emit, self._log = parking, choices, handle, emit, log
        self._logged: set[str] = set()

    def take(self) -> None:
        """Take all requests."""
        self.resume()
        self._take_choices()
        for line in (*self._parking.unread.values(), *self._choices.unread.values()):
            if line not in self._logged:
                self._logged.add(line)
                self._log(f"a request is passed over: {line}")

    def resume(self) -> None:
        """Let parked queries go on that people have asked for; storage that is away is asked again."""
        try:
            found = self._parking.resumed()
        except OSError as error:
            self._log(f"requests to let parked queries go on cannot be read: {error}")
            return
        for event in found:
            self._handle(event)
        if any(event.request >= 0 for event in found):
            with contextlib.suppress(OSError):
                self._parking.logged()

    def _take_choices(self) -> None:
        """Let queries give tentative outputs, or none, as people have asked; storage that is away is asked again."""
        try:
            found = self._choices.taken()
        except OSError as error:
            self._log(f"requests for tentative outputs cannot be read: {error}")
            return
        for event, refused in found:
            self._handle(event)
            for line in refused:
                self._log(f"no tentative outputs of {line}")
            self._emit(
                "tentative-chosen", queries=[str(query) for query in event.queries], on=event.on, refused=refused
            )
        if found:
            with contextlib.suppress(OSError):
                self._choices.logged()

"""Deliberate bugs of the fragment store. Its simulator must find each; most were faults of the store once."""

from __future__ import annotations

from typing import Any

from holdfast.erasure.fragment import FragmentHeader
from holdfast.store.client.sending import FragmentSender
from holdfast.store.peer import fragment_files, repair
from holdfast.store.peer.fragment_writer import FragmentWriter
from holdfast.store.peer.repair import Repairer
from holdfast.store.peer.survey import Encoding
from holdfast.store.ring import placement
from holdfast.store.ring.ids import state_key
from holdfast.store.ring.placement import rank
from holdfast_lab.simulation.store import peers
from holdfast_lab.simulation.store.disk import SimulatedDisk
from simulation.bugs import Bug, Patch


def quarantined_without_handles(patch: Patch) -> None:
    """A fragment that cannot be opened because too many files are open is put in quarantine (eb2421c)."""
    patch.setattr(fragment_files, "_OF_THIS_PROCESS", ())


def copies_kept_by_rank(patch: Patch) -> None:
    """Of two copies the one at the peer that ranks best stays, whatever else that peer holds (f7e8ee8)."""

    def spread(self: Repairer, encoding: Encoding, limit: object) -> None:
        best_first = [one.address for one in rank(state_key(encoding.header.state), self._members())]
        for index, peers_ in encoding.holders.items():
            ranked = sorted(peers_, key=lambda peer: best_first.index(peer) if peer in best_first else 99)
            self._drop(FragmentHeader(encoding.header, index), ranked[1:])

    patch.setattr(Repairer, "_spread", spread)


def never_spread_again(patch: Patch) -> None:
    """Fragments that crowd on few peers stay there when others come."""
    right = placement.spread_copies

    def spread_copies(key: Any, holders: Any, members: Any, coding: Any, *, refused: Any) -> Any:
        chosen = right(key, holders, members, coding, refused=refused)
        moved = chosen is not None and any(one not in holders[index] for index, one in chosen.items())
        return None if moved else chosen

    patch.setattr(repair, "spread_copies", spread_copies)


def senders_left(patch: Patch) -> None:
    """Where one peer refuses a rebuilt fragment, the senders of the others are never told to end (f790548)."""

    class LeftAlone(FragmentSender):
        def feed(self, pieces: Any, stall_seconds: float) -> None:
            refused = any(one.error is not None for one in made if one.header.state == self.header.state)
            if pieces is not None or not refused:
                super().feed(pieces, stall_seconds)

        def finished(self, deadline: float) -> bool:
            if any(one.error is not None for one in made if one.header.state == self.header.state):
                return False
            return super().finished(deadline)

    made: list[FragmentSender] = []

    def sender(*given: Any, **named: Any) -> FragmentSender:
        made.append(LeftAlone(*given, **named))
        return made[-1]

    patch.setattr(repair, "FragmentSender", sender)


def puts_wait_for_ever(patch: Patch) -> None:
    """A put whose sender died without a word waits for its next chunk for ever (338a29b)."""

    async def enter(self: object) -> None:
        pass

    patch.setattr(peers._Timeout, "__aenter__", enter)


def acknowledged_before_sync(patch: Patch) -> None:
    """A fragment is acknowledged before its name is safe on the disk."""
    patch.setattr(SimulatedDisk, "sync_folder", lambda self, path: None)


def refused_is_stored(patch: Patch) -> None:
    """A sender that ended by an error counts as stored (17f2a86)."""
    right = FragmentSender.finished

    def finished(self: FragmentSender, deadline: float) -> bool:
        right(self, deadline)
        return True

    patch.setattr(FragmentSender, "finished", finished)


def room_stays_reserved(patch: Patch) -> None:
    """The room for a fragment that does not come stays reserved."""
    right = FragmentWriter.cancel

    def cancel(self: FragmentWriter) -> None:
        if self._target is not None:
            object.__setattr__(self._target, "cancelled", lambda: None)
        right(self)

    patch.setattr(FragmentWriter, "cancel", cancel)


STORE_BUGS = tuple(
    Bug(bug.__name__, str(bug.__doc__), bug)
    for bug in (
        quarantined_without_handles,
        copies_kept_by_rank,
        never_spread_again,
        senders_left,
        puts_wait_for_ever,
        acknowledged_before_sync,
        refused_is_stored,
        room_stays_reserved,
    )
)

SHOWN_BY = {
    "quarantined_without_handles": 0,
    "copies_kept_by_rank": 0,
    "never_spread_again": 1,
    "senders_left": 0,
    "puts_wait_for_ever": 21,
    "acknowledged_before_sync": 2,
    "refused_is_stored": 0,
    "room_stays_reserved": 0,
}
"""A seed that showed each last; what a seed draws changes with the simulator."""

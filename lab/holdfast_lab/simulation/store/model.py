"""What a simulated store must hold: every save that was acknowledged, and what the faults took from it.

The model sees the disks of all machines, also of those that are off. By induction an acknowledged state can be read as
long as faults leave m fragments: when a save is acknowledged its fragments are on disks, bit for bit; power cuts do not
take them; and the store never removes or puts away the last good copy of a fragment that is wanted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from holdfast.erasure.encoding import describe, encode
from holdfast.erasure.faults import FragmentFault
from holdfast.erasure.fragment import FragmentHeader, StateHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.states import Saved
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.ring.ids import state_key
from holdfast.store.ring.messages import Contact
from holdfast.store.ring.placement import choose_holders, domain_of
from holdfast_lab.simulation.store.disk import SimulatedDisk
from holdfast_lab.simulation.store.peers import BLOCK_BYTES, Machine

RACE_SECONDS = 45.0
"""Longer than a round of repair: what it read before a fault, it may act on after it."""


class Violation(Exception):
    """The store did what it must not do."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something that a client tried to save."""

    state: StateId
    version: BatchId
    epoch: Epoch
    contents: bytes
    follows: BatchId | None

    def header(self, coding: Coding) -> StateHeader:
        """Return the header of its fragments."""
        return describe(
            self.contents,
            self.state,
            self.version,
            self.epoch,
            coding,
            follows=self.follows,
            block_bytes=BLOCK_BYTES,
        )


class Model:
    """All saves, and the disks."""

    def __init__(self) -> None:
        self.machines: list[Machine] = []
        self.attempts: dict[tuple[StateId, BatchId, Epoch], Attempt] = {}
        self.live: dict[StateHeader, Attempt] = {}
        """Acknowledged, and neither released nor forgotten."""
        self.forgotten: dict[StateId, bool] = {}
        """States that are to go; True: all peers that there were have answered."""
        self.harms = 0
        """Faults that took fragments."""
        self.last_harm = -1e9
        self.synced: set[tuple[str, Path]] = set()
        """Fragments on machines, acknowledged as safe."""
        self.acknowledged = 0
        self._expected: dict[StateHeader, list[bytes]] = {}

    # What happens

    def harmed(self, now: float) -> None:
        """Note that a fault takes fragments."""
        self.harms += 1
        self.last_harm = now

    def saved(self, attempt: Attempt, saved: Saved, harms: int) -> None:
        """Note that a save was acknowledged; `harms` as it began."""
        header = attempt.header(saved.coding)
        self.acknowledged += 1
        if attempt.state in self.forgotten:
            return
        copies = self.copies(header)
        if self.harms == harms and len(copies) < saved.stored:
            raise Violation(f"{header} was acknowledged with {saved.stored} fragments, {len(copies)} are on disks")
        self.live[header] = attempt
        for index, machines in copies.items():
            place = self.place(FragmentHeader(header, index))
            self.synced |= {(machine.name, place) for machine in machines if machine.address in saved.holders}

    def released(self, state: StateId, before: BatchId) -> None:
        """Note that a client lets old versions go."""
        self.live = {
            header: one for header, one in self.live.items() if header.state != state or header.version >= before
        }

    def forget(self, state: StateId) -> None:
        """Note that a client lets a state go."""
        self.forgotten[state] = False
        self.live = {header: one for header, one in self.live.items() if header.state != state}

    def removes(self, disk: SimulatedDisk, path: Path) -> None:
        """See FileObserver: the last good copy of what is wanted stays."""
        self._goes(disk, path, "removed")

    def quarantines(self, disk: SimulatedDisk, path: Path) -> None:
        """See FileObserver: a good fragment is not put away."""
        header = self.good(path)
        if header is not None:
            raise Violation(f"a good fragment was put in quarantine: {header.index} of {header.state}")

    def _goes(self, disk: SimulatedDisk, path: Path, how: str) -> None:
        header = self.good(path)
        if header is None or header.state not in self.live or disk.scheduler.now - self.last_harm < RACE_SECONDS:
            return
        if self._superseded(header.state):
            return
        here = next(one for one in self.machines if one.disk is disk)
        others = [one.name for one in self.copies(header.state).get(header.index, ()) if one is not here]
        if not others:
            raise Violation(f"the last copy of fragment {header.index} of {header.state} was {how} at {here.name}")

    def _superseded(self, header: StateHeader) -> bool:
        """Whether a newer version may have replaced this one: then repair drops what is left of it."""
        changes = [one for one in self.live if one.state == header.state and one.follows == header.version]
        if any(len(self.copies(one)) >= one.coding.data for one in changes):
            return False  # they can be read with it, should its other fragments come back
        return any(
            state == header.state and (epoch, version) > (header.epoch, header.version)
            for state, version, epoch in self.attempts
        )

    # What there is

    @staticmethod
    def place(header: FragmentHeader) -> Path:
        """Return where a fragment lies in the folder of any peer."""
        return FragmentFiles.place(cast(FragmentFiles, SimpleNamespace(_fragments=Path("fragments"))), header)

    def expected(self, header: StateHeader) -> list[bytes] | None:
        """Return the fragments of an encoding, computed anew; None: nobody ever saved that."""
        known = self._expected.get(header)
        if known is None:
            attempt = self.attempts.get((header.state, header.version, header.epoch))
            if attempt is None or attempt.header(header.coding) != header:
                return None
            made = encode(
                attempt.contents,
                attempt.state,
                attempt.version,
                attempt.epoch,
                header.coding,
                follows=attempt.follows,
                block_bytes=BLOCK_BYTES,
            )
            known = self._expected[header] = [bytes(one) for one in made]
        return known

    def good(self, path: Path) -> FragmentHeader | None:
        """Return the header of a fragment on a disk; None where it is not as it was saved."""
        data = path.read_bytes()
        try:
            header = FragmentHeader.unpack(data)
        except FragmentFault:
            return None
        expected = self.expected(header.state)
        if expected is None:
            raise Violation(f"a fragment of what nobody saved: {header.state}")
        return header if data == expected[header.index] else None

    def copies(self, header: StateHeader, among: Iterable[Machine] | None = None) -> dict[int, list[Machine]]:
        """Return where good copies of each fragment are."""
        found: dict[int, list[Machine]] = {}
        expected = self.expected(header)
        assert expected is not None
        machines = list(self.machines if among is None else among)
        for index, contents in enumerate(expected):
            place = self.place(FragmentHeader(header, index))
            for machine in machines:
                path = machine.disk.folder / place
                if path.exists() and path.read_bytes() == contents:
                    found.setdefault(index, []).append(machine)
        return found

    # What must be in the end

    def problems(self) -> list[str]:
        """Check disks when faults are over and repair has had its time."""
        running = [one for one in self.machines if one.peer is not None]
        contacts = {one.name: one.peer.contact for one in running if one.peer is not None}
        found: list[str] = []
        for header in self.live:
            copies = self.copies(header, running)
            if len(copies) < header.coding.data:
                continue  # faults took too many
            missing = set(range(header.coding.total)) - set(copies)
            if missing:
                found.append(f"fragments {sorted(missing)} of {header} were not rebuilt")
            else:
                found += self._spread(header, copies, contacts)
        for state in self.forgotten:
            held = [(machine.name, one.state.state) for machine in running for one in self._held(machine)]
            kept = Counter(name for name, one in held if one == state)
            if kept:
                found.append(f"{state} was forgotten; fragments are left at {dict(kept)}")
        return found

    @staticmethod
    def _held(machine: Machine) -> list[FragmentHeader]:
        assert machine.peer is not None
        return list(machine.peer.files.all_held())

    @staticmethod
    def _spread(header: StateHeader, copies: dict[int, list[Machine]], contacts: dict[str, Contact]) -> list[str]:
        """Compare with a new placement on the same peers: as few on one peer, as few in one domain."""
        new = choose_holders(state_key(header.state), contacts.values(), header.coding)
        on_peer = Counter(machine.name for machines in copies.values() for machine in machines[:1])
        doubled = [index for index, machines in copies.items() if len(machines) > 1]
        if doubled:
            on_peer = Counter(machine.name for machines in copies.values() for machine in machines)
        in_domain: dict[object, int] = defaultdict(int)
        for name, count in on_peer.items():
            in_domain[domain_of(contacts[name])] += count
        found = []
        if max(on_peer.values()) > new.most_on_peer:
            found.append(f"{header}: {dict(on_peer)}, a new save would put {new.most_on_peer} on one peer")
        if max(in_domain.values()) > new.most_in_domain:
            found.append(
                f"{header}: {dict(in_domain)}, a new save would put {new.most_in_domain} in one domain; {dict(on_peer)}"
            )
        if doubled:
            found.append(f"{header}: fragments {doubled} are on several peers")
        return found

"""The ring of peers as a store of states. Runs anywhere, in any thread, before or after a fork; no event loop.

    store = PeerStore(["127.0.0.1:7400"], secret_file="/etc/holdfast/secret")
    store.save(StateId("traffic", "O3[0]"), version, epoch, contents)

A `PeerStore` may be pickled into a Spark task: the pickle holds addresses and file names, never the secret; the task
reads the secret from the file of that name on its own node. `saving` states when a save is acknowledged, `retrieving`
how a read proceeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from holdfast.erasure.decoding import StateDecoder
from holdfast.erasure.encoding import describe
from holdfast.erasure.fragment import FragmentHeader, StateHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.local import readable_versions
from holdfast.store.client.peer_speeds import PeerSpeeds, model_weights
from holdfast.store.client.retrieving import (
    HEDGE_SECONDS,
    Progress,
    Retrieval,
    RetrieveReport,
    no_progress,
    read_blocks,
)
from holdfast.store.client.saving import STALL_SECONDS, save_fragments
from holdfast.store.client.scatter import Outcome, scatter
from holdfast.store.client.states import Contents, Loaded, LoadedFile, Part, Saved, Version, chain_to
from holdfast.store.client.target_files import target_file
from holdfast.store.client.tuning import (
    CodeChoice,
    CodingTuner,
    SaveMeasurement,
    TuningGoals,
    coding_to_survive,
    peers_to_code_for,
)
from holdfast.store.peer.survey import Survey, everyone, locate, survey_state
from holdfast.store.ring.ids import state_key
from holdfast.store.ring.messages import Contact
from holdfast.store.ring.placement import Placement, choose_holders, rank
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ANSWER_SECONDS, CONNECT_SECONDS, ConnectionPool
from holdfast.store.wire.failures import BadRequest, NotSaved, StaleEpoch, StateMissing, Unreachable
from holdfast.store.wire.messages import Bytes, Frame
from holdfast.store.wire.secret_files import keys_from_file
from holdfast.store.wire.tls import TlsFiles

Read = TypeVar("Read")
MOST_FORGOTTEN = 200
"""States named in one request to forget: a frame's header holds them."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client reaches the ring. Holds file names, no secrets: it may travel in a closure."""

    peers: tuple[str, ...]
    """Addresses to ask first; any living one is enough."""
    secret_file: str | None = None
    tls: TlsFiles | None = None
    coding: Coding | None = None
    """m and k of every save; None: the tuner chooses, from what this client has measured."""
    survive: float | None = None
    """Share of the peers whose loss every save must survive, on rings of up to 32 peers; None: the tuner decides."""
    fewest_peers: int = 1
    """With fewer peers nothing is saved: it would not be safe."""
    goals: TuningGoals = field(default_factory=TuningGoals)
    tolerate: int | None = None
    """Losses a save must survive from the moment it is acknowledged; None: all k."""
    hedge_seconds: float = HEDGE_SECONDS
    stall_seconds: float = STALL_SECONDS
    connect_seconds: float = CONNECT_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    bandwidth: float | None = None
    """Bytes per second this client may move, each direction on its own; None: no limit."""


class PeerStore:
    """States on a ring of peers."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        known_peers: Callable[[], int] = lambda: 0,
        on_code: Callable[[CodeChoice], None] = lambda choice: None,
        pool: ConnectionPool | None = None,
    ) -> None:
        """Read the secret; connect when there is something to do.

        `known_peers`: how many there must be, whoever this client reaches: a code that is tuned is for so many.
        `on_code` gets the codes that the tuner chooses. `pool`: the connections; None: those of the settings.
        """
        if not settings.peers:
            raise BadRequest("no peer address is given", remedy="give HOST:PORT of at least one peer")
        for peer in settings.peers:
            Address.parse(peer)
        self.settings = settings
        self.tuner = CodingTuner(settings.goals, on_code)
        self.speeds = PeerSpeeds()
        self._known_peers = known_peers
        self._known: list[str] = []
        self._pool = pool or ConnectionPool(
            keys_from_file(settings.secret_file),
            settings.tls,
            connect_seconds=settings.connect_seconds,
            answer_seconds=settings.answer_seconds,
            bandwidth=settings.bandwidth,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return PeerStore, (self.settings,)

    @property
    def pool(self) -> ConnectionPool:
        """The connections, for those who ask peers other things."""
        return self._pool

    # Saving

    def save(
        self,
        state: StateId,
        version: BatchId,
        epoch: Epoch,
        contents: Contents,
        *,
        follows: BatchId | None = None,
        coding: Coding | None = None,
    ) -> Saved:
        """Code and save a version; returns when the quorum has it on disk (see `saving`)."""
        began = time.monotonic()
        candidates = self.candidates(state)
        asked = coding or self.settings.coding
        try:
            chosen = self._coding(len(contents), len(candidates), asked)
            saved = self._save(state, version, epoch, contents, follows, chosen, candidates)
        except NotSaved:
            living = candidates if asked else self._answering(candidates)
            if len(living) == len(candidates):
                raise
            # Some of those the ring named have just gone: a coding for those that are left.
            chosen = self._coding(len(contents), len(living))
            saved = self._save(state, version, epoch, contents, follows, chosen, living)
        return replace(saved, seconds=time.monotonic() - began)

    def _save(
        self,
        state: StateId,
        version: BatchId,
        epoch: Epoch,
        contents: Contents,
        follows: BatchId | None,
        coding: Coding,
        candidates: Sequence[Contact],
    ) -> Saved:
        header = describe(contents, state, version, epoch, coding, follows=follows)
        weighed = self.speeds.weighed(candidates)
        placement = choose_holders(state_key(state), weighed, coding)
        tolerate = coding.parity if self.settings.tolerate is None else min(self.settings.tolerate, coding.parity)
        report = save_fragments(
            self._pool,
            header,
            contents,
            [holder.address for holder in placement.holders],
            self._spares(state, weighed, placement),
            required=coding.data + tolerate,
            stall_seconds=self.settings.stall_seconds,
            acknowledge_seconds=self.settings.answer_seconds,
        )
        for address, sent, seconds in report.sent:
            self.speeds.measured(address, sent, seconds)
        self.tuner.saved(
            header,
            peers_to_code_for(len(candidates), self._known_peers()),
            SaveMeasurement(
                report.encode_seconds,
                report.seconds - report.encode_seconds,
                coding.total,
                sum(isinstance(one.error, Unreachable) for one in report.refused),
                self.speeds.usual(one.address for one in candidates),
                model_weights(self.speeds.weighed(candidates)),
            ),
        )
        notes = [f"fragment {one.index} went elsewhere: {one.error}" for one in report.refused]
        if placement.warning is not None:
            notes.append(placement.warning)
        return Saved(
            state,
            version,
            epoch,
            len(contents),
            coding,
            len(report.stored),
            report.seconds,
            tuple(report.stored.values()),
            len(candidates),
            tuple(notes),
        )

    def _coding(self, state_bytes: int, peers: int, asked: Coding | None = None) -> Coding:
        if peers < self.settings.fewest_peers:
            raise NotSaved(
                f"{peers} {'peer answers' if peers == 1 else 'peers answer'}, {self.settings.fewest_peers} are needed",
                remedy="start more peers",
            )
        if asked is not None:
            return asked
        surviving = None if self.settings.survive is None else coding_to_survive(peers, self.settings.survive)
        return surviving or self.tuner.choose(state_bytes, peers_to_code_for(peers, self._known_peers()))

    def _answering(self, candidates: Sequence[Contact]) -> list[Contact]:
        outcomes = scatter(
            candidates, lambda one: self._pool.request(Address.parse(one.address), "fences", {}), seconds=2.0
        )
        return [one.asked for one in outcomes if one.result is not None]

    @staticmethod
    def _spares(state: StateId, candidates: Sequence[Contact], placement: Placement) -> list[str]:
        """Return peers that hold nothing of this state yet, best first; others only after them, to save what can be."""
        used = {holder.id for holder in placement.holders}
        ranked = rank(state_key(state), candidates)
        return [one.address for one in ranked if one.id not in used]

    # Reading

    def versions(self, state: StateId) -> list[Version]:
        """Return the versions that can be read, oldest first."""
        survey = self.survey(state)
        left = {header: encoding.redundancy for header, encoding in survey.encodings.items()}
        return readable_versions(survey.whole(), left)

    def load(self, state: StateId, version: BatchId | None = None) -> Loaded:
        """Read a version and what it stands on; everything is verified before it is returned."""
        began = time.monotonic()

        def read(survey: Survey, chain: list[StateHeader]) -> Loaded:
            parts, lost, used = [], [], 0
            for header in chain:
                contents = bytearray(header.state_bytes)
                place = 0
                stripes, report = self._stripes(survey, header)
                for stripe in stripes:
                    contents[place : place + len(stripe)] = stripe
                    place += len(stripe)
                parts.append(Part(header.version, header.epoch, contents))
                used += len(report.used)
                lost += self._lost(survey, header, report)
            return Loaded(state, tuple(parts), used, tuple(lost), time.monotonic() - began)

        return self._reading(state, version, read)

    def load_into(
        self, state: StateId, path: Path, version: BatchId | None = None, progress: Progress = no_progress
    ) -> LoadedFile:
        """Read a version into a file, a few stripes in memory at a time; the file appears when all is verified."""
        began = time.monotonic()

        def read(survey: Survey, chain: list[StateHeader]) -> LoadedFile:
            lost: list[str] = []
            used, received, decoding, asking = 0, 0, 0.0, time.monotonic()
            predicted = sum(self.tuner.predicted_seconds(header, len(survey.asked)) for header in chain)
            before, needed = 0, sum(header.coding.data for header in chain)
            with target_file(path) as file:
                for header in chain:
                    stripes, report = self._stripes(survey, header, _counted_from(progress, before, needed))
                    for stripe in stripes:
                        file.write(stripe)
                    before += header.coding.data
                    used += len(report.used)
                    received += report.bytes
                    decoding += report.decode_seconds
                    lost += self._lost(survey, header, report)
            sizes = tuple(one.state_bytes for one in chain)
            ended = time.monotonic()
            return LoadedFile(
                state,
                chain[-1].version,
                path,
                sizes,
                used,
                tuple(lost),
                ended - began,
                decoding,
                received,
                ended - asking,
                predicted,
                chain[-1].coding,
            )

        return self._reading(state, version, read)

    def _reading(
        self, state: StateId, version: BatchId | None, read: Callable[[Survey, list[StateHeader]], Read]
    ) -> Read:
        """Find the chain and read it; again if it went away meanwhile because a newer version replaced it.

        What the neighbours of the key do not have is looked for in the whole ring before it is called missing: peers
        that have just come back, and fragments that are still to be handed over, are not yet where readers look.
        """
        for attempt in (1, 2, 3):
            survey = self.survey(state) if attempt == 1 else self._survey_ring(state)
            try:
                chain = chain_to(survey.whole(), state, version)
            except StateMissing as missing:
                if attempt == 1:
                    continue
                short = survey.shortfall()
                if survey.encodings and not survey.whole():
                    raise StateMissing(
                        f"{state} cannot be rebuilt: {short}", remedy="start peers that hold missing fragments"
                    ) from None
                raise StateMissing(
                    f"{missing.what}; {short}" if short else missing.what, remedy=missing.remedy
                ) from None
            try:
                return read(survey, chain)
            except StateMissing:
                if attempt == 3:
                    raise
        raise AssertionError("unreachable")

    def _stripes(
        self, survey: Survey, header: StateHeader, progress: Progress = no_progress
    ) -> tuple[Iterator[Contents], RetrieveReport]:
        retrieval = Retrieval(
            header,
            survey.encodings[header].holders,
            self._read_blocks,
            hedge_seconds=self.settings.hedge_seconds,
            progress=progress,
        )

        def decoded() -> Iterator[Contents]:
            began = time.monotonic()
            decoder = StateDecoder(header)
            for blocks in retrieval.stripes():
                before = time.monotonic()
                stripe = decoder.stripe(blocks)
                retrieval.report.decode_seconds += time.monotonic() - before
                yield stripe
            decoder.finish()
            lost = len(survey.encodings[header].missing) + len(retrieval.report.lost)
            seconds, decoding = time.monotonic() - began, retrieval.report.decode_seconds
            self.tuner.loaded(header, len(survey.asked), seconds, decoding, lost)

        return decoded(), retrieval.report

    def _read_blocks(self, address: str, fragment: FragmentHeader, first: int, count: int) -> Bytes:
        return read_blocks(self._pool, address, fragment, first, count)

    @staticmethod
    def _lost(survey: Survey, header: StateHeader, report: RetrieveReport) -> list[str]:
        """Return which fragments count as lost: damaged, unreachable, stale or simply not there."""
        lost = [f"fragment {one.index} at {one.address}: {one.reason}" for one in report.lost]
        lost += [f"fragment {index}: no peer has it" for index in survey.encodings[header].missing]
        if header.follows is not None:
            return lost
        # Peers that missed this base and still hold an older one.
        current = {peer for holders in survey.encodings[header].holders.values() for peer in holders}
        for other, encoding in survey.encodings.items():
            older = (other.epoch, other.version) < (header.epoch, header.version)
            if older and other.follows is None:
                lost += [
                    f"fragment {index} at {peer}: stale, version {other.version}"
                    for index, peers in encoding.holders.items()
                    for peer in peers
                    if peer not in current
                ]
        return lost

    # Everything else

    def release(self, state: StateId, before: BatchId, epoch: Epoch) -> None:
        """Let the peers delete older versions. A peer that misses the request keeps them until repair removes them."""
        peers = [one.address for one in self.candidates(state)]
        self._send_to_all(
            peers,
            "release",
            {"namespace": state.namespace, "name": state.name, "before": before, "epoch": epoch},
        )

    def forget(self, namespace: str, names: Sequence[str], epoch: Epoch) -> list[str]:
        """Drop every version of these states at all peers; return those peers that did not do it.

        A peer that refuses keeps no other from it, and not the names that follow; unless this epoch is over.
        """
        peers = [one.address for one in everyone(self._pool, self._contacts())]
        silent: set[str] = set()
        for first in range(0, len(names), MOST_FORGOTTEN):
            header = {"namespace": namespace, "names": names[first : first + MOST_FORGOTTEN], "epoch": epoch}
            outcomes = self._ask_all(peers, "forget", header)
            refused = [
                one.error for one in outcomes if one.error is not None and not isinstance(one.error, Unreachable)
            ]
            stale = [error for error in refused if isinstance(error, StaleEpoch)]
            done = {one.asked for one in outcomes if one.result is not None}
            if stale or (refused and not done):
                raise (stale or refused)[0]
            if not done:
                raise _none_answered(peers)
            silent |= set(peers) - done
        return sorted(silent)

    def fence(self, namespace: str, epoch: Epoch) -> Epoch:
        """Refuse every write of a lower epoch at all peers that answer; return the highest epoch that stands."""
        peers = [one.address for one in everyone(self._pool, self._contacts())]
        outcomes = self._send_to_all(peers, "fence", {"namespace": namespace, "epoch": epoch})
        return Epoch(max(int(one.result.header["epoch"]) for one in outcomes if one.result is not None))

    def standing_epoch(self, namespace: str) -> Epoch:
        """Return the highest epoch any peer has seen for a namespace: what a writer without a driver uses."""
        peers = [one.address for one in everyone(self._pool, self._contacts())]
        outcomes = self._send_to_all(peers, "fences", {})
        return Epoch(
            max(int(one.result.header["fences"].get(namespace, 0)) for one in outcomes if one.result is not None)
        )

    def restore_at(self, peer: str, state: StateId, file: str, version: BatchId | None = None) -> str:
        """Ask a peer to restore a state into a file in its restore folder by itself; return a ticket for `restored`."""
        header = {"namespace": state.namespace, "name": state.name, "version": version, "file": file}
        return str(self._pool.request(Address.parse(peer), "restore", header).header["ticket"])

    def restored(self, peer: str, ticket: str) -> dict[str, Any]:
        """Ask how a restore stands: `state` is waiting, running, done or failed."""
        return self._pool.request(Address.parse(peer), "restored", {"ticket": ticket}).header

    def survey(self, state: StateId) -> Survey:
        """Ask the ring what it holds of a state."""
        return survey_state(self._pool, state, [one.address for one in self.candidates(state)])

    def _survey_ring(self, state: StateId) -> Survey:
        """Query all peers of the ring."""
        named = [one.address for one in (*self.candidates(state), *self.members())]
        return survey_state(self._pool, state, list(dict.fromkeys((*named, *self.settings.peers))))

    def candidates(self, state: StateId) -> list[Contact]:
        """Return the peers around a state's key, the root first."""
        found = locate(self._pool, state, self._contacts())
        self._known = [one.address for one in found]
        return found

    def members(self) -> list[Contact]:
        """Return all peers of the ring."""
        return everyone(self._pool, self._contacts())

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    def _contacts(self) -> list[str]:
        return list(dict.fromkeys((*self.settings.peers, *self._known)))

    def _send_to_all(self, peers: Sequence[str], operation: str, header: dict[str, Any]) -> list[Outcome[str, Frame]]:
        outcomes = self._ask_all(peers, operation, header)
        refused = [one.error for one in outcomes if one.error is not None and not isinstance(one.error, Unreachable)]
        if refused:
            raise refused[0]
        if not any(one.result for one in outcomes):
            raise _none_answered(peers)
        return outcomes

    def _ask_all(self, peers: Sequence[str], operation: str, header: dict[str, Any]) -> list[Outcome[str, Frame]]:
        return scatter(peers, lambda peer: self._pool.request(Address.parse(peer), operation, header), seconds=5.0)


def _none_answered(peers: Sequence[str]) -> Unreachable:
    return Unreachable(f"none of {len(peers)} peers answered", remedy="check that the peers are running and reachable")


def _counted_from(progress: Progress, before: int, needed: int) -> Progress:
    """Count one state's fragments after those of the states before it in a chain."""
    return lambda fetched, _: progress(before + fetched, needed)


def connect(peer: str | Sequence[str], *, secret_file: str | None = None, **settings: Any) -> PeerStore:
    """Return a store on the ring that these peers belong to."""
    peers = (peer,) if isinstance(peer, str) else tuple(peer)
    return PeerStore(replace(ClientSettings(peers, secret_file), **settings))

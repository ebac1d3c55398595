"""One whole run of the ring study, from settings to result: what `holdfast simulate ring` and `experiment ring` run.

Deterministic: the same scenario gives the same outcome. Nothing here reads a clock or writes a file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput
from holdfast.store.ring.encoding import contact_to_plain, to_plain
from holdfast.store.ring.leaf_set import leaf_set_size
from holdfast.store.ring.machine import RingSettings
from holdfast.store.ring.messages import Call, KeepAlive
from holdfast_lab.ring_simulation.ring import Network, SimulatedRing
from holdfast_lab.ring_simulation.study import (
    Balance,
    Churn,
    Progress,
    Recovery,
    Routing,
    Survival,
    crash_together,
    grow,
    measure_routing,
    no_progress,
    place_states,
    run_churn,
    survivors,
)

SIZES = (500, 1000, 2000, 3000, 4000, 5000)
"""Where routing is measured on the way up (A-FP4S, Fig. 12a)."""

PAPER_CODING = Coding(10, 20)
"""The code of A-FP4S, sec. 5.5: m = 10, n = 30."""
OTHER_CODINGS = (Coding(16, 16), Coding(10, 4))


@dataclass(frozen=True, slots=True)
class RingScenario:
    """What is simulated; seconds are the simulation's."""

    peers: int = 5000
    applications: int = 1000
    coding: Coding = PAPER_CODING
    other_codings: tuple[Coding, ...] = OTHER_CODINGS
    """Compared with `coding` in what survives a failure."""
    domains: int = 8
    keep_alive: float = 30.0
    loss: float = 0.0
    """Share of messages that get lost."""
    shortest: float = 0.0005
    longest: float = 0.002
    """A message takes between these."""
    lookups: int = 2000
    churn: float = 0.1
    """Share of the peers that go, and of new ones that come, in `churn_seconds`."""
    churn_seconds: float = 300.0
    failures: tuple[float, ...] = (0.1, 0.2, 0.3333, 0.5, 0.6666)
    crash: float = 0.5
    """Share of the peers that crash in one moment at the end."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.peers < 2:
            raise BadInput(f"a ring of {self.peers} peers is too small", field="--peers", remedy="use at least 2")
        for field, share in (
            ("--loss", self.loss),
            ("--churn", self.churn),
            ("--crash", self.crash),
            *(("--failures", one) for one in self.failures),
        ):
            if not 0 <= share < 1:
                raise BadInput(f"{share} is not a share", field=field, remedy="use a number from 0 to below 1")
        if self.keep_alive <= 0:
            raise BadInput(
                f"{self.keep_alive} is not a number of seconds above 0",
                field="--keep-alive",
                remedy="use a number above 0",
            )

    @property
    def ring_settings(self) -> RingSettings:
        """The ring's settings: leaf sets for the largest code, upkeep every four keep-alives."""
        largest = max(coding.total for coding in (self.coding, *self.other_codings))
        return RingSettings(
            leaf_size=leaf_set_size(largest),
            keep_alive=self.keep_alive,
            answer_within=min(1.0, self.keep_alive / 4),
            table_period=4 * self.keep_alive,
        )

    @property
    def domain_names(self) -> list[str]:
        """Names of the failure domains; peers are spread over them in turn."""
        return [f"rack{number}" for number in range(self.domains)]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What the ring costs a peer while nothing happens."""

    messages_per_second: float
    bytes_per_second: float
    """As the JSON that peers send, without transport headers."""
    bytes_per_keep_alive: float


@dataclass(frozen=True, slots=True)
class RingOutcome:
    """Everything a run found."""

    scenario: RingScenario
    routing: tuple[Routing, ...]
    balance: Balance
    upkeep: Upkeep
    churn: Churn
    survival: tuple[Survival, ...]
    recovery: Recovery
    messages: int
    simulated_seconds: float

    def document(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return {"simulation": "ring", **asdict(self)}


def simulate_ring(scenario: RingScenario, progress: Progress = no_progress) -> RingOutcome:
    """Grow a ring, measure routing on the way, save states, run churn, and end with a correlated failure."""
    settings = scenario.ring_settings
    network = Network(scenario.shortest, scenario.longest, scenario.loss)
    ring = SimulatedRing(settings, scenario.seed, network)
    domains = scenario.domain_names
    routing = []
    sizes = sorted({size for size in SIZES if size < scenario.peers} | {scenario.peers})
    for size in sizes:
        grow(ring, size, domains, progress=lambda what, done, _: progress(what, done, scenario.peers))
        routing.append(measure_routing(ring, scenario.lookups, progress=progress))
    states, balance = place_states(ring, scenario.applications, scenario.coding, progress=progress)
    upkeep = measure_upkeep(ring)
    churn = run_churn(states, scenario.churn_seconds, scenario.churn, domains, progress=progress)
    survival = survivors(
        ring,
        [state.key for state in states.states],
        dict.fromkeys((scenario.coding, *scenario.other_codings)),
        scenario.failures,
        scenario.seed,
    )
    recovery = crash_together(states, scenario.crash, progress=progress)
    return RingOutcome(
        scenario=scenario,
        routing=tuple(routing),
        balance=balance,
        upkeep=upkeep,
        churn=churn,
        survival=tuple(survival),
        recovery=recovery,
        messages=ring.counts.messages,
        simulated_seconds=ring.now,
    )


def measure_upkeep(ring: SimulatedRing) -> Upkeep:
    """Let two keep-alive periods pass in which nothing happens, and count."""
    before, seconds = ring.counts.messages, 2 * ring.settings.keep_alive
    ring.run(seconds)
    per_second = (ring.counts.messages - before) / seconds / len(ring.peers)
    peer = next(iter(ring.peers.values()))
    message = {
        "sender": contact_to_plain(peer.contact),
        "message": to_plain(KeepAlive(Call.PERIODIC, peer.leaves.members)),
    }
    size = len(json.dumps(message, separators=(",", ":")))
    return Upkeep(per_second, per_second * size, size)

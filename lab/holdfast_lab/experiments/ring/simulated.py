"""Fig. 9c, 12 and 13c of A-FP4S, and churn and correlated failures, from one run of the simulated ring.

The paper ran 5,000 peers on 50 virtual machines; here they are in one process, on the same ring code as real peers.
Times are the simulated network's: a message takes 0.5 to 2 ms, a peer sends 100 Mbit/s.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast.erasure.layout import Coding
from holdfast_lab.experiments.ring.part import Claim, Part, Progress, RingExperiment
from holdfast_lab.ring_simulation.scenario import RingOutcome, simulate_ring


def run(experiment: RingExperiment, progress: Progress) -> list[Part]:
    """Simulate once, and cut the outcome into figures."""
    outcome = simulate_ring(experiment.scenario, progress)
    return [
        routing(outcome),
        retrieval(outcome, experiment),
        balance(outcome),
        upkeep(outcome),
        churn(outcome),
        correlated(outcome),
    ]


def routing(outcome: RingOutcome) -> Part:
    """Fig. 12a: time and hops of a lookup by the number of peers."""
    first, last = outcome.routing[0], outcome.routing[-1]
    wrong = sum(one.lookups - one.right for one in outcome.routing)
    lookups = sum(one.lookups for one in outcome.routing)
    return Part(
        name="routing",
        figure="12a",
        title="Routing by the number of peers",
        rows=tuple(asdict(one) for one in outcome.routing),
        claims=(
            Claim(
                "Fig. 12a",
                "routing time grows slightly with N, as O(log N)",
                "slight increase from 500 to 5,000 nodes (no figure in the text)",
                f"{1000 * first.mean_seconds:.2f} ms at {first.peers:,}, {1000 * last.mean_seconds:.2f} ms at "
                f"{last.peers:,}; {first.mean_hops:.2f} and {last.mean_hops:.2f} hops (log16 N: {first.logarithm:.2f}, "
                f"{last.logarithm:.2f})",
                all(one.mean_hops <= one.logarithm + 1 for one in outcome.routing),
            ),
            Claim(
                "sec. 3.2",
                "a route reaches the peer numerically closest to the key",
                "guaranteed",
                f"{lookups - wrong:,} of {lookups:,} lookups",
                not wrong,
            ),
        ),
        note="Random keys from random peers, at each size of one growing ring.",
    )


def retrieval(outcome: RingOutcome, experiment: RingExperiment) -> Part:
    """Fig. 9c: time to retrieve one fragment by the number of peers, for several codes."""
    scenario = outcome.scenario
    round_trip = scenario.shortest + scenario.longest  # twice the mean of a message
    rows: list[dict[str, Any]] = []
    for coding in dict.fromkeys((scenario.coding, *scenario.other_codings, Coding(20, 10))):
        fragment = experiment.state_bytes / coding.data
        for one in outcome.routing:
            seconds = one.mean_seconds + round_trip + fragment / experiment.bandwidth
            rows.append(
                {
                    "peers": one.peers,
                    "code": str(coding),
                    "fragment_mb": fragment / 1e6,
                    "lookup_ms": 1000 * one.mean_seconds,
                    "seconds_per_fragment": seconds,
                    "seconds_one_link": one.mean_seconds + round_trip + experiment.state_bytes / experiment.bandwidth,
                }
            )
    mine = [row for row in rows if row["code"] == str(scenario.coding)]
    growth = mine[-1]["seconds_per_fragment"] / mine[0]["seconds_per_fragment"] - 1
    return Part(
        name="retrieval",
        figure="9c",
        title=f"Time to retrieve one fragment of a state of {experiment.state_bytes >> 20} MB",
        rows=tuple(rows),
        claims=(
            Claim(
                "Fig. 9c",
                "the time per fragment hardly grows from 500 to 5,000 nodes",
                "increases only slightly (no figure in the text)",
                f"{100 * growth:.3f} % more at {mine[-1]['peers']:,} than at {mine[0]['peers']:,} peers",
                growth < 0.05,
            ),
        ),
        note=(
            "Lookup from the simulated ring, one round trip, then the fragment at 100 Mbit/s from its peer, all in "
            "parallel; `seconds_one_link`: all of them through one link of 100 Mbit/s, as eq. 2 has it."
        ),
    )


def balance(outcome: RingOutcome) -> Part:
    """Fig. 12b and 12c: how the fragments spread over the peers."""
    found = outcome.balance
    rows = []
    below = 0
    for held, peers in enumerate(found.histogram):
        below += peers
        rows.append({"fragments": held, "peers": peers, "share_at_most": below / found.peers})
    fewer = found.holding_fewer[25]
    over_30 = sum(found.histogram[31:])
    return Part(
        name="balance",
        figure="12b, 12c",
        title=f"{found.fragments:,} fragments of {found.states:,} applications on {found.peers:,} peers",
        rows=tuple(rows),
        claims=(
            Claim(
                "Fig. 12c",
                "95 % of nodes store fewer than 25 fragments (5,000 nodes, 1,000 applications, m = 10, n = 30)",
                "95 %",
                f"{100 * fewer:.2f} %; 95 % store at most {found.p95}",
                fewer >= 0.95,
            ),
            Claim(
                "Fig. 12b",
                "only a few nodes contain more than 30",
                "a few, near the roots",
                f"{over_30} of {found.peers:,}; the most is {found.most}, the mean {found.mean:.1f}",
                over_30 <= 0.01 * found.peers,
            ),
        ),
        note="Each state on its root and the root's leaf set, chosen by rendezvous hashing: roots are no hot spots.",
    )


def upkeep(outcome: RingOutcome) -> Part:
    """Fig. 13c, the ring's own part: what keep-alives cost a peer's network."""
    found = outcome.upkeep
    return Part(
        name="upkeep",
        figure="13c (ring)",
        title="Network use of the ring itself while nothing happens",
        rows=({"keep_alive_seconds": outcome.scenario.keep_alive, **asdict(found)},),
        claims=(
            Claim(
                "Fig. 13c",
                "fragments use more network than checkpoints to one place",
                "higher network usage (no figure in the text)",
                f"the ring's part is {found.bytes_per_second / 1000:.2f} kB/s a peer at T = "
                f"{outcome.scenario.keep_alive:g} s ({found.messages_per_second:.2f} messages/s)",
                None,
            ),
        ),
        note="Keep-alives as the JSON that peers send. CPU, memory and state traffic are measured on real peers.",
    )


def churn(outcome: RingOutcome) -> Part:
    """Ours: joins, leaves and crashes under way."""
    found = outcome.churn
    flat = {key: value for key, value in asdict(found).items() if key != "lookups"}
    lookups = {f"lookups_{key}": value for key, value in asdict(found.lookups).items() if key in ("lookups", "right")}
    return Part(
        name="churn",
        figure="ours",
        title=f"{found.crashes} crashes, {found.leaves} leaves, {found.joins} joins in {found.seconds:.0f} s",
        rows=({**flat, **lookups},),
        claims=(
            Claim(
                "sec. 3.6",
                "the ring repairs itself under churn and no state is lost",
                "stated",
                f"{found.lookups.right} of {found.lookups.lookups} lookups right meanwhile, {found.lost_states} states "
                f"lost, fewest fragments left {found.least_left} of {outcome.balance.coding.total}",
                found.lost_states == 0 and found.settled_after is not None,
            ),
        ),
        note="Half of the peers that go crash. A root rebuilds lost fragments when it notices, and audits at times.",
    )


def correlated(outcome: RingOutcome) -> Part:
    """Ours, beside eq. 3: what a failure of many peers at once leaves."""
    rows = [{**asdict(one), "coding": str(one.coding), "domain": one.predicted is None} for one in outcome.survival]
    random = [one for one in outcome.survival if one.predicted is not None]
    gap = max(abs(one.survived / one.states - float(one.predicted or 0.0)) for one in random)
    recovery = outcome.recovery
    # Four standard deviations of a share of this many states: what chance alone may do.
    allowed = 4 * (0.25 / random[0].states) ** 0.5
    settled = "not settled" if recovery.settled_after is None else f"settled after {recovery.settled_after:.0f} s"
    return Part(
        name="correlated",
        figure="ours (eq. 3)",
        title="States that survive the failure of many peers at once",
        rows=tuple(rows),
        claims=(
            Claim(
                "eq. 3",
                "a state is recovered while at most n - m of its holders fail",
                "binomial in the share of failed nodes",
                f"largest gap to eq. 3: {100 * gap:.1f} points of a hundred over {len(random)} cases",
                gap <= allowed,
            ),
            Claim(
                "sec. 3.2",
                f"the ring survives {100 * recovery.share:.1f} % of its peers crashing in one moment",
                "self-repairing",
                f"{settled}; {recovery.lookups.right} of {recovery.lookups.lookups} lookups right; "
                f"{recovery.survived} of {recovery.states} states kept, {recovery.full_again} with all fragments again",
                recovery.settled_after is not None and recovery.lookups.right == recovery.lookups.lookups,
            ),
        ),
        note="Placement with failure domains known, and for whole domains also as if they were not.",
    )

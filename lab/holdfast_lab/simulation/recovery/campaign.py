"""What came of many simulated recoveries. Runs anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast_lab.simulation.campaign import run_seeds
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.run import Outcome, simulate_recovery


@dataclass(slots=True)
class Campaign:
    """What came of many seeds."""

    seeds: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """What the seeds took on one core, summed over processes."""
    faults: Counter[Fault] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    resident: int = 0
    """Seeds whose workers stayed."""
    epochs: int = 0
    rollbacks: int = 0
    drivers: int = 0
    promotions: int = 0
    """How often second copies took their primaries' places."""
    tentative: int = 0
    """Batches of queries that were published as tentative."""
    violations: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.faults.update(outcome.faults)
        self.shapes[outcome.recipe.shape] += 1
        self.strategies[str(outcome.strategy)] += 1
        self.resident += outcome.resident
        self.epochs += outcome.epochs
        self.rollbacks += outcome.rollbacks
        self.drivers += outcome.drivers
        self.promotions += outcome.promotions
        self.tentative += outcome.tentative
        if outcome.violation is not None:
            self.violations.append(outcome)

    def document(self) -> dict[str, object]:
        """Return everything as plain values."""
        return {
            "seeds": self.seeds,
            "seconds": round(self.seconds, 3),
            "seconds_per_seed": round(self.cpu_seconds / max(1, self.seeds), 4),
            "faults": {str(fault): self.faults[fault] for fault in Fault},
            "shapes": dict(sorted(self.shapes.items())),
            "strategies": dict(sorted(self.strategies.items())),
            "resident": self.resident,
            "epochs": self.epochs,
            "rollbacks": self.rollbacks,
            "drivers": self.drivers,
            "promotions": self.promotions,
            "tentative": self.tentative,
            "violations": [violation_document(one) for one in self.violations],
        }


def violation_document(outcome: Outcome) -> dict[str, object]:
    """Return what is known of a seed that went wrong."""
    assert outcome.violation is not None
    return {
        "seed": outcome.seed,
        "what": outcome.violation.what,
        "application": str(outcome.recipe),
        "strategy": str(outcome.strategy),
        "nodes": outcome.nodes,
        "batches": outcome.batches,
        "histories": list(outcome.histories),
        "replay": f"holdfast simulate recovery --seed {outcome.seed}",
    }


def run_campaign(seeds: Sequence[int], *, jobs: int = 1, stop_at: int | None = None) -> Campaign:
    """Run seeds; stop early after so many violations."""
    campaign = Campaign()
    run_seeds(campaign, simulate_recovery, seeds, jobs=jobs, stop_at=stop_at)
    return campaign

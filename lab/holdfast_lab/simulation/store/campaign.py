"""What came of many seeds of the fragment store's simulator. Runs anywhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast_lab.simulation.store.run import StoreFault, StoreOutcome


@dataclass(slots=True)
class StoreCampaign:
    """What came of many seeds."""

    seeds: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """What the seeds took on one core, summed over processes."""
    faults: Counter[StoreFault] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    """Saves, reads, releases and forgets that ended well, operations that failed, and what repair did."""
    violations: list[StoreOutcome] = field(default_factory=list)

    def add(self, outcome: StoreOutcome) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.faults.update(outcome.faults)
        self.counts.update(outcome.counts)
        if outcome.violation is not None:
            self.violations.append(outcome)

    def document(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "seeds": self.seeds,
            "seconds": round(self.seconds, 3),
            "seconds_per_seed": round(self.cpu_seconds / max(1, self.seeds), 4),
            "faults": {str(fault): self.faults[fault] for fault in StoreFault},
            "counts": dict(sorted(self.counts.items())),
            "violations": [
                {"seed": one.seed, "what": one.violation, "replay": f"holdfast simulate store --seed {one.seed}"}
                for one in self.violations
            ],
        }

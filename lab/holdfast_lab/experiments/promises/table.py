"""The table: predicted beside measured, kill by kill and plan by plan, and what follows from it. Pure; runs anywhere.

Works on the documents that the experiment keeps per kill and per run, so it can be made again from those of earlier
days.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Any

Document = Mapping[str, Any]

MEDIAN_ERROR = 0.25
"""The median of relative errors is to be at most this."""
OVERHEAD_WITHIN = 0.2
"""What checkpoints and stored edges write may be above the budget by this share."""
LEAST_REPLAY = 3.0
"""Replay time over fixed costs, at least, for a kill to say something about the prediction."""
TIE = 0.1
"""Plans whose predicted mean recovery differs by less than this share are not ranked."""


def row(cell: Document) -> dict[str, Any]:
    """Return one kill as a row of the table; seconds."""
    predicted = cell["prediction"]
    measured = float(cell["measured"])
    fixed = float(predicted["fixed"])
    latency = cell.get("latency")
    return {
        "topology": cell["topology"],
        "plan": cell["plan"],
        "operator": cell["operator"],
        "replays": "+".join(predicted["rolls_back"]),
        "batches": predicted["batches"],
        "predicted": float(predicted["total"]),
        "measured": measured,
        "error": abs(measured - float(predicted["total"])) / measured,
        "error_summed": abs(measured - float(predicted["total_summed"])) / measured,
        "replay_over_fixed": float(predicted["pipelined"]) / fixed if fixed else None,
        "R": latency,
        "within_R": None if latency is None else measured <= float(latency) + fixed,
        "load": cell.get("load"),
    }


def summary(rows: Sequence[Document]) -> dict[str, Any]:
    """Return the median error: of all kills, of those whose replay is long enough, and with the papers' sums."""
    telling = [one for one in rows if (one["replay_over_fixed"] or 0.0) >= LEAST_REPLAY]
    backups = [one for one in rows if one["within_R"] is not None]
    return {
        "kills": len(rows),
        "median_error": median(one["error"] for one in rows) if rows else None,
        "telling": len(telling),
        "median_error_telling": median(one["error"] for one in telling) if telling else None,
        "median_error_summed": median(one["error_summed"] for one in rows) if rows else None,
        "within_target": bool(telling) and median(one["error"] for one in telling) <= MEDIAN_ERROR,
        "backups": len(backups),
        "backups_within_R": sum(bool(one["within_R"]) for one in backups),
    }


def overheads(runs: Iterable[Document]) -> list[dict[str, Any]]:
    """Return what each run's checkpoints and stored edges took beside what the plan says and what it may."""
    found = []
    for one in runs:
        written, budget = float(one["bytes_per_second"]), float(one["budget"])
        found.append(
            {
                "topology": one["topology"],
                "plan": one["plan"],
                "planned": one["planned"],
                "budget": budget,
                "measured": written,
                "over_budget": written / budget - 1.0 if budget else None,
                "within": written <= budget * (1 + OVERHEAD_WITHIN),
                "snapshots": one["snapshots"],
                "cpu_share": one["cpu_seconds"] / one["seconds"],
                "exact": one["exact"],
            }
        )
    return found


def rankings(rows: Sequence[Document], plans: Sequence[str]) -> list[dict[str, Any]]:
    """Return, per topology and pair of plans, which was predicted to recover sooner on average, and which did.

    Only operators that were killed under both count. `agrees` is None where the predictions are about the same.
    """
    found = []
    for topology in dict.fromkeys(str(one["topology"]) for one in rows):
        mine = {(one["plan"], one["operator"]): one for one in rows if one["topology"] == topology}
        for first, second in combinations([name for name in plans if any(plan == name for plan, _ in mine)], 2):
            both = [one for plan, one in mine if plan == first and (second, one) in mine]
            if not both:
                continue

            def mean(plan: str, what: str, mine: Any = mine, both: Any = both) -> float:
                return fmean(float(mine[plan, one][what]) for one in both)

            predicted = mean(first, "predicted"), mean(second, "predicted")
            measured = mean(first, "measured"), mean(second, "measured")
            apart = abs(predicted[0] - predicted[1]) / max(predicted)
            found.append(
                {
                    "topology": topology,
                    "plans": f"{first} : {second}",
                    "operators": len(both),
                    "predicted": [round(one, 2) for one in predicted],
                    "measured": [round(one, 2) for one in measured],
                    "agrees": None if apart < TIE else (predicted[0] < predicted[1]) == (measured[0] < measured[1]),
                }
            )
    return found

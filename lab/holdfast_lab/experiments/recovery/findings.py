"""What the drills of the recovery experiment say beside incremental recovery's claims. Runs anywhere; pure.

Works on `result.json` documents, so it can be made again from the files of drills that were run before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

Result = Mapping[str, Any]
LEVEL = 1.2
"""Relative latency from which on an output is late (the paper's Θ)."""
BLOCKING_SHARE = 0.7
"""Incremental unavailability is to be at most this share of blocking."""
PREDICTED_WITHIN = 0.15


@dataclass(frozen=True, slots=True)
class Claim:
    """Something the paper says, what is seen here, and whether it holds; None where it could not be seen."""

    where: str
    paper: str
    ours: str
    holds: bool | None


def mean_relative(results: Sequence[Result] | Result, *, failed: bool | None, step: float = 1.0) -> list[list[float]]:
    """Return the mean relative latency over time, over the queries that failed (or did not, or all), by steps."""
    found: dict[int, list[float]] = {}
    for result in [results] if isinstance(results, Mapping) else results:
        for query in result["queries"]:
            if failed is not None and (query["down_at"] is not None) != failed:
                continue
            for at, value in query["relative_latency"]:
                found.setdefault(int(at / step), []).append(value)
    return [[slot * step, fmean(values)] for slot, values in sorted(found.items())]


def latencies(result: Result) -> list[list[float]]:
    """Return latency, in seconds, over the time at which a batch was due: the axes of Fig. 9 and 10."""
    found: dict[int, list[float]] = {}
    for query in result["queries"]:
        before = query["latency_before"]
        for at, value in query["relative_latency"]:
            latency = value * before
            found.setdefault(round(at - latency), []).append(latency)
    return [[float(due), max(values)] for due, values in sorted(found.items())]


def late_seconds(result: Result) -> float | None:
    """Return priority x seconds in which outputs came late, by 1.2 of what is usual or more, over all queries.

    Unlike unavailability it has what going back costs those that did not fail.
    """
    fault = result["fault_at"]
    if fault is None:
        return None
    found = 0.0
    for query in result["queries"]:
        before = fault
        for at, value in query["relative_latency"]:
            if at > before:
                found += query["priority"] * (at - before) * (value >= LEVEL)
                before = at
    return found


def summary(name: str, label: str, result: Result) -> dict[str, Any]:
    """Return one drill as a row of a table."""
    down = [one for one in result["queries"] if one["down_at"] is not None]
    live = [one for one in result["queries"] if one["down_at"] is None]
    fault = result["fault_at"]
    during = [
        value
        for one in live
        for at, value in one["relative_latency"]
        if fault is not None and fault <= at <= fault + (result["all_back_after"] or 0)
    ]
    predicted = result.get("predicted_unavailability")
    return {
        "drill": name,
        "label": label,
        "verdict": result["verdict"],
        "unavailability": result["unavailability"],
        "unavailability_level": result["unavailability_level"],
        "late": late_seconds(result),
        "predicted": predicted,
        "measured_over_predicted": result["unavailability"] / predicted if predicted else None,
        "failed_queries": len(down),
        "median_down_seconds": median(one["back_at"] - one["down_at"] for one in down if one["back_at"] is not None)
        if any(one["back_at"] is not None for one in down)
        else None,
        "detected_after": result["detected_after"],
        "planned_after": result["planned_after"],
        "first_restore_after": result["first_restore_after"],
        "first_output_after": result["first_output_after"],
        "all_back_after": result["all_back_after"],
        "level_after": result["level_after"],
        "live_relative_latency": median(during) if during else None,
    }


def find_claims(results: Mapping[str, Result]) -> list[Claim]:
    """Hold the drills that were run beside what the paper, and our own targets, say."""
    found: list[Claim] = []

    def of(name: str) -> float | None:
        return results[name]["unavailability"] if name in results else None

    ours, blocking = of("fig11-incremental"), of("fig11-blocking")
    centric, best = of("fig11-operator-centric"), of("fig11-best-case")
    replay = of("fig11-source-replay")
    if ours is not None and blocking is not None:
        share = ours / blocking
        what = "incremental brings queries back as nodes come, blocking when the last has come"
        seen = f"unavailability {share:.2f} of blocking (at most {BLOCKING_SHARE})"
        found.append(Claim("Fig. 11", what, seen, share <= BLOCKING_SHARE))
    if ours is not None and centric is not None:
        seen = f"{ours:,.0f} beside {centric:,.0f}"
        found.append(Claim("Fig. 11, 15", "query-centric plans beat operator-centric ones", seen, ours < centric))
    if ours is not None and best is not None and blocking is not None:
        seen = f"{best:,.0f}, {ours:,.0f}, {blocking:,.0f}"
        found.append(Claim("Fig. 11", "best case, then incremental, then blocking", seen, best <= ours < blocking))
    if ours is not None and replay is not None:
        seen = f"{replay:,.0f} beside {ours:,.0f}"
        found.append(Claim("Fig. 9, 11", "replaying from the source costs more", seen, replay > ours))
        late = [late_seconds(results[f"fig11-{name}"]) or 0.0 for name in ("source-replay", "incremental")]
        seen = f"{late[0]:,.0f} beside {late[1]:,.0f} priority x seconds of late outputs, all queries"
        found.append(Claim("Fig. 9, 11", "and those that did not fail roll back for it", seen, late[0] > late[1]))
    incremental = results.get("fig11-incremental")
    if incremental is not None and incremental.get("predicted_unavailability"):
        ratio = incremental["unavailability"] / incremental["predicted_unavailability"]
        seen = f"measured {ratio:.2f} of what the planner's schedule predicts"
        found.append(Claim("ours", "within 15 % of the prediction", seen, abs(ratio - 1) <= PREDICTED_WITHIN))
    for where in ("upstream", "downstream"):
        first, second = of(f"fig12-{where}-incremental"), of(f"fig12-{where}-blocking")
        if first is not None and second is not None:
            seen = f"{first:,.0f} beside {second:,.0f}"
            found.append(Claim("Fig. 12", f"incremental beats blocking, {where} failures", seen, first < second))
    down = results.get("fig12-downstream-incremental")
    if down is not None and (line := summary("", "", down))["live_relative_latency"] is not None:
        seen = f"median relative latency {line['live_relative_latency']:.2f} while others are down"
        holds = line["live_relative_latency"] < 2
        found.append(Claim("Fig. 13", "live queries go on during recovery", seen, holds))
    for order in ("reverse", "topological"):
        few, many = results.get(f"fig14-{order}-2"), results.get(f"fig14-{order}-4")
        if few is not None and many is not None:
            spans = [_span(one) for one in (few, many)]
            seen = "all back after " + " and ".join("never" if one is None else f"{one:.0f} s" for one in spans)
            holds = None if None in spans else spans[0] < spans[1]  # type: ignore[operator]
            found.append(Claim("Fig. 14", f"more nodes take longer ({order})", seen, holds))
    worst = {kill: _worst(results[f"fig9-{kill}"]) for kill in (1, 2, 3) if f"fig9-{kill}" in results}
    if len(worst) == 3:
        seen = ", ".join(f"{kill}: {value:.0f} s" for kill, value in worst.items())
        found.append(Claim("Fig. 9", "source replay: latency grows with repeated failures", seen, worst[1] < worst[3]))
        if "fig9-incremental" in results:
            other = _worst(results["fig9-incremental"])
            seen = f"worst latency {other:.0f} s beside {worst[3]:.0f} s"
            found.append(Claim("Fig. 9", "incremental does not repeat the replay", seen, other < worst[3]))
    killed = {kill: _worst(results[f"fig10-{kill}"]) for kill in (1, 2) if f"fig10-{kill}" in results}
    for kill, value in killed.items():
        usual = median(one["latency_before"] or 0.0 for one in results[f"fig10-{kill}"]["queries"])
        seen = f"{kill} killed: worst latency {value:.0f} s, {usual:.1f} s before"
        found.append(Claim("Fig. 10", "Structured Streaming: every output waits", seen, value > 2 * usual))
        if f"fig10-holdfast-{kill}" in results:
            other = _worst(results[f"fig10-holdfast-{kill}"])
            seen = f"{kill} killed: worst latency {other:.0f} s beside {value:.0f} s"
            found.append(Claim("ours", "incremental is behind for less time", seen, other < value))
    return found


def _span(result: Result) -> float | None:
    value = result["all_back_after"]
    return None if value is None else float(value)


def _worst(result: Result) -> float:
    return max((value for _, value in latencies(result)), default=0.0)

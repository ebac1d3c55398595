"""The document that the page, `/api/view` and `/metrics` show: a run's model at a time. Pure.

Sections are top-level fields, so that a stream can send those alone that have changed. Times are seconds since 1970.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import reduce
from typing import Any

from holdfast.dashboard.estimate import Durations, Estimate, Under, estimate
from holdfast.dashboard.model_rows import QueryState
from holdfast.dashboard.notices import notices_of
from holdfast.dashboard.partition_rows import SHOWN
from holdfast.dashboard.view_model import RunModel
from holdfast.wording import counted

FORMAT = 1
RECOVERIES_SHOWN = 5
HAPPENED_SHOWN = 40


def view_of(
    model: RunModel, now: float, *, driver: str | None = None, ring: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the view of a run at a time.

    `driver`: `alive`, `gone`, `ended` or None, where it is not known. `ring`: the store's peers and states.
    """
    if model.ended is not None:
        now = max(model.ended["at"], model.last_at or 0.0)
    model.note_fidelity()
    under = _under(model)
    restores, replays = _samples(model)
    guess = _estimate(model, now, under, restores, replays)
    if model.recovery is not None and not model.recovery.is_start and guess is not None:
        _note_first(model, now, guess)
    target = _target(model)
    states = dict(sorted(model.rows.shown.items()))
    fidelity = None if model.topology is None else model.topology.fidelity(model.lost)
    return {
        "format": FORMAT,
        "run": _run(model, driver),
        "headline": _headline(model, states, fidelity, guess, target, driver),
        "operators": [] if model.topology is None else model.topology.operators,
        "partitions": model.rows.copy(),
        "states": states,
        "replicas": {"level": model.rows.replicas[True], "building": model.rows.replicas[False]},
        "queries": [_query(model, one) for one in _by_priority(model)],
        "nodes": _nodes(model),
        "ring": None if ring is None else dict(ring),
        "checkpoint": model.checkpoint,
        "recoveries": [one.document() for one in reversed(list(model.recoveries)[-RECOVERIES_SHOWN:])],
        "parked": [{"query": query, **why} for query, why in model.parked.items()],
        "promises": list(model.promises),
        "plan": model.plan,
        "notices": notices_of(model, now, under, restores, replays, driver),
        "happened": list(model.happened)[-HAPPENED_SHOWN:],
    }


def _run(model: RunModel, driver: str | None) -> dict[str, Any]:
    about = model.about
    return {
        "application": about.get("application"),
        "id": about.get("run"),
        "start": about.get("start"),
        "claim": about.get("claim"),
        "epoch": None if model.epoch is None else model.epoch[1],
        "started_at": about.get("at"),
        "starts": model.starts,
        "logged": model.logged,
        "frontier": model.frontier,
        "rows": model.rows_in,
        "rows_per_second": model.rows_per_second,
        "quarantined": model.quarantined,
        "unread": model.unread,
        "false_alarms": model.false_alarms,
        "rollbacks": model.rollbacks,
        "driver": driver,
        "ended": model.ended,
        "last_event_at": model.last_at,
        "state": _phase(model, driver),
    }


def _phase(model: RunModel, driver: str | None) -> str:
    if model.ended is not None:
        return "ended" if model.ended["problem"] is None else "failed"
    if driver == "gone":
        return "gone"
    if not model.rows:
        return "unknown"
    if model.recovery is not None:
        return "starting" if model.recovery.is_start else "recovering"
    return "running"


def _headline(
    model: RunModel,
    states: Mapping[str, int],
    fidelity: float | None,
    guess: Estimate | None,
    target: float | None,
    driver: str | None,
) -> dict[str, Any]:
    total = len(model.rows)
    live = total - len(model.rows.down)
    phase = _phase(model, driver)
    parts = [f"{live} of {counted(total, 'partition')}"]
    if phase == "recovering":
        if fidelity is not None:
            parts.append(f"fidelity {percent(fidelity)}")
        waiting = states.get("lost", 0)
        if guess is not None:
            parts.append(f"full recovery in {seconds(guess)}")
        elif waiting:
            parts.append(f"{waiting} without a node")
        if target is not None:
            parts.append(f"target {target:g} s")
        tentative = sum(one.tentative for one in model.queries.values())
        if tentative:
            parts.append(f"{counted(tentative, 'query', 'queries')} tentative")
    elif phase == "running":
        parts = [f"{live} of {counted(total, 'partition')} live"]
        if not model.parked:
            parts.append("every query is up")
    elif phase == "starting":
        parts.append("starting")
    if model.parked:
        parts.append(f"{counted(len(model.parked), 'query', 'queries')} parked")
    text = ", ".join(parts)
    if not total:
        text = "No topology in the event log yet"
    elif phase == "ended":
        text = "The run ended in order"
    elif phase == "failed":
        text = "The run failed"
    elif phase == "gone":
        text = f"The driver is gone; last seen: {text}"
    return {
        "text": text,
        "level": {"running": "ok", "ended": "ok", "starting": "info", "unknown": "info"}.get(phase, "bad")
        if not (phase == "running" and model.parked)
        else "warn",
        "live": live,
        "partitions": total,
        "fidelity": fidelity,
        "recovery": None
        if guess is None
        else {
            "seconds": round(guess.seconds, 1),
            "plus_minus": None if guess.plus_minus is None else round(guess.plus_minus, 1),
            "source": guess.source,
        },
        "target": target,
    }


def percent(share: float) -> str:
    """Write a share: 0.784 is `78 %`; only what is whole is 100 %."""
    rounded = round(100 * share)
    return f"{99 if rounded == 100 and share < 1 else rounded} %"


def seconds(guess: Estimate) -> str:
    """Write an estimate: `12 s ± 3 s`."""
    whole = max(1, round(guess.seconds))
    if guess.plus_minus is None:
        return f"about {whole} s (the plan's prediction)"
    return f"{whole} s ± {max(1, round(guess.plus_minus))} s"


# -- partitions, queries, nodes ----------------------------------------------------------------------------------------


def _by_priority(model: RunModel) -> list[QueryState]:
    return sorted(model.queries.values(), key=lambda one: (-one.priority, one.id))


def _query(model: RunModel, one: QueryState) -> dict[str, Any]:
    members = () if model.topology is None else model.topology.members.get(one.id, ())
    down = model.rows.down_in(one.id)
    if one.id in model.parked:
        state = "parked"
    elif one.tentative:
        state = "tentative"
    elif down:
        state = "down"
    elif model.topology is None:
        state = "unknown"
    else:
        inner = model.rows.states_in(one.id)
        state = next((each for each in ("paused", "catching-up", "unknown") if each in inner), "running")
    latencies = list(one.latencies)
    outage = None
    if model.recovery is not None and one.id in model.recovery.outages and down:
        outage = model.recovery.outages[one.id].down_at
    return {
        "id": one.id,
        "output": one.output,
        "priority": one.priority,
        "state": SHOWN.get(state, state),
        "down_since": outage,
        "partitions": len(members),
        "lost": down,
        "tentative": one.tentative,
        "fidelity": one.fidelity,
        "published": one.published,
        "published_at": one.published_at,
        "lag": max(0, model.logged - one.published),
        "rows": one.rows,
        "latency": round(latencies[-1], 3) if latencies else None,
        "latency_median": round(statistics.median(latencies), 3) if latencies else None,
        "latencies": [round(each, 2) for each in latencies[-30:]],
    }


def _nodes(model: RunModel) -> list[dict[str, Any]]:
    bound = model.about.get("bound")
    domains = model.about.get("domains") or {}
    found = []
    for name, one in sorted(model.nodes.items()):
        mine = model.rows.on.get(name, set()) if one.state == "up" else set()
        copies = model.rows.replicas_on.get(name, set()) if one.state == "up" else set()
        known = [model.costs[p] for p in (*mine, *copies) if p in model.costs]
        host = name.rpartition("-")[0] or name
        found.append(
            {
                "name": name,
                "host": host,
                "domain": domains.get(host),
                "state": one.state,
                "since": one.since,
                "why": one.why,
                "partitions": len(mine),
                "replicas": len(copies),
                "capacity": one.capacity,
                "bound": bound,
                "load": round(sum(known), 4) if known else None,
            }
        )
    return found


# -- the recovery ------------------------------------------------------------------------------------------------------


def _under(model: RunModel) -> dict[str, Under]:
    """Return the partitions of the recovery that are on their way."""
    if model.recovery is None:
        return {}
    found = {}
    for name in model.recovery.open:
        row = model.rows.get(name)
        if row is not None and row["state"] in ("restoring", "catching-up"):
            found[name] = Under(row["state"], row["since"])
    return found


def _samples(model: RunModel) -> tuple[Durations, Durations]:
    """Return how long restores and replays took: in this recovery, where it has any, else in earlier ones."""
    now = model.recovery
    earlier = [one for one in model.recoveries if one is not now and not one.is_start]
    restores = Durations() if now is None or now.is_start else now.restores
    replays = Durations() if now is None or now.is_start else now.replays
    if not restores.count:
        restores = reduce(Durations.plus, (one.restores for one in earlier), Durations())
    if not replays.count:
        replays = reduce(Durations.plus, (one.replays for one in earlier), Durations())
    return restores, replays


def _estimate(
    model: RunModel, now: float, under: Mapping[str, Under], restores: Durations, replays: Durations
) -> Estimate | None:
    recovery = model.recovery
    if recovery is None or recovery.is_start:
        return None
    return estimate(now, under, model.rows.shown["lost"], restores, replays, _planned_until(model))


def _planned_until(model: RunModel) -> float | None:
    """Return until when the plan's prediction has all queries of this recovery back; None where it covers it not."""
    recovery, plan = model.recovery, model.plan
    if recovery is None or plan is None or not recovery.outages:
        return None
    if len(recovery.nodes) > plan["survive"]:
        return None
    predicted = {one.get("query"): one.get("predicted") for one in plan["predicted"]}
    times = [predicted.get(query) for query in recovery.outages]
    if not times or any(one is None for one in times):
        return None
    return recovery.began + max(float(one) for one in times if one is not None)


def _target(model: RunModel) -> float | None:
    """Return the target of the recovery: the longest of the queries that are down; None where there is none."""
    plan, recovery = model.plan, model.recovery
    if plan is None:
        return None
    targets = {one.get("query"): one.get("target") for one in plan["predicted"] if one["target"]}
    names = targets if recovery is None or recovery.is_start else recovery.outages
    times = [float(targets[query]) for query in names if query in targets]
    return max(times, default=None)


def _note_first(model: RunModel, now: float, guess: Estimate) -> None:
    recovery = model.recovery
    if recovery is not None and recovery.first_estimate is None:
        spread = None if guess.plus_minus is None else round(guess.plus_minus, 1)
        recovery.first_estimate = (now, now - recovery.began + guess.seconds, spread)

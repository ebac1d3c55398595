"""What is slow, stuck or failing in a run, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.dashboard.estimate import Durations, Under, slow_after
from holdfast.dashboard.model_rows import some
from holdfast.dashboard.view_model import RunModel
from holdfast.wording import counted

WAITING_SECONDS = 5.0
"""Partitions may wait for nodes so long before it is said that they do."""
CHECKPOINTS_MISSED = 5.0
"""A checkpoint is late after so many times the usual time between two."""
LEAST_LATE_SECONDS = 60.0
RECENT_SECONDS = 60.0
"""What failed longer ago, and has not failed since, is not shown."""


def notices_of(
    model: RunModel,
    now: float,
    under: Mapping[str, Under],
    restores: Durations,
    replays: Durations,
    driver: str | None,
) -> list[dict[str, Any]]:
    """Return what people should look at, the worst first: `level`, `title`, `text`, `remedy`."""
    found = [
        *_driver(model, driver),
        *_parked(model),
        *_waiting(model, now),
        *_slow(now, under, restores, replays),
        *_broken(model),
        *_alarmed(model),
        *_dropped(model),
        *_failing(model, now),
        *_checkpoint_late(model, now),
    ]
    if model.skipped:
        found.append(
            _notice(
                "info",
                f"{counted(model.skipped, 'event')} could not be read",
                "The log is damaged, or from another version.",
                "The page shows what the other events say; the run is not affected.",
            )
        )
    order = {"bad": 0, "warn": 1, "info": 2}
    return sorted(found, key=lambda one: order[one["level"]])


def _notice(level: str, title: str, text: str, remedy: str) -> dict[str, Any]:
    return {"level": level, "title": title, "text": text, "remedy": remedy}


def _driver(model: RunModel, driver: str | None) -> list[dict[str, Any]]:
    if model.ended is not None and model.ended["problem"] is not None:
        return [
            _notice(
                "bad",
                "The run failed",
                str(model.ended["problem"]),
                "Remove the cause, then start the run again with the same directory: it continues from its checkpoint.",
            )
        ]
    if model.ended is None and driver == "gone":
        return [
            _notice(
                "bad",
                "The driver is gone",
                "Its process ended without closing the run. Nothing runs; what is shown is its last state.",
                "Start the run again with the same directory: it continues from its checkpoint.",
            )
        ]
    return []


def _parked(model: RunModel) -> list[dict[str, Any]]:
    if not model.parked:
        return []
    return [
        _notice(
            "warn",
            f"{counted(len(model.parked), 'query', 'queries')} parked",
            "An operator, a row or a sink keeps failing. All other queries continue.",
            "Remove the cause, then resume the query below, or with holdfast resume.",
        )
    ]


def _waiting(model: RunModel, now: float) -> list[dict[str, Any]]:
    lost = model.rows.lost()
    since = min((row["since"] for row in lost), default=now)
    if not lost or now - since < WAITING_SECONDS or model.ended is not None:
        return []
    left = f"{counted(len(lost), 'partition')} found no room on the nodes that are left, for {now - since:.0f} s."
    asked = f"{counted(model.requested, 'node')} requested." if model.requested else ""
    return [
        _notice(
            "warn",
            "Waiting for nodes",
            f"{left} {asked}".strip(),
            "Give the cluster nodes, or raise spark.holdfast.node.capacity; the most valuable queries run meanwhile.",
        )
    ]


def _slow(now: float, under: Mapping[str, Under], restores: Durations, replays: Durations) -> list[dict[str, Any]]:
    most = {"restoring": slow_after(restores), "catching-up": slow_after(replays)}
    slow = [name for name, one in under.items() if now - one.since > most[one.state]]
    if not slow:
        return []
    names = ", ".join(slow[:3]) + (f" and {len(slow) - 3} more" if len(slow) > 3 else "")
    return [
        _notice(
            "warn",
            f"Slow: {names}",
            "Restoring or replaying takes more than three times as long as usual.",
            "Look at the executor's log on its node, and at disk and network there.",
        )
    ]


def _broken(model: RunModel) -> list[dict[str, Any]]:
    recent = [one for one in model.promises if one.get("kept") is False][-1:]
    return [
        _notice(
            "warn",
            f"{one['query']}: a promise was not kept",
            f"Back after {one['measured']:g} s; the plan promised {one.get('target') or one['predicted']:g} s.",
            "A run with a joint plan makes its plan again by itself when measurements drift (not with "
            "spark.holdfast.plan.adapt=false, nor with intervals or backups set by hand). holdfast report DIRECTORY "
            "shows where the time of this recovery went.",
        )
        for one in recent
    ]


def _alarmed(model: RunModel) -> list[dict[str, Any]]:
    return [
        _notice(
            "warn",
            f"A promise of the plan does not hold: {what}",
            f"With present measurements the plan comes to {one['now']:.3g}{_unit(what)}; the target is "
            f"{one['target']:.3g}.",
            "The run searches for another plan by itself, unless only the measured overhead is above its target. If "
            "this notice stays for ten checkpoint intervals, add nodes or change a target.",
        )
        for what, one in sorted(model.alarms.items())[:3]
    ]


def _dropped(model: RunModel) -> list[dict[str, Any]]:
    if not model.dropped:
        return []
    return [
        _notice(
            "warn",
            f"Inputs kept for {some(sorted(model.dropped))} were dropped",
            "Outboxes reached spark.holdfast.recovery.waitingMb. No row is lost: when the partitions return, they "
            "regenerate these inputs from the durable checkpoint and the batch log.",
            "Add a node, or resume what is parked: every minute of waiting lengthens the return.",
        )
    ]


def _unit(what: str) -> str:
    return " of the bandwidth" if what == "overhead" else " s"


_FAULTS = {
    "cycle-failed": ("A cycle did not end", "The next one repeats it; read the executors' logs if it goes on."),
    "failed": ("A batch failed and is tried again", "After the last attempt its queries are parked."),
    "snapshot-not-stored": (
        "A snapshot could not be stored",
        "It is tried again; look at the store's agents and disks.",
    ),
    "not-staged": (
        "Nodes cannot write an output's files",
        "Let every node reach the sink; its rows pass the driver now.",
    ),
    "plan-rejected": ("A recovery plan failed its check", "A fault of Holdfast: keep the directory and report it."),
}


def _failing(model: RunModel, now: float) -> list[dict[str, Any]]:
    found = []
    for (kind, place), fault in model.faults.items():
        if now - fault.at > RECENT_SECONDS and kind != "plan-rejected":
            continue
        title, remedy = _FAULTS[kind]
        times = f" ({fault.times} times)" if fault.times > 1 else ""
        where = f"{place}: " if place else ""
        found.append(_notice("warn", f"{title}{times}", f"{where}{fault.problem}", remedy))
    return found


def _checkpoint_late(model: RunModel, now: float) -> list[dict[str, Any]]:
    last = model.checkpoint
    if last is None or last["interval"] is None or model.ended is not None or model.recovery is not None:
        return []
    age = now - last["at"]
    if age < max(LEAST_LATE_SECONDS, CHECKPOINTS_MISSED * last["interval"]) or model.logged <= last["batch"]:
        return []
    return [
        _notice(
            "warn",
            f"No checkpoint for {age:.0f} s",
            f"Before, one came every {last['interval']:.0f} s.",
            "Snapshots cannot be stored: see snapshot-not-stored in the events, and the disks of the nodes.",
        )
    ]

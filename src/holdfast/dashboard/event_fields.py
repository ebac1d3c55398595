"""Fields of events as the model keeps them: of the types that a page can count on, whatever a log says. Pure.

What is missing or of another type raises KeyError, TypeError, ValueError or AttributeError, and the event is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]


def read_about(event: Event) -> dict[str, Any]:
    """Return what an event `run` says of a run, without its topology."""
    about = {key: event.get(key) for key in ("at", "application", "claim", "run", "start")}
    about["bound"] = number(event.get("bound"))
    about["domains"] = {str(host): str(name) for host, name in (event.get("domains") or {}).items()}
    return about


def read_plan(event: Event) -> dict[str, Any]:
    """Return what an event `plan` says: what the run executes, and predictions per query."""
    predicted = [dict(one) for one in event.get("predicted") or ()]
    for one in predicted:
        one["predicted"], one["target"] = number(one.get("predicted")), number(one.get("target"))
    kept = {key: event.get(key) for key in ("at", "interval_seconds", "backups", "fragments", "not_executed")}
    survive = int((event.get("targets") or {}).get("survive") or 0)
    return {**kept, "predicted": predicted, "survive": survive}


def read_promise(at: float, event: Event) -> dict[str, Any]:
    """Return what an event `promise` says: a prediction, and what was measured."""
    return {
        "at": at,
        "query": str(event["query"]),
        "predicted": float(event["predicted"]),
        "measured": float(event["measured"]),
        "target": number(event.get("target")),
        "nodes_lost": event.get("nodes_lost"),
        "covered": event.get("covered"),
        "kept": event.get("kept"),
    }


def read_fetched(event: Event) -> dict[str, Any]:
    """Return what an event `restored` says of a snapshot that was fetched."""
    return {
        "from_peers": int(event.get("bytes_from_peers") or 0),
        "from_folder": int(event.get("bytes_from_folder") or 0),
        "from_node": int(event.get("bytes_from_node") or 0),
        "seconds": float(event["fetch_seconds"]),
        "predicted": number(event.get("predicted_seconds")),
    }


def number(value: Any) -> float | None:
    """Return a number; None where there is none."""
    return None if value is None else float(value)

"""Drills whose results are there already are not done again. Runs beside the cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.drill.cluster_pool import ClusterPool
from holdfast.drill.drill import run_drill, with_capacity
from holdfast.drill.scenarios import find_scenario
from holdfast.drill.settings import DrillSettings


def run_or_reuse(asked: DrillSettings, place: Path, clusters: ClusterPool, *, reuse: bool) -> dict[str, Any]:
    """Run one drill, or take what the same one left in this directory the last time; return its result."""
    if reuse and (found := _left(asked, place)) is not None:
        return found
    return run_drill(asked, place, clusters=clusters).result


def is_there(asked: DrillSettings, place: Path) -> bool:
    """Whether a drill has left its result in this directory."""
    return _left(asked, place) is not None


def _left(asked: DrillSettings, place: Path) -> dict[str, Any] | None:
    held = place / "result.json"
    if not held.exists():
        return None
    found: dict[str, Any] = json.loads(held.read_text())
    whole = with_capacity(asked, find_scenario(asked.scenario).application().topology())
    return found if found["settings"] == json.loads(json.dumps(whole.document())) else None

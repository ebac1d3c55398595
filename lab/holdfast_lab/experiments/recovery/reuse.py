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
    held = place / "result.json"
    whole = with_capacity(asked, find_scenario(asked.scenario).application().topology())
    if reuse and held.exists():
        found: dict[str, Any] = json.loads(held.read_text())
        if found["settings"] == json.loads(json.dumps(whole.document())):
            return found
    return run_drill(asked, place, clusters=clusters).result

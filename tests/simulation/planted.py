"""All deliberate bugs, with the seeds in which each can show, and one that showed it last (shown_by.json).

What a seed draws changes with the simulator: `python tools/find_planted_bugs.py` writes shown_by.json anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from holdfast_lab.simulation.recovery.gathered import gathers_outputs
from holdfast_lab.simulation.recovery.gathered_delta import gathers_into_delta
from holdfast_lab.simulation.recovery.late_sinks import has_late_sinks
from holdfast_lab.simulation.recovery.plan_scene import changes_plans
from holdfast_lab.simulation.recovery.poison import is_poisoned
from holdfast_lab.simulation.recovery.poison_rows import has_poison_rows
from holdfast_lab.simulation.recovery.run import Outcome
from holdfast_lab.simulation.recovery.scene import (
    drops_for_waiting,
    freezes_at_fences,
    has_branches,
    has_copies,
    has_dead_links,
    is_resident,
    leaves_behind,
    moves_for_load,
    replans,
)
from holdfast_lab.simulation.recovery.segment_scene import has_segments, holds_blocks, is_refined
from holdfast_lab.simulation.recovery.table_sink import changes_every, writes_to_tables
from holdfast_lab.simulation.recovery.topic_sink import writes_to_topics
from holdfast_lab.simulation.recovery.world import has_agents, loses_files, reads_in_place, reads_topics
from simulation.branch_bugs import BRANCH_BUGS
from simulation.bugs import AGENT_BUGS, BUGS, Bug
from simulation.catching_up_bugs import CATCHING_UP_BUGS
from simulation.copy_bugs import COPY_BUGS, LEAVING_BUGS, MOVE_BUGS, REPLAN_BUGS
from simulation.detection_bugs import DETECTION_BUGS
from simulation.driver_bugs import DRIVER_BUGS
from simulation.fence_bugs import CLAIM_BUGS, FENCE_BUGS
from simulation.file_bugs import FILE_BUGS, RETENTION_BUGS
from simulation.fragment_bugs import FRAGMENT_BUGS
from simulation.gathered_bugs import GATHERED_BUGS
from simulation.gathered_delta_bugs import GATHERED_DELTA_BUGS
from simulation.held_bugs import HELD_BUGS, HELD_PLAN_BUGS
from simulation.intermediate_bugs import INTERMEDIATE_BUGS
from simulation.link_bugs import LINK_BUGS, ROOM_BUGS
from simulation.mark_bugs import MARK_BUGS
from simulation.parking_bugs import PARKING_BUGS
from simulation.pausing_bugs import PAUSING_BUGS
from simulation.plan_bugs import PLAN_BUGS
from simulation.process_bugs import PROCESS_BUGS
from simulation.publishing_bugs import PUBLISHING_BUGS
from simulation.quarantine_bugs import QUARANTINE_BUGS
from simulation.regeneration_bugs import DROPPED_ROW_BUGS, REGENERATION_BUGS
from simulation.resident_bugs import RESIDENT_BUGS
from simulation.segment_bugs import SEGMENT_BUGS
from simulation.set_bugs import SET_BUGS
from simulation.snapshot_bugs import SNAPSHOT_BUGS
from simulation.table_bugs import CORRECTION_BUGS, LEFT_BUGS, TABLE_BUGS
from simulation.topic_bugs import TOPIC_BUGS, VERSION_BUGS
from simulation.topic_source_bugs import TOPIC_SOURCE_BUGS

SEEDS = 500
"""Within so many each bug is found."""
SHOWN_BY_FILE = Path(__file__).parent / "shown_by.json"


def _any(seed: int) -> bool:
    return True


def _drops_and_has_poison(seed: int) -> bool:
    return drops_for_waiting(seed) and has_poison_rows(seed)


def _corrects_topics(seed: int) -> bool:
    return writes_to_topics(seed) and has_branches(seed)


def _corrects_tables(seed: int) -> bool:
    return writes_to_tables(seed) and has_branches(seed)


def _holds(seed: int) -> bool:
    return holds_blocks(seed) and not has_branches(seed)


def _holds_and_changes_plans(seed: int) -> bool:
    return _holds(seed) and changes_plans(seed)


@dataclass(frozen=True, slots=True)
class Planted:
    """A deliberate bug, and in which seeds it does anything."""

    bug: Bug
    can_show: Callable[[int], bool]

    def seeds(self) -> Iterator[int]:
        """Return the seeds within which it is found, in their order."""
        return islice(filter(self.can_show, count()), SEEDS)


PLANTED = (
    *(
        Planted(bug, _any)
        for bug in (*BUGS, *DRIVER_BUGS, *MARK_BUGS, *SET_BUGS, *SNAPSHOT_BUGS, *CLAIM_BUGS, *PAUSING_BUGS)
    ),
    *(Planted(bug, leaves_behind) for bug in CATCHING_UP_BUGS),
    *(Planted(bug, is_resident) for bug in (*RESIDENT_BUGS, *ROOM_BUGS, *PROCESS_BUGS, *DETECTION_BUGS)),
    *(Planted(bug, has_dead_links) for bug in LINK_BUGS),
    *(Planted(bug, is_poisoned) for bug in PARKING_BUGS),
    *(Planted(bug, has_poison_rows) for bug in QUARANTINE_BUGS),
    *(Planted(bug, reads_in_place) for bug in FILE_BUGS),
    *(Planted(bug, loses_files) for bug in RETENTION_BUGS),
    *(Planted(bug, reads_topics) for bug in TOPIC_SOURCE_BUGS),
    *(Planted(bug, has_agents) for bug in (*AGENT_BUGS, *FRAGMENT_BUGS)),
    *(Planted(bug, has_copies) for bug in (*COPY_BUGS, *LEAVING_BUGS)),
    *(Planted(bug, moves_for_load) for bug in MOVE_BUGS),
    *(Planted(bug, replans) for bug in REPLAN_BUGS),
    *(Planted(bug, has_late_sinks) for bug in PUBLISHING_BUGS),
    *(Planted(bug, gathers_outputs) for bug in GATHERED_BUGS),
    *(Planted(bug, gathers_into_delta) for bug in GATHERED_DELTA_BUGS),
    *(Planted(bug, writes_to_topics) for bug in TOPIC_BUGS),
    *(Planted(bug, _corrects_topics) for bug in VERSION_BUGS),
    *(Planted(bug, writes_to_tables) for bug in TABLE_BUGS),
    *(Planted(bug, changes_every) for bug in LEFT_BUGS),
    *(Planted(bug, _corrects_tables) for bug in CORRECTION_BUGS),
    *(Planted(bug, has_segments) for bug in SEGMENT_BUGS),
    *(Planted(bug, _holds) for bug in HELD_BUGS),
    *(Planted(bug, _holds_and_changes_plans) for bug in HELD_PLAN_BUGS),
    *(Planted(bug, is_refined) for bug in INTERMEDIATE_BUGS),
    *(Planted(bug, changes_plans) for bug in PLAN_BUGS),
    *(Planted(bug, has_branches) for bug in BRANCH_BUGS),
    *(Planted(bug, freezes_at_fences) for bug in FENCE_BUGS),
    *(Planted(bug, drops_for_waiting) for bug in REGENERATION_BUGS),
    *(Planted(bug, _drops_and_has_poison) for bug in DROPPED_ROW_BUGS),
)


def shows(outcome: Outcome) -> bool:
    """Whether a seed with a bug inside has gone wrong. A bug that no longer fits what it replaces is refused."""
    what = "" if outcome.violation is None else outcome.violation.what
    if what.startswith("TypeError was raised") and ("positional argument" in what or "keyword argument" in what):
        raise AssertionError(f"a deliberate bug takes other arguments than what it replaces: {what}")
    return outcome.violation is not None


def shown_by() -> dict[str, int]:
    """Return a seed that showed each bug last, by the bug's name."""
    return {name: int(seed) for name, seed in json.loads(SHOWN_BY_FILE.read_text()).items()}

"""`holdfast bench planners`: how long plans take, how much memory, and how both grow.

Each kind of plan is a section, one module here with a constant `SECTION`; it is found by being here. A section names
cases; a case prepares its input (not measured) and returns what is then timed. To add one:

    def _case(size: int) -> Case:
        def prepare() -> Callable[[], Facts]:
            topology = ...
            return lambda: {"fidelity": plan_replicas(topology, ...).fidelity}
        return Case(f"{size} partitions", size, prepare, series="structure-aware", limit_seconds=30)

    SECTION = Section("replicas", "Replica plans", lambda: [_case(size) for size in (100, 1000, 5000)])
"""

from __future__ import annotations

from holdfast_lab.benches.planners.sections import Case, Facts, Section, all_sections

__all__ = ["Case", "Facts", "Section", "all_sections"]

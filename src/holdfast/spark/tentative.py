"""Which queries of a run give tentative outputs: those that ask for it, all that can, or those named. On the driver."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import BadInput
from holdfast.ids import OperatorId, PartitionId
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime.coordinator.tentative import check_columns, check_sinks
from holdfast.runtime.io.sinks import Sink
from holdfast.runtime.program import Program
from holdfast.spark.settings import PREFIX, Settings
from holdfast.wording import counted

ASKED, ALL, NONE = "asked", "all", "none"


def tentative_of(
    settings: Settings, program: Program, sinks: Mapping[OperatorId, Sink], strategy: RecoveryStrategy
) -> tuple[frozenset[PartitionId], list[str]]:
    """Return the queries that give tentative outputs while partitions of theirs are lost, and lines for people."""
    words, field = settings.tentative_outputs, f"{PREFIX}tentative.outputs"
    lines: list[str] = []
    if words == (NONE,):
        return frozenset(), []
    if words == (ALL,):
        chosen = {name for name in program.output_names if sinks[name].corrects}
        if left := sorted(str(its) for name, its in program.output_names.items() if name not in chosen):
            lines.append(f"no tentative outputs of {', '.join(left)}: their sinks cannot correct them")
    elif words == (ASKED,):
        chosen = {name for name in program.output_names if name in program.tentative}
    else:
        try:
            chosen = {program.output_operator(name) for name in words}
        except BadInput as bad:
            raise BadInput(bad.what, field=field, remedy=bad.remedy) from None
    queries = frozenset(p for p in program.outputs if p.operator in chosen)
    if not queries:
        return queries, lines
    if settings.exchange != "resident":
        remedy = f"set {PREFIX}exchange=resident, or {field}=none"
        raise BadInput("tentative outputs need tasks that stay", field=field, remedy=remedy)
    if strategy is RecoveryStrategy.SOURCE_REPLAY:
        raise BadInput(
            "with source-replay every failure takes everything back, and nothing is left for tentative outputs",
            field=field,
            remedy=f"set another {PREFIX}recovery.strategy, or {field}=none",
        )
    check_sinks(sorted(queries), sinks, f"application {program.name}")
    check_columns(sorted(queries), program)
    lines.append(
        f"tentative outputs of {counted(len(queries), 'query', 'queries')} while partitions of theirs are lost"
    )
    return queries, lines

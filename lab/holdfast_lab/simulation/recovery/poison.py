"""Operators and sinks of simulated runs that fail for a while, and people who let parked queries go on. Runs anywhere.

A poisoned partition fails every batch from one on, until somebody removes the cause; a broken sink refuses all rows of
a query. Most of the victims serve the least valuable queries. People ask for parked queries to go on at any time,
whether or not the cause is gone. Random numbers are its own, so that runs without poison are what they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.cluster_state import ClusterState, ParkedQuery
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.coordinator.requests import ResumeRequests
from holdfast.runtime.io.sinks import OutputKey
from holdfast.runtime.program import Program
from holdfast.runtime.worker.step_guard import READING, Death
from holdfast.storage.storage import Storage
from holdfast_lab.simulation.recovery.broker import NO_ANSWER
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

SHARE = 0.5
"""Of all runs that have any of it."""
BEGINS, ENDS, ASKED = 0.12, 0.05, 0.15
"""The chances, at every turn, that something is poisoned, that a cause is removed, that somebody asks to go on."""


def is_poisoned(seed: int) -> bool:
    """Whether something may fail in a run because of the application."""
    return random.Random(f"poison {seed}").random() < SHARE


class SinkBroken(Exception):
    """What a broken sink raises."""


class Poison:
    """What fails in a run because of the application, not of the cluster. Also the guard of every simulated worker."""

    def __init__(self, seed: int, storage: Storage, mischief: Mischief, clock: Callable[[], float]) -> None:
        self._draw = random.Random(f"poison {seed}")
        self.wanted = self._draw.random() < SHARE
        self.errors = ErrorSettings(retries=self._draw.choice((0, 1, 2)), backoff=self._draw.choice((0.1, 5.0, 60.0)))
        self._requests, self._mischief, self._clock = ResumeRequests(storage), mischief, clock
        self._operators: dict[PartitionId, BatchId] = {}
        self._sinks: set[PartitionId] = set()
        self._asked: dict[PartitionId, float] = {}

    # -- as a step guard -----------------------------------------------------------------------------------------------

    def begin(self, partition: PartitionId, batch: BatchId, attempt: int, piece: str = "") -> Death | None:
        """See StepGuard: a poisoned step is answered as one in which the process has died."""
        first = None if piece == READING else self._operators.get(partition)  # what is read is no poison
        return Death(attempt, "of poison") if first is not None and batch >= first else None

    def end(self) -> None:
        """See StepGuard."""

    def turn(self) -> None:
        """See StepGuard."""

    def at_sink(self, key: OutputKey) -> None:
        """A sink is given rows: raise where it is broken."""
        if key.query in self._sinks:
            raise SinkBroken("poison")

    # -- what happens --------------------------------------------------------------------------------------------------

    def strike(self, program: Program, state: ClusterState) -> None:
        """Perhaps poison something, remove a cause, ask for a query to go on."""
        if not self.wanted or not self._mischief.active:
            return
        if self._draw.random() < BEGINS:
            self._begin(program, state)
        if self._draw.random() < ENDS:
            self.cure()
        if state.parked and self._draw.random() < ASKED:
            self._ask(self._draw.choice(sorted(state.parked)))

    def _begin(self, program: Program, state: ClusterState) -> None:
        topology = program.topology
        queries = sorted(program.outputs, key=lambda query: (int(topology.priority[topology.index(query)]), query))
        query = queries[0] if self._draw.random() < 0.7 else self._draw.choice(queries)
        if self._draw.random() < 0.4:
            self._sinks.add(query)
            self._mischief.injected[Fault.SINK_BROKEN] += 1
            return
        members = [p for p in state.graph.members(query) if p.operator not in program.sources]
        fewest = min((len(state.graph.queries_of(p)) for p in members), default=0)
        if self._draw.random() < 0.7:
            members = [p for p in members if len(state.graph.queries_of(p)) == fewest]
        if members:
            victim = self._draw.choice(members)
            self._operators[victim] = BatchId(state.partitions[victim].frontier + self._draw.randint(1, 3))
            self._mischief.injected[Fault.POISON] += 1

    def doom(self, victim: PartitionId) -> None:
        """Let a partition fail every batch."""
        self._operators[victim] = BatchId(0)
        self._mischief.injected[Fault.POISON] += 1

    def cure(self) -> None:
        """Remove all causes."""
        self._operators.clear()
        self._sinks.clear()

    def ask_for_all(self, parked: Mapping[PartitionId, ParkedQuery]) -> None:
        """Ask for all parked queries to go on, for each once after it was parked: that must do."""
        for query, why in parked.items():
            if self._asked.get(query, -1.0) < why.since:
                self._ask(query)

    def _ask(self, query: PartitionId) -> None:
        self._asked[query] = self._clock()
        self._mischief.injected[Fault.RESUME_ASKED] += 1
        self._requests.add(str(query))


def parked_problem(state: ClusterState, fields: Mapping[str, object]) -> str | None:
    """See that a query is parked for a reason: something that it needs has failed, and something was wrong."""
    query, partition = PartitionId.parse(str(fields["query"])), PartitionId.parse(str(fields["partition"]))
    if partition not in state.graph.members(query):
        return f"{query} is parked because of {partition}, which it does not need"
    reasons = (
        "poison",
        "OSError",
        "Error: ",
        "was ended in this batch by SIGSEGV",
        "nothing is published from it",
        "has not returned",
        *NO_ANSWER,
    )
    if not any(reason in str(fields["error"]) for reason in reasons):
        return f"{query} is parked, and nothing was wrong: {fields['error']}"
    return None

"""What fails in queries, how often it is tried again, and when its queries are parked. Runs on the driver.

An operator that raises, a row that it cannot take, a process that dies in it, a sink that refuses rows: each is tried
again after a pause that doubles, and after so many attempts the queries that need it are *parked*. Where the operator
lets rows be left out, and a worker has found the rows to blame, they are *quarantined* in place of that. Everything
else goes on. Clocks are arguments. People let parked queries go on by requests in the run's storage (`requests`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.errors import BadInput, one_line
from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.cluster_state import ClusterState, ParkedQuery
from holdfast.recovery.events import QueriesParked, QueriesResumed, RowsQuarantined
from holdfast.recovery.quarantine import decided_rows
from holdfast.runtime.coordinator.requests import ResumeRequests, queries_named
from holdfast.runtime.messages import Failed
from holdfast.wording import counted

LONGEST_BACKOFF = 60.0
"""Seconds between two attempts at most."""
LONGEST_ERROR = 500
"""Characters of an error that are kept."""
POLL_SECONDS = 1.0
"""How often a driver with parked queries looks for requests."""
MOST_DECIDED = 10_000
"""Quarantined rows of batches that may be processed again: they are in every record of the progress."""
OUT_OF_MEMORY_ATTEMPTS = 2
"""Attempts at a batch in which the operator process takes too much memory, however many others may have."""
STALLED_ATTEMPTS = 2
"""Attempts at a batch that do not end, at most: the other partitions of its process wait meanwhile."""


@dataclass(frozen=True, slots=True)
class ErrorSettings:
    """How often what fails is tried again."""

    retries: int = 3
    """Attempts after the first one."""
    backoff: float = 1.0
    """Seconds before the second attempt; before each further one twice as many."""

    def wait(self, attempts: int) -> float:
        """Return how long to wait after so many attempts."""
        return float(min(LONGEST_BACKOFF, self.backoff * 2 ** min(attempts - 1, 30)))


class Step(Enum):
    """Where a partition's batch fails."""

    OPERATOR = "operator"
    SINK = "sink"
    HANGING = "hanging"
    """Its sink does not return. It is not tried again meanwhile, so its query is parked at once."""
    GATHERED = "gathered"
    """Its rows are staged, and their sink does not publish them: the query goes on meanwhile where others make it."""
    LATE = "late"
    """The rows that it keeps aside cannot be written."""


SINK_STEPS = (Step.SINK, Step.HANGING, Step.GATHERED)
"""Those that others know nothing of."""


@dataclass(slots=True)
class _Failing:
    """A batch that fails."""

    batch: BatchId
    attempts: int
    counted: int
    """The attempt that was counted last, as workers number them."""
    until: float
    """When it may be tried again."""
    stalled: int = 0
    """The attempts that did not end."""
    out_of_memory: int = 0
    """The attempts that took too much memory."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has failed, for those who watch."""

    failed: Failed
    attempts: int
    wait: float | None
    """Seconds until the next; None: that was the last, and its queries are parked."""
    left_out: RowsQuarantined | None = None
    """The rows that are left out in the next attempt."""

    def __str__(self) -> str:
        if self.left_out is not None:
            return f"quarantined: {counted(len(self.left_out.rows), 'row')} of {self.failed}"
        then = "its queries are parked" if self.wait is None else f"tried again in {self.wait:g} s"
        return f"attempt {self.attempts} failed, {then}: {self.failed}"


class Parking:
    """What fails now in a run; what is parked is in the cluster's state."""

    def __init__(
        self,
        state: ClusterState,
        settings: ErrorSettings,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
        requests: ResumeRequests | None = None,
    ) -> None:
        """`clock` measures pauses, `now` says when; `requests`: where people ask for parked queries to go on."""
        self._state, self._settings, self._clock, self._now = state, settings, clock, now
        self._requests = requests
        self._open: dict[tuple[PartitionId, Step], _Failing] = {}
        self._attempts: dict[PartitionId, int] = {}
        self._asked: deque[tuple[PartitionId, ...]] = deque()
        self._polled_at: float | None = None

    # -- what workers are to do ----------------------------------------------------------------------------------------

    def attempt(self, partition: PartitionId) -> int:
        """Return the attempt that a partition's worker may make now; when a pause is over, that is the next one."""
        one = self._open.get((partition, Step.OPERATOR))
        if one is not None and self._is_due(partition, one):
            self._attempts[partition] = self._attempts.get(partition, 0) + 1
        return self._attempts.get(partition, 0)

    def _is_due(self, partition: PartitionId, one: _Failing) -> bool:
        return one.counted == self._attempts.get(partition, 0) and self._clock() >= one.until

    @property
    def has_update(self) -> bool:
        """Whether a worker may make an attempt that it does not know of yet."""
        return any(self._is_due(p, one) for (p, step), one in self._open.items() if step is Step.OPERATOR)

    def waiting(self) -> set[PartitionId]:
        """The partitions whose next attempt has time: nobody waits for them meanwhile."""
        now = self._clock()
        return {p for (p, _), one in self._open.items() if now < one.until}

    @property
    def failing(self) -> set[PartitionId]:
        """The partitions of which something has failed that has not come through since."""
        return {p for p, _ in self._open}

    @property
    def held(self) -> set[PartitionId]:
        """The partitions whose sinks get nothing now: their pause is not over, or they are parked."""
        now = self._clock()
        return {p for (p, step), one in self._open.items() if step is not Step.OPERATOR and now < one.until} | {
            p for p in self._state.graph.order if p in self._state.parked or self._state.serves_parked_only(p)
        }

    @property
    def held_aside(self) -> set[PartitionId]:
        """The partitions whose late rows and dead letters are not written now.

        Not those whose sink alone fails: others that they serve go on, and so what they keep aside must be written.
        """
        now = self._clock()
        return {p for (p, step), one in self._open.items() if step is Step.LATE and now < one.until} | {
            p for p in self._state.graph.order if self._state.serves_parked_only(p)
        }

    # -- what fails ----------------------------------------------------------------------------------------------------

    def took(
        self,
        frontiers: Mapping[PartitionId, BatchId],
        published: Mapping[PartitionId, BatchId],
        aside: Iterable[tuple[PartitionId, BatchId]],
        gathered: Collection[PartitionId] = (),
    ) -> None:
        """Take note of what partitions have completed: what had failed before it fails no more.

        `gathered`: queries whose gathered rows are published.
        """
        written = set(aside)
        for (p, step), one in list(self._open.items()):
            if step is Step.GATHERED:
                if p in gathered:
                    del self._open[p, step]
                continue
            reached = published if step in SINK_STEPS else frontiers
            if (p, one.batch) in written if step is Step.LATE else reached.get(p, -1) >= one.batch:
                del self._open[p, step]

    def failed(self, failures: Iterable[tuple[Step, Failed]]) -> tuple[list[Attempt], QueriesParked | None]:
        """Count attempts that have failed; return them, and the queries to park for those that were the last."""
        counted: list[Attempt] = []
        parked: dict[PartitionId, ParkedQuery] = {}
        for step, one in failures:
            attempt = None if self._state.serves_parked_only(one.partition) else self._count(step, one)
            if attempt is None:
                continue
            counted.append(attempt)
            if attempt.wait is None:
                error = one_line(one.problem)
                error = error if len(error) <= LONGEST_ERROR else f"{error[: LONGEST_ERROR - 1]}…"
                why = ParkedQuery(one.partition, one.batch, error, self._now(), attempt.attempts, one.row)
                # Of a sink that fails, others know nothing: what its partition sends them is as good as before.
                needing = (one.partition,) if step in SINK_STEPS else self._state.graph.queries_of(one.partition)
                for query in needing:
                    if query not in self._state.parked:
                        parked.setdefault(query, why)
        return counted, QueriesParked(parked) if parked else None

    def _left_out(self, failed: Failed, *, last: bool) -> RowsQuarantined | None:
        """Decide whether the rows to blame are left out.

        Where all rows of a batch are to blame, the cause may be another, and may pass: only after the last attempt.
        """
        if not failed.poison or (failed.all_rows and not last):
            return None
        if decided_rows(self._state.quarantined) + len(failed.poison) > MOST_DECIDED:
            return None
        return RowsQuarantined(failed.partition, failed.batch, failed.poison, self._now())

    def _count(self, step: Step, failed: Failed) -> Attempt | None:
        """Count an attempt; None: it was counted, or is over."""
        place = failed.partition, step
        number = self._attempts.get(failed.partition, 0)
        before = self._open.get(place)
        if before is not None and before.batch != failed.batch and step is not Step.GATHERED:
            before = None
        if step is Step.OPERATOR and (failed.attempt != number or (before is not None and before.counted == number)):
            return None
        attempts = 1 if before is None else before.attempts + 1
        stalled = (0 if before is None else before.stalled) + failed.stalled
        memory = (0 if before is None else before.out_of_memory) + failed.out_of_memory
        most = self._settings.retries
        if step is Step.HANGING:
            most = 0
        elif failed.out_of_memory:
            most = max(most, OUT_OF_MEMORY_ATTEMPTS - 1)
        is_last = (
            attempts > most
            or (failed.out_of_memory and memory >= OUT_OF_MEMORY_ATTEMPTS)
            or (failed.stalled and stalled >= STALLED_ATTEMPTS)
        )
        left_out = self._left_out(failed, last=is_last) if step is Step.OPERATOR else None
        if left_out is not None:  # it does not count
            stalled, memory = stalled - failed.stalled, memory - failed.out_of_memory
            self._open[place] = _Failing(failed.batch, attempts - 1, number, self._clock(), stalled, memory)
            return Attempt(failed, attempts, 0.0, left_out)
        if is_last:
            self._open.pop(place, None)
            return Attempt(failed, attempts, None)
        wait = self._settings.wait(attempts)
        self._open[place] = _Failing(failed.batch, attempts, number, self._clock() + wait, stalled, memory)
        return Attempt(failed, attempts, wait)

    # -- going on ------------------------------------------------------------------------------------------------------

    def ask(self, name: str) -> tuple[PartitionId, ...]:
        """Ask for a parked query, or all of an output, to go on; from any thread. Takes effect with the next step."""
        found = parked_named(tuple(self._state.parked), name)
        self._asked.append(found)
        return found

    def all_parked(self) -> QueriesResumed:
        """Let all parked queries go on."""
        event = QueriesResumed(tuple(self._state.parked))
        self._begin_anew(event.queries)
        return event

    def resumed(self) -> list[QueriesResumed]:
        """Return what people have asked for since the last call; storage that is away is asked again later."""
        written: list[QueriesResumed] = []
        if self._requests is not None and self._state.parked and self._is_time():
            written = [
                QueriesResumed(queries_named(self._state.parked, name), number)
                for number, name in self._requests.after(self._state.requests)
            ]
        # Requests of this process are in no storage: they leave the queue once nothing more can fail.
        found: list[QueriesResumed] = []
        while self._asked:
            found.append(QueriesResumed(self._asked.popleft()))
        found += written
        for event in found:
            self._begin_anew(event.queries)
        return found

    def _is_time(self) -> bool:
        now = self._clock()
        if self._polled_at is not None and now - self._polled_at < POLL_SECONDS:
            return False
        self._polled_at = now
        return True

    def _begin_anew(self, queries: Iterable[PartitionId]) -> None:
        """Let all that queries need be tried as if it had never failed."""
        for p in {p for query in queries for p in self._state.graph.members(query)}:
            self._attempts[p] = self._attempts.get(p, 0) + 1
            for step in Step:
                self._open.pop((p, step), None)

    @property
    def unread(self) -> Mapping[int, str]:
        """Requests that cannot be read, and why."""
        return {} if self._requests is None else self._requests.unread

    def logged(self) -> None:
        """What was asked for is in the progress: the requests are of no use any more."""
        if self._requests is not None:
            self._requests.drop_before(self._state.requests)


def parked_named(parked: Iterable[PartitionId], name: str) -> tuple[PartitionId, ...]:
    """Return the parked queries of this name, or of the output of this name; none is refused."""
    found = queries_named(parked, name)
    if not found:
        others = ", ".join(map(str, parked))
        raise BadInput(
            f"no query {name!r} is parked", remedy=f"parked are {others}" if others else "no query of the run is"
        )
    return found

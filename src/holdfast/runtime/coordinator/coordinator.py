"""The driver's loop: events to the recovery machine, its effects into cycles, outputs to the sinks. Runs on the driver.

It knows nothing of Spark: a *backend* says which nodes there are and runs cycles on them. The same coordinator runs on
a cluster, in one process and under the simulator. What the machine decides is in the log before anything is done about
it. Between two cycles is the only moment at which placement changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.checkpoints import Checkpoints, snapshot_name
from holdfast.recovery.effects import Effect, Fence, Forget, GlobalCheckpoint, Keep, Place, RequestNodes, RollBack
from holdfast.recovery.events import (
    CheckpointGivenUp,
    CheckpointMarked,
    CheckpointStored,
    CostsMeasured,
    CycleDone,
    CycleFailed,
    Event,
    Timer,
)
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.machine import Machine
from holdfast.recovery.states import PLACED_STATES, PartitionState
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.answers import Measures, OperatorFailed
from holdfast.runtime.backend import Backend, Broken
from holdfast.runtime.coordinator.event_log import Observation, effect_fields, effect_line, event_kind
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.coordinator.pacing import CycleSettings, StallDetector
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.coordinator.reports import CycleResult, merge_reports
from holdfast.runtime.coordinator.status import RunStatus
from holdfast.runtime.io.sinks import Sink
from holdfast.runtime.io.sources import SourceLog
from holdfast.runtime.messages import Cycle, NotSaved, Task
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch

LEAST_COST = 1e-6
"""Of a partition, in cores."""
IDLE_SECONDS = 0.1
"""How long a run waits that has nothing to do."""


@dataclass(slots=True)
class _Counters:
    """What only the loop itself needs."""

    cycles: int = 0
    marks: int = 0
    marked_at: float = 0.0
    forget: list[str] = field(default_factory=list)
    problem: str | None = None
    not_staged: set[OperatorId] = field(default_factory=set)
    """Outputs of which people have been told that nodes cannot write their files."""


class Coordinator:
    """A run of a program."""

    def __init__(
        self,
        program: Program,
        backend: Backend,
        logs: Mapping[OperatorId, SourceLog],
        sinks: Mapping[OperatorId, Sink],
        late_sink: Callable[[OperatorId, OperatorId], Sink],
        progress: Progress,
        *,
        recovery: RecoverySettings | None = None,
        pace: CycleSettings | None = None,
        clock: Callable[[], float] = time.time,
        observe: Callable[[Observation], object] = lambda seen: None,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Begin, or go on where an earlier driver left off: the progress says which."""
        self.program, self.backend, self._logs = program, backend, logs
        self._progress, self._clock = progress, clock
        self.outputs = Outputs(program, sinks, late_sink)
        self._observe, self._tell = observe, tell
        self.pace = pace or CycleSettings()
        graph = PartitionGraph(program.topology, {name: one.deterministic for name, one in program.operators.items()})
        checkpoints = (
            None if progress.machine is None else Checkpoints.read(graph.order, progress.machine["checkpoints"])
        )
        self.machine = Machine(graph, recovery, epoch=progress.epoch, checkpoints=checkpoints)
        self.status = RunStatus(program, self.machine, logs, self.outputs)
        self.measures: dict[PartitionId, Measures] = dict.fromkeys(program.partitions, Measures())
        """What every partition has taken in this run."""
        self.rollbacks = 0
        """How often partitions went back, or were lost, after the start."""
        self._began = clock()
        self._counters = _Counters(marked_at=self._began)
        self._stalls = StallDetector(self.pace)
        # The first epoch of a driver is in the log before anything else: an earlier driver is refused from here on.
        self.machine.epoch = Epoch(progress.epoch + 1)
        there: Mapping[str, int] = {} if progress.machine is None else progress.machine.get("published", {})
        for partition in program.outputs:
            if not self.outputs.sure(partition):
                # It waits for durable checkpoints, and may be behind the global one; snapshots hold what is not out.
                self.machine.published[partition] = BatchId(there.get(str(partition), -1))
        if self.pace.measure_costs:
            # What was never measured costs nothing yet: a start must not wait for room that nobody needs.
            known = progress.measures
            costs = {p: float(known.get(str(p), {}).get("cost", LEAST_COST)) for p in program.partitions}
            self.machine.handle(CostsMeasured(costs))
        self._write()

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Process everything in the logs; an operator that fails ends the run, and nothing before it is lost."""
        patience = self._stalls
        patience.moved()
        self.hear_nodes()
        while not self.status.caught_up:
            if not self.advance() and patience.waits_in_vain:
                raise self._stuck(waited=True)

    def advance(self) -> bool:
        """Run one cycle if it would bring anything, else wait a little; say whether one was run.

        Live partitions go on whatever others wait for: whoever feeds a stream calls this again and again. Cycles that
        keep bringing nothing end the run, and so does a time in which nothing at all is alive.
        """
        patience, before = self._stalls, self.status.standing
        could, began = self.status.can_go_on, self._clock()
        if not self.step():
            self.backend.wait(IDLE_SECONDS)
            if patience.idled(max(IDLE_SECONDS, self._clock() - began)):
                self.hear(Timer(patience.idle))
            if patience.waits_in_vain and not self.machine.in_state(PLACED_STATES):
                raise self._stuck(waited=True)
            return False
        if self.status.standing != before:
            patience.moved()
            return True
        pause = patience.stood(could=could)
        self.backend.wait(pause)
        restoring = bool(self.machine.in_state([PartitionState.RESTORING]))
        if patience.gets_nowhere(max(pause, self._clock() - began), restoring=restoring):
            raise self._stuck(waited=False)
        return True

    def step(self) -> bool:
        """Hear what has happened, and run one cycle if it would bring anything; say whether one was run."""
        self.hear_nodes()
        if not self.status.can_work:
            return False
        self._mark()
        self.cycle()
        return True

    def cycle(self, *, ask_outboxes: bool = False) -> CycleResult | None:
        """Run one cycle, whether or not it would bring anything: nodes say what they have, and what they miss.

        Returns what they said; None where the cycle broke.
        """
        cycle = replace(self.next_cycle(), ask_outboxes=ask_outboxes)
        began = self._clock()
        outcome = self.backend.run(cycle)
        if isinstance(outcome, Broken):
            self._counters.problem = outcome.why
            self._say("cycle-broken", number=cycle.number, epoch=cycle.epoch, why=outcome.why)
            self.hear(CycleFailed(cycle.epoch, outcome.why))
            return None
        heard = merge_reports(outcome, self.machine.placement)
        self._take(cycle, heard, self._clock() - began)
        return heard

    def hear_nodes(self) -> None:
        """Hear what has become of nodes."""
        for event in self.backend.events():
            self._say(event_kind(event), nodes=list(getattr(event, "nodes", ())))
            self.hear(event)

    def _stuck(self, waited: bool) -> CheckFailed:
        lost = self.machine.lost
        problem = self._counters.problem or "no failure"
        if waited and lost:
            return CheckFailed(
                f"{len(lost)} partitions ({lost[0]}, …) found no node in {self.pace.wait_seconds:.0f} s",
                where=f"application {self.program.name}",
                remedy="see that the cluster has free workers; the run goes on from here when started again",
            )
        return CheckFailed(
            f"cycle after cycle brings nothing, at batch {self.status.frontier} ({problem})",
            where=f"application {self.program.name}",
            remedy="look at the executors' logs, and start the run again: it goes on from here",
        )

    # -- cycles ------------------------------------------------------------------------------------------------------

    def next_cycle(self) -> Cycle:
        """Say to all nodes what holds now."""
        machine, logged = self.machine, self.status.logged
        self._counters.cycles += 1
        keep = machine.keep_from()
        tasks = {}
        for partition in machine.in_state(PLACED_STATES):
            one = machine.partitions[partition]
            assert one.node is not None
            marks = machine.marks_for(partition)
            tasks[partition] = Task(
                one.node,
                one.start,
                one.frontier,
                keep.get(partition, one.kept_from),
                logged,
                marks,
                frozenset(mark for mark in marks if machine.checkpoints.is_durable(mark)),
                machine.checkpoints.last(partition),
                machine.with_outbox(partition),
                one.state is PartitionState.PAUSED,
            )
        return Cycle(
            self._progress.run,
            self._counters.cycles,
            machine.epoch,
            tasks,
            dict(machine.published),
            self.pace.most_batches,
            self.pace.budget_seconds,
            logged - min((task.frontier for task in tasks.values()), default=logged),
            machine.buffering,
            tuple(self._counters.forget),
        )

    def _take(self, cycle: Cycle, heard: CycleResult, seconds: float) -> None:
        """Act on what the nodes said: frontiers, outputs, saved states, and what is missing."""
        machine = self.machine
        del self._counters.forget[: len(cycle.forget)]
        if heard.refused is not None:
            raise StaleEpoch(
                f"epoch {heard.refused.epoch} is over: {heard.refused.partition} is in {heard.refused.current}",
                where=f"application {self.program.name}",
                remedy="another driver runs this application: end this one",
            )
        for partition, measures in heard.measures:
            self.measures[partition] = self.measures[partition].plus(measures)
        for answer in heard.not_saved:
            self._not_saved(answer)
        done = self.outputs.publish(
            heard.blocks, machine.published, machine.checkpoints.durable_batch, machine.epoch, heard.staged
        )
        for output, why in heard.not_staged.items():
            if output not in self._counters.not_staged:
                self._counters.not_staged.add(output)
                self._tell(f"{output}: nodes cannot write its files, so its rows pass through the driver: {why}")
                self._say("not-staged", output=output, problem=why)
        for query, batch, many in done.out:
            self._say("published", partition=str(query), batch=batch, rows=many)
        self.hear(
            CycleDone(
                cycle.epoch,
                self.status.logged,
                # Where late rows are not written, a partition is not known to be further: they come again.
                {p: batch for p, batch in heard.frontiers.items() if p not in done.not_aside},
                frozenset(heard.frontiers),
                done.reached,
                heard.kept_bytes,
            )
        )
        self._say(
            "cycle",
            number=cycle.number,
            epoch=cycle.epoch,
            through=self.status.logged,
            frontier=machine.frontier,
            seconds=seconds,
            rows=heard.rows,
        )
        for one in heard.stored:
            self.hear(CheckpointStored(one.partition, one.snapshot))
        for event in heard.troubles:
            self._counters.problem = str(event)
            self.hear(event)
        if done.problem is not None:
            raise done.problem
        if heard.failed is not None:
            raise OperatorFailed(heard.failed)

    def _not_saved(self, answer: NotSaved) -> None:
        line = f"{answer.partition} at batch {answer.batch} is not saved yet: {answer.problem}"
        self._counters.problem = line
        self._tell(line)
        self._say("not-saved", partition=str(answer.partition), batch=answer.batch, problem=answer.problem)
        if answer.gone:
            self.hear(CheckpointGivenUp(answer.batch))

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _mark(self) -> None:
        """Let partitions save at a batch that none has reached yet, if it is time."""
        machine, counters = self.machine, self._counters
        if machine.checkpoints.marks and not machine.recovering:
            return  # one at a time; during a recovery live partitions save again meanwhile
        last = max([machine.checkpoints.global_batch, *machine.checkpoints.marks])
        reached = max(one.frontier for one in machine.partitions.values())
        next_one = BatchId(last + self.pace.checkpoint_batches)
        timely = reached > last and self._clock() - counters.marked_at >= self.pace.checkpoint_seconds
        if not timely and next_one > reached + self.pace.most_batches:
            return  # this cycle does not reach it
        durable = counters.marks % self.pace.durable_every == 0
        counters.marks += 1
        counters.marked_at = self._clock()
        self.hear(CheckpointMarked(BatchId(reached + 1 if timely else max(next_one, reached + 1)), durable))

    def checkpoint(self) -> BatchId:
        """Save everything at the last batch now, durably, and wait until it is safe."""
        self.run()
        machine, target = self.machine, self.machine.frontier
        tries = 0
        while machine.checkpoints.durable_batch < target:
            self.hear(CheckpointMarked(target, durable=True))
            before = self.status.standing
            if not self.step():
                self.backend.wait(0.05)
            tries = 0 if self.status.standing != before else tries + 1
            self.backend.wait(min(0.2, 0.002 * tries))
            if tries > 50 * self.pace.most_tries:
                raise self._stuck(waited=False)
        self.run()
        return machine.checkpoints.global_batch

    # -- the machine -------------------------------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        """Give an event to the machine, write down what it decided, then do it."""
        if isinstance(event, CycleDone) and self.pace.measure_costs:
            self._hear_costs()
        effects = self.machine.handle(event)
        if any(isinstance(one, GlobalCheckpoint) for one in effects):
            self.outputs.sync()  # what the checkpoint covers is not made again
        if any(isinstance(one, Fence | Place | GlobalCheckpoint | Keep) for one in effects):
            self._write()
        for effect in effects:
            self._do(effect)

    def _hear_costs(self) -> None:
        self.machine.handle(CostsMeasured({p: self._cost(one) for p, one in self.measures.items()}))

    def _cost(self, measures: Measures) -> float:
        """Return the share of a core that a partition has taken since this driver began."""
        return max(LEAST_COST, round(measures.cpu_seconds / max(1e-3, self._clock() - self._began), 6))

    def _do(self, effect: Effect) -> None:
        for kind, fields in effect_fields(self.machine, effect):
            self._say(kind, **fields)
        if (line := effect_line(effect)) is not None:
            self._tell(line)
        match effect:
            case RequestNodes(count):
                if (problem := self.backend.request_nodes(count)) is not None:
                    self._tell(f"{count} nodes are asked for, and cannot be had: {problem}")
            case RollBack():
                self.rollbacks += 1
            case GlobalCheckpoint():
                for log in self._logs.values():
                    log.trim(effect.durable)
                self._say("measures", partitions={str(p): asdict(one) for p, one in self.measures.items()})
            case Forget():
                stored = [(p, one) for p, one in effect.snapshots if one.contents is None]
                self._counters.forget += [snapshot_name(self._progress.run, p, one) for p, one in stored]

    def _write(self) -> None:
        self._progress.write(
            self.machine.epoch,
            self.machine.written(),
            {
                str(p): {"cpu_seconds": one.cpu_seconds, "rows_in": one.rows_in, "cost": self._cost(one)}
                for p, one in self.measures.items()
            },
        )

    def _say(self, kind: str, **fields: Any) -> None:
        self._observe(Observation(self._clock(), kind, fields))

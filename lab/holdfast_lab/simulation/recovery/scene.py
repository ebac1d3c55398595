"""What a seed draws before anything happens: an application and its later layouts, a cluster, a strategy, the faults.

Runs anywhere.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from holdfast.ids import PartitionId
from holdfast.planning.recovery.placement import BOUND
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.segments import ONE_SEGMENT
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.program import Program
from holdfast_lab.simulation.recovery.applications import Recipe, draw_change, draw_recipe, draw_stamped
from holdfast_lab.simulation.recovery.faults import Mischief, draw_mischief
from holdfast_lab.simulation.recovery.segment_scene import SegmentScene, crosses

WITH_BRANCHES = (
    *(Recipe("chain", sizes) for sizes in ((4, 2, 1), (4, 4, 2), (2, 2, 2), (3, 2, 1, 1), (4, 2, 1, 2))),
    *(Recipe("diamond", (2, 2, 2, 2)), Recipe("wide", (4, 1, 2, 1)), Recipe("counted", (4, 2, 2))),
    *(Recipe("counted", (4, 1, 1)), Recipe("counted", (4, 2, 1)), Recipe("traffic", (4, 2, 2))),
    *(Recipe("nondeterministic", (2, 2, 2, 1)),),
)
"""Applications for runs with tentative outputs."""
WAIT_SECONDS = 900.0
"""How long a driver that brings an old layout to its end waits for nodes before it gives up."""


@dataclass(frozen=True, slots=True)
class CopyScene:
    """Second copies of partitions, drawn apart: what other runs draw stays the same."""

    seed: int
    share: float
    lag: int
    room: float
    """How much more nodes carry than in other runs."""
    move_above: float = math.inf
    """The share of a node's bound above which partitions move off it."""

    def replicas(self, program: Program) -> tuple[PartitionId, ...]:
        """Return who has a copy, by the partition's name alone."""
        chances = {p: random.Random(f"{p} {self.seed} copy").random() for p in program.partitions}
        sure = [p for p in program.partitions if program.operators[p.operator].deterministic]
        return tuple(sorted((p for p in sure if chances[p] < self.share), key=lambda p: chances[p]))


@dataclass(frozen=True, slots=True)
class BranchScene:
    """Tentative outputs, drawn apart: what other runs draw stays the same."""

    seed: int
    share: float
    least: float
    """The fidelity below which a query gives none."""
    recipe: Recipe
    """An application whose queries have partitions that they can do without."""
    layouts: tuple[Recipe, ...]
    spare: float
    """With little to spare, what is lost waits for nodes."""
    bound: float = BOUND
    """Of a node's capacity, what plans may use; the rest has room for stand-ins of lost outputs."""

    def queries(self, program: Program) -> frozenset[PartitionId]:
        """Return the queries that give tentative outputs, by their names alone; none, where people choose them."""
        if chooses(self.seed):
            return frozenset()
        return frozenset(
            query for query in program.outputs if random.Random(f"{query} {self.seed} branch").random() < self.share
        )


@dataclass(slots=True)
class Scene:
    """What a seed draws first."""

    draw: random.Random
    recipe: Recipe = field(init=False)
    layouts: list[Recipe] = field(init=False)
    """Layouts that the application is restarted with, one after the other; in most runs none."""
    strategy: RecoveryStrategy = field(init=False)
    pace: CycleSettings = field(init=False)
    count: int = field(init=False)
    input_seed: int = field(init=False)
    nodes: int = field(init=False)
    spare: float = field(init=False)
    mischief: Mischief = field(init=False)
    copies: CopyScene | None = None
    """Which partitions have a second copy, in runs that have copies."""
    segments: SegmentScene | None = None
    """Which operators checkpoint together, in runs that have segments."""
    branches: BranchScene | None = None
    """Which queries give tentative outputs, in runs that have them."""
    waiting_bytes: float = math.inf
    """What outboxes may hold while partitions wait, before what is kept for these is dropped."""
    _recovery: RecoverySettings = field(init=False)
    _backup_share: float = field(init=False)

    def __post_init__(self) -> None:
        draw = self.draw
        self.recipe = draw_recipe(draw)
        self.layouts = []
        for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
            self.layouts.append(draw_change(draw, self.layouts[-1] if self.layouts else self.recipe))
        self.strategy = draw.choices(list(RecoveryStrategy), weights=[6, 2, 1, 1])[0]
        self.count = draw.choice((8, 10, 12))
        self.input_seed = draw.randrange(4)
        self.pace = CycleSettings(
            checkpoint_batches=draw.choice((1, 2, 3, 4)),
            durable_every=draw.choice((1, 2, 3)),
            most_batches=draw.choice((1, 2, 8)),
            most_tries=60,
            wait_seconds=1e9,
        )
        self.nodes = draw.randint(3, 8)
        # With a little to spare: after failures not everything fits.
        self.spare = draw.choice((1.1, 1.3, 1.6))
        self.mischief = draw_mischief(draw)
        self._backup_share = draw.choice((0.0, 0.0, 0.2))
        self._recovery = RecoverySettings(
            strategy=self.strategy,
            incremental_after_losses=draw.choice((1, 1, 1, 2)),
            level_lag=draw.choice((0, 1, 2)),
            buffer_bytes=draw.choice((float("inf"), float("inf"), 400.0)),
        )

    def use_stamps(self, seed: int) -> None:
        """Run an application in which others follow what is not deterministic, in one layout."""
        self.recipe, self.layouts = draw_stamped(random.Random(f"{seed} stamped")), []

    def use_branches(self, branches: BranchScene) -> None:
        """Let queries give tentative outputs, in an application where they can."""
        self.branches, self.recipe, self.layouts = branches, branches.recipe, list(branches.layouts)
        self.nodes, self.count, self.spare = max(self.nodes, 6), 20, min(self.spare, branches.spare)
        if self.strategy is RecoveryStrategy.SOURCE_REPLAY:  # every failure takes everything back
            self.strategy = RecoveryStrategy.INCREMENTAL
            self._recovery = replace(self._recovery, strategy=self.strategy)

    def capacity(self, program: Program) -> float:
        """Return what a node can carry."""
        costs, spare = program.topology.cost, self.spare if self.copies is None else self.spare * self.copies.room
        return max(float(costs.sum()) / self.nodes * spare, float(costs.max()) * 1.05) / self.bound

    @property
    def bound(self) -> float:
        """What plans may use of a node's capacity; that is as much of it in every run."""
        return BOUND if self.branches is None else self.branches.bound

    def pace_for(self, program: Program, driver: int) -> CycleSettings:
        """Return the pace of a driver of this program."""
        if self.segments is None:
            return self.pace
        segments = self.segments.segments(program, driver)
        return replace(self.pace, segment_intervals=self.segments.intervals(segments, driver))

    def plan(self, program: Program, driver: int) -> ExecutedPlan:
        """Return what a driver of this program is asked to execute."""
        found = self.settings(program, driver)
        asked = driver if self.segments is not None and self.segments.changes else 0
        return ExecutedPlan(
            found.segments,
            found.backup_partitions,
            self.pace_for(program, driver).segment_intervals,
            origin=f"plan {asked} for {', '.join(map(str, program.partitions))}",
        )

    def settings(self, program: Program, driver: int = 0) -> RecoverySettings:
        """Return how a driver of this program recovers; who keeps backups is drawn by the partition's name alone."""
        backups = frozenset(
            p for p in program.partitions if random.Random(f"{p} {self.input_seed}").random() < self._backup_share
        )
        found = self._recovery
        return RecoverySettings(
            strategy=found.strategy,
            backup_partitions=backups,
            incremental_after_losses=found.incremental_after_losses,
            level_lag=found.level_lag,
            bound=self.bound,
            buffer_bytes=found.buffer_bytes,
            waiting_bytes=self.waiting_bytes,
            replicas=() if self.copies is None else self.copies.replicas(program),
            replica_lag=found.replica_lag if self.copies is None else self.copies.lag,
            move_above=math.inf if self.copies is None else self.copies.move_above,
            segments=ONE_SEGMENT if self.segments is None else self.segments.segments(program, driver),
            tentative=frozenset() if self.branches is None else self.branches.queries(program),
            tentative_fidelity=0.0 if self.branches is None else self.branches.least,
        )


def is_resident(seed: int) -> bool:
    """Whether workers stay in a run: in every third, with each kind of sink, of snapshots and of snapshot store."""
    return seed // 36 % 3 == 1


def has_dead_links(seed: int) -> bool:
    """Whether connections between nodes die without an end: in every third range of runs whose workers stay."""
    return is_resident(seed) and seed // 1944 % 3 == 2


def has_copies(seed: int) -> bool:
    """Whether partitions have second copies in a run: in every third of those whose workers stay."""
    return is_resident(seed) and (seed // 108 % 3 == 2 or (crosses(seed) and has_branches(seed)))


def replans(seed: int) -> bool:
    """Whether the plan of copies changes while a run goes on: in every second of the ranges in which none moves."""
    return has_copies(seed) and not moves_for_load(seed) and seed // 648 % 2 == 1


def moves_for_load(seed: int) -> bool:
    """Whether partitions move for load in a run: in every second range of those with copies."""
    return has_copies(seed) and seed // 324 % 2 == 1


def has_branches(seed: int) -> bool:
    """Whether queries give tentative outputs in a run: in every sixth of those whose workers stay."""
    return is_resident(seed) and seed // 108 % 6 == 4


def chooses(seed: int) -> bool:
    """Whether people choose which queries give tentative outputs: in every second range of those that have them."""
    return has_branches(seed) and seed // 648 % 2 == 1


def drops_for_waiting(seed: int) -> bool:
    """Whether what is kept for partitions that wait is dropped at a bound: in every third run."""
    return seed % 3 == 1


def draw_waiting_bytes(seed: int) -> float:
    """Draw the bound of what is kept for partitions that wait: it is soon reached, or at once."""
    return random.Random(f"{seed} waiting").choice((0.0, 0.0, 300.0)) if drops_for_waiting(seed) else math.inf


def leaves_behind(seed: int) -> bool:
    """Whether sources follow the queries that lead, and others catch up: in every second range of seeds."""
    return seed // 5184 % 2 == 1


def draw_batches_behind(seed: int) -> int | None:
    """Draw how far queries that catch up, or are worth less, may be behind; None: all live ones hold sources back."""
    return random.Random(f"{seed} behind").choice((4, 50, 50)) if leaves_behind(seed) else None


def freezes_at_fences(seed: int) -> bool:
    """Whether drivers are frozen where they fence the log, in every seventh run: a fence is rare, and late more so."""
    return seed % 7 == 3


def draw_branches(seed: int) -> BranchScene:
    """Draw who gives tentative outputs."""
    draw = random.Random(f"{seed} branches")
    recipe = draw.choice(WITH_BRANCHES)
    layouts = (draw_change(draw, recipe),) if draw.random() < 0.25 else ()
    share, least = draw.choice((0.5, 1.0, 1.0, 1.0)), draw.choice((0.0, 0.0, 0.0, 0.4))
    bound = random.Random(f"{seed} stand-ins").choice((BOUND, 0.4, 0.4, 0.4))
    return BranchScene(seed, share, least, recipe, layouts, draw.choice((1.02, 1.1)), bound)


def draw_copies(seed: int) -> CopyScene:
    """Draw who has copies."""
    draw = random.Random(f"{seed} copies")
    found = CopyScene(seed, draw.choice((0.4, 0.7, 1.0)), draw.choice((0, 1, 4)), draw.choice((1.0, 1.5, 2.5)))
    if not moves_for_load(seed):
        return found
    # In every second of these ranges partitions move for load, and fewer have a replica: those stay where they are.
    draw = random.Random(f"{seed} moves for load")
    return replace(found, share=draw.choice((0.0, 0.0, 0.4)), room=1.0, move_above=draw.choice((0.2, 0.4, 0.6)))


def layout_pace(pace: CycleSettings) -> CycleSettings:
    """Return the pace of a driver that brings an old layout to its end: it does not wait for nodes for ever."""
    return CycleSettings(
        checkpoint_batches=pace.checkpoint_batches,
        segment_intervals=pace.segment_intervals,
        durable_every=pace.durable_every,
        most_batches=pace.most_batches,
        most_tries=pace.most_tries,
        wait_seconds=WAIT_SECONDS,
        batches_behind=pace.batches_behind,
    )

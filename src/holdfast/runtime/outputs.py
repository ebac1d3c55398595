"""Outputs to their sinks: in order, once, and only what no replay can tell differently. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.runtime.answers import Failed, OperatorFailed
from holdfast.runtime.blocks import LATE, Block
from holdfast.runtime.program import Program
from holdfast.runtime.sinks import OutputKey, Sink


class Outputs:
    """The sinks of a run, and what waits for them."""

    def __init__(
        self,
        program: Program,
        sinks: Mapping[OperatorId, Sink],
        late_sink: Callable[[OperatorId, OperatorId], Sink],
    ) -> None:
        self._program, self._sinks, self._late_sink = program, sinks, late_sink
        self.late: dict[tuple[OperatorId, OperatorId], Sink] = {}
        """The sinks of rows that came too late, by operator and input."""
        self.held: dict[PartitionId, BatchId] = {}
        """The last batch of each output partition that waits for a checkpoint."""

    def sure(self, partition: PartitionId) -> bool:
        """Whether a replay gives the same rows again."""
        return self._program.operators[partition.operator].deterministic

    def publish(
        self, blocks: Sequence[Block], before: Mapping[PartitionId, BatchId], durable: BatchId, epoch: Epoch
    ) -> tuple[dict[PartitionId, BatchId], list[tuple[PartitionId, BatchId, int]], HoldfastError | None]:
        """Give blocks to their sinks; a sink that fails stops its partition.

        Returns the last batch now out of each partition, what went out (partition, batch, rows), and what failed first.
        """
        reached: dict[PartitionId, BatchId] = {}
        out: list[tuple[PartitionId, BatchId, int]] = []
        problem: HoldfastError | None = None
        broken: set[PartitionId] = set()
        for block in sorted(blocks, key=lambda one: (one.header.batch, one.header.sender)):
            head = block.header
            if not head.receiver.operator.startswith("@") or head.sender in broken:
                continue
            try:
                if head.receiver.operator == LATE:
                    self._set_aside(block, epoch)
                elif head.batch > reached.get(head.sender, before[head.sender]) and self._publish(
                    block, durable, epoch
                ):
                    reached[head.sender] = head.batch
                    out.append((head.sender, head.batch, block.row_count))
            except HoldfastError as error:
                broken.add(head.sender)
                problem = problem or error
        return reached, out, problem

    def _set_aside(self, block: Block, epoch: Epoch) -> None:
        place = block.header.sender.operator, block.header.edge.source
        if place not in self.late:
            self.late[place] = self._late_sink(*place)
        if block.rows is not None:
            self.late[place].publish(OutputKey(block.header.sender, block.header.batch), block.rows, epoch)

    def _publish(self, block: Block, durable: BatchId, epoch: Epoch) -> bool:
        """Give one block to its sink; say whether it is out."""
        head = block.header
        if not self.sure(head.sender) and head.batch > durable:
            # A replay could give other rows: they go out once a checkpoint covers them that outlives everything.
            self.held[head.sender] = max(head.batch, self.held.get(head.sender, NOTHING))
            return False
        if block.rows is not None:
            try:
                self._sinks[head.sender.operator].publish(OutputKey(head.sender, head.batch), block.rows, epoch)
            except HoldfastError:
                raise
            except Exception as error:
                problem = f"its sink failed: {type(error).__name__}: {error}"
                raise OperatorFailed(Failed(head.sender, head.batch, problem)) from error
        return True

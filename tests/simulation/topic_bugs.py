"""Deliberate bugs of outputs in topics: transactions, how far they are, and who may commit. Each is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.ids import Epoch
from holdfast.runtime.io import kafka_sink as sinks
from holdfast.runtime.io.kafka_sink import Committed, _Writer
from simulation.bugs import Bug, Patch


def producer_of_each_driver_has_a_name_of_its_own(patch: Patch) -> None:
    """A producer is known by its driver's claim, too: it fences nobody, and ends no transaction that was left open."""
    right = _Writer._open

    def opened(self: Any, epoch: Epoch) -> Committed:
        self._producer._name = f"{self._producer._name}-{epoch.claim}"
        return right(self, epoch)

    patch.setattr(_Writer, "_open", opened)


def fenced_producer_opens_itself_again(patch: Patch) -> None:
    """A producer that is fenced opens itself again and goes on with what it knew of the topic."""
    right = _Writer.write

    def write(self: Any, outputs: Any, epoch: Epoch) -> int:
        try:
            return right(self, outputs, epoch)
        except sinks.CheckFailed as error:
            if "another producer" not in str(error):
                raise
            self._producer.init_transactions(self._timeout)
            return right(self, outputs, epoch)

    patch.setattr(_Writer, "write", write)


def how_far_is_committed_after_the_rows(patch: Patch) -> None:
    """The rows are one transaction, and how far the topic is with them another one."""
    right = _Writer._end

    def end(self: Any) -> None:
        left = self._producer._link.brokers.present(
            self._producer._name, self._producer._epoch, self._producer._timeout
        )
        offsets = dict(left.offsets)
        left.offsets.clear()
        right(self)
        self._producer.begin_transaction()
        for (group, _), place in offsets.items():
            self._producer.send_offsets_to_transaction([place], group, self._timeout)
        right(self)

    patch.setattr(_Writer, "_end", end)


def how_far_is_not_looked_at(patch: Patch) -> None:
    """What was committed by a driver that died before it could report it is written again."""
    right = _Writer._open

    def opened(self: Any, epoch: Epoch) -> Committed:
        return replace(right(self, epoch), queries={}, tentative={})

    patch.setattr(_Writer, "_open", opened)


def how_far_says_the_first_output(patch: Patch) -> None:
    """A transaction with outputs of several batches says that it has the first of them."""
    right = Committed.after

    def after(self: Committed, keys: Sequence[Any], claim: int) -> Committed:
        found = right(self, keys, claim)
        kept = {key.query.index for key in keys if self.claim == claim and key.query.index in self.queries}
        return replace(found, queries={**found.queries, **{at: self.queries[at] for at in kept}})

    patch.setattr(Committed, "after", after)


def aborted_transaction_taken_for_committed(patch: Patch) -> None:
    """Where a transaction must be aborted it is, and its outputs count as written."""
    right = _Writer._end

    def end(self: Any) -> None:
        try:
            right(self)
        except self._library.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise

    patch.setattr(_Writer, "_end", end)


def final_rows_under_the_revision_of_tentative_ones(patch: Patch) -> None:
    """Final rows of a topic with tentative ones say revision 0: readers cannot tell which count."""
    right = sinks.version_headers

    def headers(output: Any) -> list[tuple[str, bytes]]:
        return [(name, b"0" if name == "holdfast-revision" else value) for name, value in right(output)]

    patch.setattr(sinks, "version_headers", headers)


TOPIC_BUGS = tuple(
    Bug(put_in.__name__.replace("_", " "), put_in.__doc__ or "", put_in)
    for put_in in (
        producer_of_each_driver_has_a_name_of_its_own,
        fenced_producer_opens_itself_again,
        how_far_is_committed_after_the_rows,
        how_far_is_not_looked_at,
        how_far_says_the_first_output,
        aborted_transaction_taken_for_committed,
    )
)
"""Of all topics."""
VERSION_BUGS = tuple(
    Bug(put_in.__name__.replace("_", " "), put_in.__doc__ or "", put_in)
    for put_in in (final_rows_under_the_revision_of_tentative_ones,)
)
"""Of topics that take tentative rows."""

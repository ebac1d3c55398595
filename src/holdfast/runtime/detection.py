"""Which nodes have fallen silent, and whether the driver is cut off itself. Pure; runs on the driver, in backends.

A node whose executor Spark has removed is lost at once, however many there are: that needs no detector. Silence needs
one. A node is silent when it has answered nothing for `seconds`, several pings in a row. Two things are no silence of
nodes:

- The driver was not awake (stopped, suspended, starved): time that it slept through does not count, and after it every
  node gets all its pings anew.
- The driver is cut off. Where most nodes fall silent together it suspects itself, and declares nobody before it has
  asked its storage and Spark's master. They answer: the nodes are silent. One does not: nobody is declared, and it
  asks again; once it is over, every node gets its time anew and more, for connections take a while to recover.
  Nodes do not fall silent in one moment: those that have missed two pings count as falling silent, or the first of
  them would be declared one by one before there are most. And a ping that no node has answered speaks against no
  node: a driver that is cut off again and again, for a moment each, finds most nodes answering in between.

A node whose connections have all ended, and whose executor Spark has not removed, lives: its task is started again and
dials anew. It is given twice as long before its silence counts.

A node that answers after it was declared silent is a false alarm; they are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from holdfast.ids import NodeId

PINGS = 5
"""Pings within the time after which a node is silent; all but one of them must have been missed."""
FIRST_SECONDS = 30.0
"""A node that has never answered is given this long."""
RETURN_FACTOR = 2
"""A node that has ended its connections has so many times as long to come back."""
_FALLING = 2
"""Pings missed from which on a node is falling silent."""


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Whether those answer who would not, were the driver cut off; None: there is nothing to ask."""

    storage: bool | None = None
    master: bool | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether one of them did not answer: then it is unknown whose fault the silence is."""
        return self.storage is False or self.master is False


@dataclass(frozen=True, slots=True)
class Detection:
    """What holds now."""

    silent: tuple[NodeId, ...] = ()
    """Nodes to declare silent; they are not watched any more."""
    question: int | None = None
    """The number of the check that the driver needs of itself; None: it suspects nothing."""
    suspected: tuple[NodeId, ...] = ()
    """Nodes that would be declared silent if it were not for that."""


@dataclass(slots=True)
class _Watched:
    quiet: float = 0.0
    """Seconds, awake, since the last answer."""
    missed: int = 0
    """Pings since the last answer, or since the driver woke up."""
    alone: int = 0
    """Those of them, but for the last, that some other node has answered."""
    answered: bool = False


class SilenceDetector:
    """Decides which nodes are silent. Whoever drives it pings every `every` seconds and says when answers come."""

    def __init__(self, seconds: float, *, first_seconds: float = FIRST_SECONDS) -> None:
        """A node is silent after so many seconds; one that has never answered after `first_seconds`."""
        self.seconds, self.every = seconds, seconds / PINGS
        self._first = max(first_seconds, seconds)
        self._watched: dict[NodeId, _Watched] = {}
        self._left: set[NodeId] = set()
        self._declared: set[NodeId] = set()
        self._now: float | None = None
        self._question = 0
        self._asks = False
        self._check: SelfCheck | None = None
        self._was_cut_off = False
        self._any_answered = False
        """Whether any node has answered since the last ping."""
        self.false_alarms = 0

    def watch(self, nodes: Iterable[NodeId]) -> None:
        """Watch exactly these nodes."""
        wanted = set(nodes)
        self._watched = {node: one for node, one in self._watched.items() if node in wanted}
        for node in wanted - self._watched.keys():
            self._watched[node] = _Watched()

    def left(self, nodes: Collection[NodeId]) -> None:
        """Exactly these nodes have no connection now: what they had has ended."""
        self._left = set(nodes)

    def pinged(self) -> None:
        """All nodes have been pinged."""
        for one in self._watched.values():
            one.alone += self._any_answered and one.missed > 0
            one.missed += 1
        self._any_answered = False

    def answered(self, node: NodeId) -> bool:
        """A node has answered something; return whether it had been declared silent: a false alarm."""
        self._any_answered = True
        if (one := self._watched.get(node)) is not None:
            one.quiet, one.missed, one.alone, one.answered = 0.0, 0, 0, True
        if node not in self._declared:
            return False
        self._declared.discard(node)
        self.false_alarms += 1
        return True

    def passed(self, now: float) -> None:
        """Time has passed; where more did than between two pings, the driver has slept, and the rest does not count."""
        before, self._now = self._now, now
        if before is None:
            return
        slept = now - before > 2 * self.every
        for one in self._watched.values():
            one.quiet += min(now - before, self.every)
            if slept:
                one.missed = one.alone = 0

    def is_answering(self, node: NodeId) -> bool:
        """Whether a node has answered lately: nothing speaks for its being cut off."""
        one = self._watched.get(node)
        return one is not None and one.answered and one.missed < _FALLING

    def checked(self, question: int, check: SelfCheck) -> None:
        """Take what a check of the driver itself gave; one that answers an earlier question is too old."""
        if self._asks and question == self._question:
            self._check = check

    def look(self) -> Detection:
        """Decide, by what has been said so far."""
        silent = tuple(sorted(node for node, one in self._watched.items() if self._is_silent(node, one)))
        if not silent:
            self._asks, self._check, self._was_cut_off = False, None, False
            return Detection()
        falling = [one for one in self._watched.values() if one.missed >= _FALLING]
        check, self._check = self._check, None
        if 2 * len(falling) <= len(self._watched):  # where it had been most, the network has come back
            if self._asks:
                return self._begin_anew()
            return self._declare(tuple(node for node in silent if self._watched[node].alone >= PINGS - 2))
        if check is not None and not check.is_cut_off:
            return self._begin_anew() if self._was_cut_off else self._declare(silent)
        self._was_cut_off |= check is not None
        if check is not None or not self._asks:
            self._question += 1  # the first question, or the next after one that found it cut off
        self._asks = True
        return Detection((), self._question, silent)

    def _is_silent(self, node: NodeId, one: _Watched) -> bool:
        limit = self.seconds * (RETURN_FACTOR if node in self._left else 1)
        return one.quiet >= (limit if one.answered else self._first) and one.missed >= PINGS - 1

    def _begin_anew(self) -> Detection:
        """The driver was cut off, and is no more."""
        self._was_cut_off = self._asks = False
        for one in self._watched.values():
            one.quiet, one.missed, one.alone = -self.seconds, 0, 0
        return Detection()

    def _declare(self, silent: tuple[NodeId, ...]) -> Detection:
        self._asks, self._check = False, None
        self._declared.update(silent)
        for node in silent:
            del self._watched[node]
        return Detection(silent)

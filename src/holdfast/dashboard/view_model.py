"""The fold of a run's event log: what the page shows, event by event. Pure: times come with the events.

`RunModel.take` takes one event as `events.jsonl` has it. Events of unknown kinds are skipped; one that lacks what its
kind needs is counted and skipped: a page never ends because a log is from another version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from holdfast.dashboard.event_fields import Event, number, read_about, read_fetched, read_plan, read_promise
from holdfast.dashboard.model_rows import Fault, NodeState, QueryState, some
from holdfast.dashboard.partition_rows import DOWN, PartitionRows, row_of
from holdfast.dashboard.recovery_record import LEVEL, Outage, RecoveryRecord
from holdfast.dashboard.topology_model import TopologyModel
from holdfast.errors import HoldfastError
from holdfast.wording import counted

RECOVERIES_KEPT = 20
HAPPENED_KEPT = 200
PROMISES_KEPT = 50


class RunModel:
    """What is known of a run after some events."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        """The fields of the event `run`, without the topology."""
        self.topology: TopologyModel | None = None
        self.rows = PartitionRows()
        """A row per partition: see `row_of`."""
        self.queries: dict[str, QueryState] = {}
        self.nodes: dict[str, NodeState] = {}
        self.costs: dict[str, float] = {}
        self.measures: dict[str, Mapping[str, Any]] = {}
        self.parked: dict[str, dict[str, Any]] = {}
        self.faults: dict[tuple[str, str], Fault] = {}
        """By kind and place."""
        self.recoveries: deque[RecoveryRecord] = deque(maxlen=RECOVERIES_KEPT)
        self.recovery: RecoveryRecord | None = None
        self.promises: deque[dict[str, Any]] = deque(maxlen=PROMISES_KEPT)
        self.plan: dict[str, Any] | None = None
        self.alarms: dict[str, dict[str, float]] = {}
        """Promises of the plan that do not hold: what each comes to now, and its target."""
        self.dropped: set[str] = set()
        """Partitions whose kept inputs were dropped, and which regenerate them when they return."""
        self.waiting: tuple[str, ...] = ()
        """Lost partitions that the last plan found no room for."""
        self.requested = 0
        self.checkpoint: dict[str, Any] | None = None
        self.happened: deque[dict[str, Any]] = deque(maxlen=HAPPENED_KEPT)
        """What people want to read of it, newest last: `at`, `kind`, `text`."""
        self.epoch: tuple[int, int] | None = None
        self.logged = self.frontier = -1
        self.rows_per_second: float | None = None
        self.rows_in = 0
        self.quarantined = self.unread = 0
        self.false_alarms = 0
        self.rollbacks = 0
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.ended: dict[str, Any] | None = None
        self.starts = 0
        self.seen = 0
        self.skipped = 0
        """Events that could not be read."""
        self._quiet = False
        """Whether the event stands at the head of a rotated file once more: it is known, and no news."""
        self._started = False
        """Whether all partitions of this start have been live."""
        self._tentative_in: dict[str, frozenset[str]] = {}
        """The partitions of each query that go on with incomplete inputs."""
        self._recent_losses: dict[str, float] = {}
        self._recoveries = 0

    # -- events --------------------------------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Take the next event of the log."""
        self.seen += 1
        try:
            at = float(event["at"])
            handle = _HANDLERS.get(event["event"])
            self.first_at = at if self.first_at is None else self.first_at
            self.last_at = max(at, self.last_at or at)
            self._quiet = bool(event.get("repeated"))
            if handle is not None:
                handle(self, at, event)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, HoldfastError):
            self.skipped += 1

    def describe(self, document: object, outputs: Mapping[str, str]) -> None:
        """Take the topology from elsewhere, where the log has none."""
        self.topology = TopologyModel.read(document, outputs)
        held = self.rows
        self.rows = PartitionRows(
            self.topology.queries_of,
            [held.get(name) or row_of(name, "unknown", None, 0.0) for name in (*held, *self.topology.names)],
        )
        for query, priority in self.topology.queries.items():
            self.queries.setdefault(query, QueryState(query, self.topology.output_of[query], priority))

    def _run(self, at: float, event: Event) -> None:
        """A driver begins: every partition is lost, and no node is there.

        At the head of a rotated file it is repeated, and tells only those something who have not read what was before.
        """
        repeated = bool(event.get("repeated"))
        if repeated and self.topology is not None and self.about.get("start") == event.get("start"):
            return
        if self.recovery is not None:
            self.recovery.close(at, "the driver ended")
            self.recovery = None
        before = self.queries
        parked = {str(query): dict(why) for query, why in (event.get("parked") or {}).items()}
        self.about = read_about(event)
        self.rows, self.queries, self._tentative_in = PartitionRows(), {}, {}
        self.describe(event["topology"], dict(event.get("outputs") or {}))
        for name in self.rows:
            self.rows.put(row_of(name, "unknown" if repeated else "lost", None, at))
        for query, one in self.queries.items():
            if query in before:
                one.published, one.published_at = before[query].published, before[query].published_at
        self.nodes, self.faults, self.waiting, self.requested = {}, {}, (), 0
        self.alarms = {}
        self.parked = parked
        self.plan = self.ended = None
        self.starts += 1
        self._started = repeated
        if repeated:
            return
        self._recoveries += 1
        self.recovery = RecoveryRecord(self._recoveries, at, is_start=True)
        self.recoveries.append(self.recovery)
        for name in self.rows:
            self.recovery.enter(name, "lost", at, None)
        self._note(at, "run", f"driver {self.about.get('claim', '')} started".replace("  ", " "))

    def _node_arrived(self, at: float, event: Event) -> None:
        capacity = event.get("capacity") or {}
        for name in map(str, event["nodes"]):
            self.nodes[name] = NodeState(name, at, "up", number(capacity.get(name)))
        self.requested = max(0, self.requested - len(event["nodes"]))
        self._note(at, "node-arrived", f"{some(event['nodes'])} arrived")

    def _node_gone(self, at: float, event: Event) -> None:
        state = "silent" if event["event"] == "node-silent" else "lost"
        for name in map(str, event["nodes"]):
            one = self.nodes.setdefault(name, NodeState(name, at))
            one.state, one.since, one.why = state, at, event.get("why")
            self._recent_losses[name] = at
            if self.recovery is not None and not self.recovery.is_start and name not in self.recovery.nodes:
                self.recovery.nodes.append(name)
        verb = "fell silent" if state == "silent" else "lost"
        self._note(at, str(event["event"]), f"{some(event['nodes'])} {verb}")

    def _state(self, at: float, event: Event) -> None:
        name, after = str(event["partition"]), str(event["after"])
        if self.topology is not None and name not in self.rows:
            raise KeyError(name)
        before = self.rows.get(name) or row_of(name, "unknown", None, at)
        node = None if event.get("node") is None else str(event["node"])
        was, now = before["state"] in DOWN, after in DOWN
        if node is not None and node not in self.nodes:
            self.nodes[node] = NodeState(node, at)
        kept = {"replica": before["replica"], "tentative": before["tentative"]}
        if not now:
            kept["fetched"] = before["fetched"]
        self.rows.put({**row_of(name, after, node, at, before["batch"]), **kept})
        recovery = self.recovery
        if recovery is None and now:
            recovery = self._begin_recovery(at)
        if now and not was and recovery is not None and not recovery.is_start:
            for query in self.rows.first_down(name):
                recovery.outages.setdefault(query, Outage(at)).back_at = None
        if recovery is not None and (now or name in recovery.spans):
            recovery.enter(name, after, at, node)
            self._after_change(at, recovery)

    def _begin_recovery(self, at: float) -> RecoveryRecord:
        self._recoveries += 1
        recent = [name for name, when in self._recent_losses.items() if when >= at - 2.0]
        self.recovery = RecoveryRecord(self._recoveries, at, nodes=recent, is_start=not self._started)
        self.recoveries.append(self.recovery)
        return self.recovery

    def _after_change(self, at: float, recovery: RecoveryRecord) -> None:
        if not self.rows.down:
            self._started = True
            self.waiting = ()
        if not recovery.open:
            recovery.close(at, LEVEL)
            self.recovery = None

    def _planned(self, at: float, event: Event) -> None:
        recovery = self.recovery or self._begin_recovery(at)
        self.waiting = tuple(map(str, event["left_out"]))
        plan: dict[str, Any] = {
            "at": at,
            "recover": list(map(str, event["recover"])),
            "placement": dict(event["placement"]),
            "left_out": list(self.waiting),
            "queries": list(map(str, event["queries"])),
            "priority": int(event["priority"]),
            "reasons": self._reasons(event),
        }
        recovery.planned(plan)
        self.note_fidelity()
        wait = f", {len(self.waiting)} wait for nodes" if self.waiting else ""
        self._note(at, "planned", f"plan: {counted(len(plan['recover']), 'partition')} restored now{wait}")

    def _reasons(self, event: Event) -> list[dict[str, Any]]:
        """Say why queries come in this order: what each is worth, and what it costs to bring it back."""
        topology = self.topology
        if topology is None:
            return []
        lost = {*map(str, event["recover"]), *map(str, event["left_out"])}
        found: list[dict[str, Any]] = []
        for query in topology.queries:
            density, cost, count = topology.density(query, lost, self.costs)
            if count:
                found.append(
                    {
                        "query": query,
                        "priority": topology.queries[query],
                        "density": density,
                        "cost": cost,
                        "partitions": count,
                        "now": query in event["queries"],
                    }
                )
        found.sort(key=lambda one: (not one["now"], -float(one["density"] or 0.0), one["query"]))
        return found

    def _published(self, at: float, event: Event) -> None:
        one = self.queries.get(str(event["partition"]))
        if one is None:
            return
        if event.get("tentative"):
            one.tentative = True
            return
        fresh = int(event["batch"]) > one.published
        one.published, one.published_at = max(one.published, int(event["batch"])), at
        one.rows += int(event["rows"])
        if event.get("latency") is not None:
            one.latencies.append(float(event["latency"]))
        if fresh and self.rows.down_in(one.id) == 0:
            for recovery in self.recoveries:
                outage = recovery.outages.get(one.id)
                if outage is not None and outage.back_at is None:
                    outage.back_at = at

    def _tentative(self, at: float, event: Event) -> None:
        """A query goes on without some of its partitions, or with others than before."""
        one = self.queries[str(event["query"])]
        one.fidelity = float(event["fidelity"])
        self._mark_tentative(one.id, map(str, event.get("without") or ()))
        share = f"{one.fidelity:.0%} of the data"
        where = f", by a stand-in on {node}" if (node := event.get("stand_in")) else ""
        self._note(at, "tentative", f"{one.id} goes on with tentative outputs, on {share}{where}")

    def _tentative_ended(self, at: float, event: Event) -> None:
        one = self.queries[str(event["query"])]
        one.tentative, one.fidelity = False, None
        self._mark_tentative(one.id, ())
        if event.get("problem") is not None:
            self._note(at, "tentative-ended", f"no more tentative outputs of {one.id}: {event['problem']}")

    def _mark_tentative(self, query: str, without: Iterable[str]) -> None:
        """Mark the partitions of a query that go on with incomplete inputs, and no others."""
        if self.topology is None:
            return
        before = {*chain.from_iterable(self._tentative_in.values())}
        self._tentative_in[query] = self.topology.below(query, frozenset(without))
        after = {*chain.from_iterable(self._tentative_in.values())}
        for name in before ^ after:
            self.rows.put({**self.rows[name], "tentative": name in after})

    def _corrected(self, at: float, event: Event) -> None:
        if int(event["through"]) >= int(event["since"]):
            batches = f"batches {event['since']} to {event['through']}"
            self._note(at, "corrected", f"{event['query']}: final outputs have replaced tentative ones, {batches}")

    def _cycle(self, at: float, event: Event) -> None:
        self.logged, self.frontier = int(event["through"]), int(event["frontier"])
        rows, seconds = int(event["rows"]), float(event["seconds"])
        self.rows_in += rows
        self.rows_per_second = rows / seconds if seconds > 0 else None
        self.epoch = int(event["claim"]), int(event["epoch"])
        self.faults.pop(("cycle-failed", ""), None)

    def _checkpoint(self, at: float, event: Event) -> None:
        before = self.checkpoint
        interval = None if before is None else at - before["at"]
        batch, durable = int(event["batch"]), event.get("durable")
        self.checkpoint = {"batch": batch, "durable": durable, "at": at, "interval": interval}
        for key in [key for key in self.faults if key[0] == "snapshot-not-stored"]:
            del self.faults[key]

    def _parked(self, at: float, event: Event) -> None:
        query = str(event["query"])
        fields = ("partition", "batch", "error", "since", "attempts", "row")
        self.parked[query] = {name: event.get(name) for name in fields}
        self._note(at, "parked", f"{query} parked: {event['error']}")

    def _resumed(self, at: float, event: Event) -> None:
        self.parked.pop(str(event["query"]), None)
        self._note(at, "resumed", f"{event['query']} resumed")

    def _measures(self, at: float, event: Event) -> None:
        measures: dict[str, Mapping[str, Any]] = {str(name): dict(one) for name, one in event["partitions"].items()}
        costs = {name: float(one["cost"]) for name, one in measures.items() if one.get("cost") is not None}
        self.measures, self.costs = measures, {**self.costs, **costs}

    def _promise(self, at: float, event: Event) -> None:
        self.promises.append(read_promise(at, event))
        if event.get("kept") is False:
            self._note(at, "promise", f"{event['query']}: back after {event['measured']} s, later than promised")

    def _fault(self, at: float, event: Event) -> None:
        kind = str(event["event"])
        place = str(event.get("partition") or event.get("output") or "")
        before = self.faults.get((kind, place))
        problem = str(event.get("problem") or "")
        self.faults[kind, place] = Fault(at, 1 if before is None else before.times + 1, problem)
        if kind == "failed" and event.get("retry_seconds") is None:
            self.faults.pop((kind, place))  # its queries are parked: that is said elsewhere

    def _quarantined(self, at: float, event: Event) -> None:
        self.quarantined += int(event["rows"])
        text = f"{counted(int(event['rows']), 'row')} of {event['partition']} quarantined: {event['error']}"
        self._note(at, "quarantined", text)

    def _unread(self, at: float, event: Event) -> None:
        self.unread += int(event["rows"])
        text = f"{counted(int(event['rows']), 'record')} of {event['source']} cannot be read: {event['error']}"
        self._note(at, "unread-records", text)

    def _restoring(self, at: float, event: Event) -> None:
        name = str(event["partition"])
        if name in self.rows:
            self.rows.put({**self.rows[name], "batch": int(event["batch"])})

    def _restored(self, at: float, event: Event) -> None:
        name = str(event["partition"])
        if name not in self.rows or event.get("fetch_seconds") is None:
            return
        fetched = read_fetched(event)
        self.rows.put({**self.rows[name], "fetched": fetched})
        if self.recovery is not None:
            self.recovery.fetched[name] = fetched

    def _code_changed(self, at: float, event: Event) -> None:
        self._note(at, "code-changed", f"{event['node']} codes snapshots {event['code']}: {event['reason']}")

    def _replica(self, at: float, event: Event) -> None:
        """A replica is being built, is level with its primary, or was given up."""
        row = self.rows[str(event["partition"])]
        kind = str(event["event"])
        replica = {"node": str(event["node"]), "level": kind == "replica-level"}
        self.rows.put({**row, "replica": None if kind == "replica-dropped" else replica})
        if kind == "replica-dropped":
            self._note(at, kind, f"the replica of {row['id']} on {event['node']} was dropped: {event['why']}")

    def _promoted(self, at: float, event: Event) -> None:
        """A replica has taken its primary's place."""
        row = self.rows[str(event["partition"])]
        self.rows.put({**row, "node": str(event["node"]), "replica": None})
        self._note(at, "promoted", f"{row['id']} continues on {event['node']} by its replica")

    def _fragments(self, at: float, event: Event) -> None:
        name = str(event["partition"])
        if name in self.rows:
            self.rows.put({**self.rows[name], "fragments": [int(event["fetched"]), int(event["needed"])]})

    def _recovery_ended(self, at: float, event: Event) -> None:
        if self.recoveries:
            self.recoveries[-1].covered_at = at
        self._note(at, "recovery-ended", f"recovery ended: the checkpoint at batch {event['batch']} covers everything")

    def _requested(self, at: float, event: Event) -> None:
        self.requested += int(event["count"])
        self._note(at, "requested", f"{counted(int(event['count']), 'replacement node')} requested")

    def _epoch(self, at: float, event: Event) -> None:
        self.epoch = int(event["claim"]), int(event["epoch"])

    def _rolled_back(self, at: float, event: Event) -> None:
        self.rollbacks += 1
        count = counted(len(event["partitions"]), "live partition")
        self._note(at, "rolled-back", f"{count} rolled back to batch {event['to']}")

    def _plan(self, at: float, event: Event) -> None:
        self.plan = read_plan(event)

    def _plan_changed(self, at: float, event: Event) -> None:
        predicted = [dict(one) for one in event.get("predicted") or ()]
        seconds = [float(one["seconds"]) for one in event["intervals"] if one.get("seconds") is not None]
        if self.plan is not None:
            changed = {"backups": event["backups"], "interval_seconds": min(seconds, default=None)}
            self.plan = {**self.plan, **changed, "predicted": predicted or self.plan["predicted"]}
        why = f": {event['why']}" if event.get("why") else ""
        self._note(at, "plan-changed", f"plan {event['number']} takes effect at batch {event['batch']}{why}")

    def _promise_alarm(self, at: float, event: Event) -> None:
        what = str(event["what"])
        self.alarms[what] = {"now": float(event["now"]), "target": float(event["target"])}
        self._note(at, "promise-alarm", f"a promise of the plan does not hold any more: {what}")

    def _promise_holds(self, at: float, event: Event) -> None:
        self.alarms.pop(str(event["what"]), None)
        self._note(at, "promise-holds", f"a promise of the plan holds again: {event['what']}")

    def _plan_not_found(self, at: float, event: Event) -> None:
        self._note(at, "plan-not-found", f"the search for another plan failed: {event['problem']}")

    def _kept_no_more(self, at: float, event: Event) -> None:
        self.dropped.update(str(one) for one in event["partitions"])
        self._note(at, "kept-no-more", f"inputs kept for {some(event['partitions'])} dropped: outboxes are full")

    def _regenerated(self, at: float, event: Event) -> None:
        self.dropped.difference_update(str(one) for one in event["partitions"])
        self._note(at, "regenerated", f"{some(event['partitions'])} regenerated what was dropped, and caught up")

    def _catching_up(self, at: float, event: Event) -> None:
        self._note(at, "catching-up", f"{event['query']} is {event['lag_batches']:,} batches behind and catches up")

    def _caught_up(self, at: float, event: Event) -> None:
        self._note(at, "caught-up", f"{event['query']} has caught up with the other queries")

    def _replicas_changed(self, at: float, event: Event) -> None:
        parts = [f"{verb} for {some(event[field])}" for field, verb in _REPLICAS_CHANGE.items() if event[field]]
        self._note(at, "replicas-changed", f"replicas {', '.join(parts)}: {event['why']}")

    def _false_alarm(self, at: float, event: Event) -> None:
        self.false_alarms += len(event["nodes"])
        self._note(at, "false-alarm", f"{some(event['nodes'])} answered after it was declared silent")

    def _driver_suspected(self, at: float, event: Event) -> None:
        self._note(at, "driver-suspected", f"most nodes fell silent together: {some(event['nodes'])}")

    def _plan_rejected(self, at: float, event: Event) -> None:
        self.faults["plan-rejected", ""] = Fault(at, 1, str(event["problems"][0]))

    def _bound_lifted(self, at: float, event: Event) -> None:
        self._note(at, "bound-lifted", f"{some(event['partitions'])} restored above the bound: no node had room")

    def _ended(self, at: float, event: Event) -> None:
        if event.get("start") != self.about.get("start"):
            return  # an earlier driver, whose run another one has continued meanwhile
        self.ended = {"at": at, "problem": event.get("problem")}
        if self.recovery is not None:
            self.recovery.close(at, "the run ended")
            self.recovery = None
        problem = event.get("problem")
        self._note(at, "ended", "the run ended" if problem is None else f"the run failed: {problem}")

    # -- what follows from it ------------------------------------------------------------------------------------------

    def note_fidelity(self) -> None:
        """Let the recovery remember the lowest fidelity: at plans, and when a browser asks."""
        if self.topology is not None and self.recovery is not None and not self.recovery.is_start:
            now = self.topology.fidelity(self.lost)
            self.recovery.lowest_fidelity = min(self.recovery.lowest_fidelity, now)

    @property
    def lost(self) -> frozenset[str]:
        """The partitions that process nothing: lost, or being restored."""
        return frozenset(self.rows.down)

    def _note(self, at: float, kind: str, text: str) -> None:
        if not self._quiet:
            self.happened.append({"at": at, "kind": kind, "text": text})


_REPLICAS_CHANGE = {"start": "started", "stop": "stopped"}

_HANDLERS: dict[str, Callable[[RunModel, float, Event], None]] = {
    "run": RunModel._run,
    "node-arrived": RunModel._node_arrived,
    "node-lost": RunModel._node_gone,
    "node-silent": RunModel._node_gone,
    "state": RunModel._state,
    "planned": RunModel._planned,
    "published": RunModel._published,
    "tentative": RunModel._tentative,
    "tentative-ended": RunModel._tentative_ended,
    "corrected": RunModel._corrected,
    "cycle": RunModel._cycle,
    "cycle-failed": RunModel._fault,
    "failed": RunModel._fault,
    "snapshot-not-stored": RunModel._fault,
    "not-staged": RunModel._fault,
    "plan-rejected": RunModel._plan_rejected,
    "checkpoint": RunModel._checkpoint,
    "parked": RunModel._parked,
    "resumed": RunModel._resumed,
    "measures": RunModel._measures,
    "plan": RunModel._plan,
    "promise": RunModel._promise,
    "plan-changed": RunModel._plan_changed,
    "promise-alarm": RunModel._promise_alarm,
    "promise-holds": RunModel._promise_holds,
    "plan-not-found": RunModel._plan_not_found,
    "kept-no-more": RunModel._kept_no_more,
    "regenerated": RunModel._regenerated,
    "catching-up": RunModel._catching_up,
    "caught-up": RunModel._caught_up,
    "replicas-changed": RunModel._replicas_changed,
    "quarantined": RunModel._quarantined,
    "unread-records": RunModel._unread,
    "restoring": RunModel._restoring,
    "restored": RunModel._restored,
    "fragments": RunModel._fragments,
    "code-changed": RunModel._code_changed,
    "replica-building": RunModel._replica,
    "replica-level": RunModel._replica,
    "replica-dropped": RunModel._replica,
    "promoted": RunModel._promoted,
    "recovery-ended": RunModel._recovery_ended,
    "requested": RunModel._requested,
    "epoch": RunModel._epoch,
    "rolled-back": RunModel._rolled_back,
    "false-alarm": RunModel._false_alarm,
    "driver-suspected": RunModel._driver_suspected,
    "bound-lifted": RunModel._bound_lifted,
    "ended": RunModel._ended,
}
"""What an event of a kind changes; others change nothing."""

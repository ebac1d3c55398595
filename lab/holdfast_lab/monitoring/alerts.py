"""What to be woken for: the alert rules of a run, as one table, and as Prometheus reads them. Pure.

Expressions name metrics of `holdfast.dashboard.metrics.METRICS` only; a test compares them. Thresholds are those of a
run whose plan says nothing else: where it has recovery targets, these count.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule: it fires where `expression` holds for so long."""

    name: str
    expression: str
    lasting: str
    """How long it must hold, as Prometheus writes durations."""
    severity: str
    """`page`: a person should look now; `ticket`: today."""
    summary: str
    action: str
    """What to do."""


_WORKING = 'on (instance, job) (holdfast_run_state{state=~"running|recovering"} == 1)'

ALERTS: tuple[Alert, ...] = (
    Alert(
        "HoldfastRecoveryTargetMissed",
        "holdfast_query_down_seconds > holdfast_query_recovery_target_seconds"
        " or increase(holdfast_query_missed_targets_total[10m]) > 0",
        "0s",
        "page",
        "Query {{ $labels.query }} has been down for longer than its recovery target",
        "See what it waits for on the page of the run; nodes that are missing are the usual reason. Afterwards: "
        "`holdfast report DIRECTORY` shows where the time went. A run with a joint plan makes its plan again by "
        "itself; for other runs: `holdfast profile`, then `holdfast plan auto`.",
    ),
    Alert(
        "HoldfastQueryDown",
        "(holdfast_query_down_seconds > 300) unless holdfast_query_recovery_target_seconds",
        "0s",
        "page",
        "Query {{ $labels.query }} has been down for more than five minutes",
        "See what it waits for on the page of the run; give the run recovery targets to be told in time.",
    ),
    Alert(
        "HoldfastPartitionsWaitForNodes",
        'holdfast_partitions{state="lost"} > 0',
        "5m",
        "page",
        "{{ $value }} partitions have no node",
        "Add nodes, or free capacity: the bound leaves no room for them on those there are.",
    ),
    Alert(
        "HoldfastQueryParked",
        "holdfast_query_parked == 1",
        "0s",
        "page",
        "Query {{ $labels.query }} is parked: an operator, a row or its sink fails",
        "Read its error on the page of the run, remove the cause, then `holdfast resume DIRECTORY QUERY`.",
    ),
    Alert(
        "HoldfastNoProgress",
        "(holdfast_logged_batch - holdfast_completed_batch > 0)"
        f" and (delta(holdfast_completed_batch[5m]) == 0) and {_WORKING}",
        "1m",
        "page",
        "Batches are logged, and none has been completed for five minutes",
        "Look for failed cycles and slow partitions on the page of the run.",
    ),
    Alert(
        "HoldfastCheckpointTooOld",
        "(time() - holdfast_checkpoint_timestamp_seconds > 5 * clamp_min(holdfast_checkpoint_interval_seconds, 60))"
        f" and (holdfast_logged_batch > holdfast_checkpoint_batch) and {_WORKING}",
        "1m",
        "page",
        "The last checkpoint was complete {{ $value | humanizeDuration }} ago",
        "Snapshots cannot be stored: read `snapshot-not-stored` in the events; see that storage and agents answer.",
    ),
    Alert(
        "HoldfastPromiseBroken",
        "holdfast_plan_broken_promises > 0",
        "30m",
        "ticket",
        "{{ $value }} promises of the plan have not held for half an hour",
        "`holdfast plan explain DIRECTORY` shows what the plan comes to with present measurements; add nodes, or start "
        "with another target.",
    ),
    Alert(
        "HoldfastInputsDropped",
        "holdfast_partitions_to_regenerate > 0",
        "0s",
        "ticket",
        "The inputs kept for {{ $value }} waiting partitions reached their bound and were dropped",
        "No row is lost, but every further minute lengthens the return: add a node, or `holdfast resume` what is "
        "parked. Watch the space of durable storage, where the batch log grows.",
    ),
    Alert(
        "HoldfastRingDegraded",
        "(holdfast_ring_silent_peers > 0) or (holdfast_ring_redundancy_min < holdfast_ring_parity_fragments)",
        "10m",
        "ticket",
        "The ring of peers has not repaired all fragments for ten minutes",
        "`holdfast store status` names the peers that are silent; start them, or let the repair go on.",
    ),
    Alert(
        "HoldfastRingAtRisk",
        "holdfast_ring_redundancy_min < 1",
        "1m",
        "page",
        "A snapshot cannot lose one more fragment",
        "Start the peers that are silent; until then the durable checkpoint is what is left.",
    ),
    Alert(
        "HoldfastRunFailed",
        'holdfast_run_state{state=~"failed|gone"} == 1',
        "1m",
        "page",
        "The run is {{ $labels.state }}",
        "Start it again with the same directory: it continues, and no row is lost or published twice.",
    ),
    Alert(
        "HoldfastPlanRejected",
        "increase(holdfast_plans_rejected_total[1h]) > 0",
        "0s",
        "ticket",
        "A recovery plan did not pass its check, and did not run",
        "A fault of Holdfast: keep the run's directory and report it.",
    ),
)


def rules() -> dict[str, object]:
    """Return the rules as a document that Prometheus reads (as YAML)."""
    return {
        "groups": [
            {
                "name": "holdfast",
                "rules": [
                    {
                        "alert": one.name,
                        "expr": one.expression,
                        "for": one.lasting,
                        "labels": {"severity": one.severity},
                        "annotations": {"summary": one.summary, "description": one.action},
                    }
                    for one in ALERTS
                ],
            }
        ]
    }


def alerts_table() -> str:
    """Return the table of alerts for the documents."""
    rows = []
    for one in ALERTS:
        summary = one.summary.replace("{{ $labels.query }}", "Q").replace("{{ $value }}", "N")
        summary = summary.replace("{{ $value | humanizeDuration }}", "N minutes").replace(
            "{{ $labels.state }}", "failed or gone"
        )
        rows.append(f"| `{one.name}` | {one.severity} | {summary} | {one.action} |")
    return "\n".join(["| alert | severity | it says | what to do |", "|---|---|---|---|", *rows])

"""Which queries lead and which catch up: the pure rule, by itself and over made-up runs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.coordinator.catching_up import (
    LAG,
    SERVES_NONE,
    SHRINKS_EVERY,
    CatchingUp,
    QueryProgress,
    allowance,
    beyond_allowance,
    catch_ups,
    leaders,
)

A, B, C = (PartitionId(OperatorId(name), 0) for name in "abc")
AHEAD, BEHIND = 16, 100


def at(**frontiers: int) -> dict[PartitionId, QueryProgress]:
    """Return queries of one priority that are so far."""
    return {PartitionId(OperatorId(name), 0): QueryProgress(BatchId(one), 1) for name, one in frontiers.items()}


def has_room(queries: dict[PartitionId, QueryProgress], caught: CatchingUp, logged: int) -> bool:
    """Whether another batch may be logged."""
    now = caught.at(queries, BatchId(logged))
    slowest = min(queries[one].frontier for one in leaders(queries, now))
    return logged - slowest < AHEAD and not beyond_allowance(queries, now, BatchId(logged), AHEAD, BEHIND)


def test_a_restored_query_does_not_hold_back_the_other() -> None:
    caught = CatchingUp.of(AHEAD)
    queries = at(a=600, b=0)
    assert caught.look(queries, BatchId(600)) == ([B], [])
    assert leaders(queries, caught.now) == {A}
    assert has_room(queries, caught, 600)
    assert caught.look(at(a=610, b=500), BatchId(610)) == ([], []), "it was reported"
    assert caught.look(at(a=700, b=700 - LAG // 2), BatchId(700)) == ([], [B])
    assert not caught.now


def test_hysteresis_keeps_a_query_from_changing_at_every_batch() -> None:
    caught = CatchingUp.of(AHEAD)
    caught.look(at(a=10, b=10 - LAG + 1), BatchId(10))
    assert not caught.now, "it is not behind enough"
    caught.look(at(a=10, b=10 - LAG), BatchId(10))
    assert set(caught.now) == {B}
    caught.look(at(a=10, b=10 - LAG + 1), BatchId(10))
    assert set(caught.now) == {B}, "it is nearer than where it began, and not level"


def test_where_all_are_slow_the_furthest_leads() -> None:
    queries = at(a=50, b=10, c=49)
    now = catch_ups(queries, {}, BatchId(66))
    assert leaders(queries, now) == {A, C}
    assert not has_room(queries, CatchingUp.of(AHEAD), 66)


def test_a_query_worth_less_never_leads_and_one_that_serves_none_only_alone() -> None:
    queries = at(a=10) | {B: QueryProgress(BatchId(60), 0), C: QueryProgress(BatchId(0), SERVES_NONE)}
    assert leaders(queries, {}) == {A}
    del queries[A], queries[B]
    assert leaders(queries, {}) == {C}
    assert leaders({}, {}) == set()


def test_at_the_bound_of_outboxes_those_that_catch_up_hold_sources_back_and_regenerated_ones_do_not() -> None:
    queries = at(a=100, b=50) | {C: QueryProgress(BatchId(5), 1, is_kept=False)}
    now = catch_ups(queries, {}, BatchId(100))
    assert leaders(queries, now, is_full=True) == {A, B}
    assert leaders(queries, now) == {A}


def test_a_slow_query_holds_sources_back_at_its_allowance() -> None:
    caught, logged = CatchingUp.of(AHEAD), 0
    while has_room(at(a=logged, b=0), caught, logged):
        logged += 1
        caught.look(at(a=logged, b=0), BatchId(logged))
    assert BEHIND - BEHIND // SHRINKS_EVERY <= logged <= BEHIND + LAG
    assert beyond_allowance(at(a=logged, b=0), caught.now, BatchId(logged), AHEAD, BEHIND) == [B]


def test_one_worth_less_keeps_its_allowance() -> None:
    queries = at(a=100_000) | {B: QueryProgress(BatchId(99_000), 0)}
    now = CatchingUp.of(AHEAD).now | catch_ups(queries, {}, BatchId(99_003))
    assert allowance(B, queries, now, BatchId(100_000), AHEAD, BEHIND) == 3 + BEHIND
    assert allowance(B, queries, {}, BatchId(100_000), AHEAD, BEHIND) == BEHIND


def test_pauses_after_failures_do_not_renew_the_allowance_of_a_slow_query() -> None:
    """With every retry it began anew: log and outboxes grew without bound, and the query was reported again."""
    caught, logged, done, absent = CatchingUp.of(AHEAD), 0, 0.0, 0
    said: list[PartitionId] = []
    for step in range(20_000):
        is_away = step % 500 == 0
        queries = at(a=logged) if is_away else at(a=logged, b=int(done))
        behind, level = caught.look(queries, BatchId(logged))
        said += behind
        assert not level
        if has_room(queries, caught, logged):
            logged += 1
            absent += is_away
        done += 0 if is_away else min(0.1, logged - done)
        assert logged - done <= BEHIND + absent + 1
    assert said == [B]
    assert caught.reported == (B,)


def test_an_outage_is_credited_and_the_rest_of_the_allowance_keeps_shrinking() -> None:
    caught = CatchingUp.of(AHEAD)
    caught.look(at(a=100, b=60), BatchId(100))
    caught.look(at(a=200, b=60), BatchId(200))
    caught.look(at(a=200), BatchId(200))
    assert not caught.now
    assert caught.reported == (), "it is lost, and does not catch up"
    caught.look(at(a=900), BatchId(900))
    queries = at(a=1000, b=60)
    since = caught.at(queries, BatchId(1000))
    assert allowance(B, queries, since, BatchId(1000), AHEAD, BEHIND) == 40 + 800 + BEHIND - 100 // SHRINKS_EVERY
    assert caught.look(queries, BatchId(1000)) == ([], [])
    assert (caught.now, caught.reported) == (since, (B,))
    caught.look(at(a=1000), BatchId(1000))
    assert caught.look(at(a=1000, b=1000), BatchId(1000)) == ([], [B]), "it came back level"


def test_of_a_partition_that_serves_none_nothing_is_remembered() -> None:
    """Its name comes back when its query is away again: what was then says nothing about how far it may be now."""
    caught = CatchingUp.of(AHEAD)
    alone = {C: QueryProgress(BatchId(90), SERVES_NONE)}
    caught.look(at(a=100) | alone, BatchId(100))
    assert C in caught.now
    caught.look(at(a=100), BatchId(100))
    caught.look(at(a=200) | alone, BatchId(200))
    assert caught.now[C].lag == 110


@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 60))
def test_the_log_is_bounded_and_queries_come_to_the_head(seed: int, most_ahead: int, most_behind: int) -> None:
    """Queries of changing speeds, losses and returns: whatever they do, bounds hold and nobody level is held up.

    In the end one query gets ten batches done for nine logged: it comes to the head.
    """
    draw = random.Random(seed)
    caught = CatchingUp.of(most_ahead)
    logged, frontiers, away = 0, {A: 0, B: 0, C: 0}, set[PartitionId]()
    speeds = dict.fromkeys(frontiers, 1.0)
    worst: dict[PartitionId, int] = {}
    left: dict[PartitionId, int] = {}

    def turn(feed: int) -> bool:
        nonlocal logged
        queries = {p: QueryProgress(BatchId(one), 1) for p, one in frontiers.items() if p not in away}
        caught.look(queries, BatchId(logged))
        held = True
        for _ in range(feed):
            now = caught.at(queries, BatchId(logged))
            led = leaders(queries, now)
            assert led or not queries
            waited_for = beyond_allowance(queries, now, BatchId(logged), most_ahead, most_behind)
            assert not led.intersection(waited_for)
            if not queries or waited_for or logged - min(queries[p].frontier for p in led) >= most_ahead:
                break
            held = False
            logged += 1
            assert logged - max(one.frontier for one in queries.values()) <= most_ahead
            for p, one in queries.items():
                if p in led:  # it begins to catch up from here; where it still does, it keeps its allowance
                    worst[p] = max(most_ahead, logged - one.frontier, worst.get(p, 0) if p in now else 0)
                assert logged - one.frontier <= max(most_ahead, worst.get(p, 0)) + most_behind + caught.lag
        return held

    for _ in range(60):
        p = draw.choice([A, B, C])
        match draw.randrange(4):
            case 0:
                away.add(p)
                left.setdefault(p, logged)
            case 1 if p in away:
                away.discard(p)
                frontiers[p] -= draw.choice((0, 0, min(10, frontiers[p])))
                worst[p] = max(worst.get(p, 0) + logged - left.pop(p), logged - frontiers[p])
            case 2:
                speeds[p] = draw.choice((0.0, 0.3, 1.0))
        turn(draw.randrange(6))
        for p in frontiers.keys() - away:
            done = round((logged - frontiers[p]) * speeds[p] * draw.random())
            frontiers[p] += min(done, 4)
    away.clear()
    worst = {p: one + logged - left.get(p, logged) for p, one in worst.items()}
    frontiers = {A: logged, B: logged, C: max(0, logged - 500)}
    worst |= {C: max(worst.get(C, 0), logged - frontiers[C])}
    began, allowed = logged, SHRINKS_EVERY * (worst[C] + most_behind + most_ahead + 10)
    while logged - frontiers[C] > most_ahead and logged - began <= allowed:
        held = turn(1)  # others take almost all the cores while there is something to log
        frontiers[A] = frontiers[B] = logged
        frontiers[C] += held or draw.random() < 0.1
    assert logged - frontiers[C] <= most_ahead, f"it was left behind after {logged - began} batches"


@pytest.mark.parametrize("most_ahead", [1, 2])
def test_few_batches_ahead_mean_a_small_lag(most_ahead: int) -> None:
    caught = CatchingUp.of(most_ahead)
    caught.look(at(a=5, b=5 - most_ahead), BatchId(5))
    assert set(caught.now) == {B}, "sources would wait for it"

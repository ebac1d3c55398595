"""The model of fragments, the choice of m and k, and shares for peers that differ."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput, NoPlan
from holdfast.planning.fragments.choice import (
    FragmentRequest,
    Preference,
    all_codings,
    allowed_plans,
    choose_coding,
    evaluate,
    file_bandwidth_limit,
    file_seconds,
    leaf_set_size,
    loss_probability,
    problems_of,
    recovery_seconds,
    success_probability,
    upload_bytes,
)
from holdfast.planning.fragments.code_rates import CodeRate, CodeRates, MeasuredRate
from holdfast.planning.fragments.peer_shares import (
    Peer,
    SharesPlan,
    SharesRequest,
    assign_fragments,
    domain_of,
    loss_of_shares,
    plan_shares,
    share_problems,
)

CONSTANT = CodeRates.constant(65e6)


def request(**changes: object) -> FragmentRequest:
    values: dict[str, object] = {
        "state_bytes": 128e6,
        "peers": 40,
        "node_failure": 0.01,
        "reliability": 0.9999,
        "bandwidth": 9e6,
        "rates": CONSTANT,
    }
    return FragmentRequest(**{**values, **changes})  # type: ignore[arg-type]


def test_success_is_the_binomial_sum_in_exact_arithmetic() -> None:
    for data, parity, p in [(5, 3, "0.01"), (10, 10, "0.1"), (15, 17, "0.07"), (1, 1, "0.5"), (31, 1, "0.04")]:
        n, share = data + parity, Fraction(p)
        exact = sum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(parity + 1))
        assert success_probability(Coding(data, parity), float(p)) == pytest.approx(float(exact), rel=1e-14)
        assert loss_probability(Coding(data, parity), float(p)) == pytest.approx(float(1 - exact), rel=1e-12)


def test_paper_figures_of_success() -> None:
    # Fig. 7: with m = 10, n = 10 and p = 0.1 only 0.9^10 = 0.35 remain; a few more blocks bring it near one.
    assert success_probability(Coding(10, 0), 0.1) == pytest.approx(0.9**10)
    assert success_probability(Coding(10, 5), 0.1) > 0.99


def test_equations_one_two_and_four_agree() -> None:
    limit = file_bandwidth_limit(9e6, 65e6)
    assert recovery_seconds(128e6, 9e6, 65e6) == pytest.approx(file_seconds(128e6, limit))
    below = evaluate(request(file_bandwidth=limit * 0.99), Coding(10, 4))
    above = evaluate(request(file_bandwidth=limit * 1.01), Coding(10, 4))
    assert (below.beats_file, above.beats_file) == (True, False)
    assert below.recovery_seconds == pytest.approx(128e6 / 9e6 + 128e6 / 65e6)
    assert below.file_bandwidth_limit == pytest.approx(limit)
    assert evaluate(request(), Coding(10, 4)).beats_file is None


def test_upload_of_section_5_4_rises_with_m_and_falls_with_k_at_a_given_fragment() -> None:
    by_data = [upload_bytes(Coding(m, 10), 1.0) for m in range(11, 21)]
    by_parity = [upload_bytes(Coding(10, k), 1.0) for k in range(11, 21)]
    assert by_data == sorted(by_data)
    assert by_parity == sorted(by_parity, reverse=True)
    # At a given state each of the n - 1 others uploads its equal part.
    assert evaluate(request(), Coding(10, 4)).upload_bytes == pytest.approx(128e6 / 13)


@pytest.mark.parametrize(("total", "size"), [(2, 24), (22, 24), (23, 24), (24, 26), (30, 32), (31, 32), (32, 34)])
def test_leaf_set_is_even_and_larger_than_n(total: int, size: int) -> None:
    assert leaf_set_size(Coding(1, total - 1)) == size


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    peers=st.integers(2, 40),
    p=st.floats(0, 0.5),
    nines=st.floats(0, 12),
    prefer=st.sampled_from(list(Preference)),
    overhead=st.none() | st.floats(0.05, 4),
    bandwidth=st.floats(1e5, 1e10),
)
def test_the_choice_is_allowed_and_nothing_allowed_is_better(
    peers: int, p: float, nines: float, prefer: Preference, overhead: float | None, bandwidth: float
) -> None:
    rates = CodeRates(
        {Coding(4, 2): CodeRate(2e9, 1e9), Coding(10, 20): CodeRate(9e8, 5e8), Coding(20, 2): CodeRate(2e9, 8e8)}
    )
    asked = request(
        peers=peers,
        node_failure=p,
        reliability=1 - 10**-nines,
        prefer=prefer,
        max_overhead=overhead,
        bandwidth=bandwidth,
        rates=rates,
    )
    every = [evaluate(asked, coding) for coding in all_codings(peers)]
    allowed = [plan for plan in every if not problems_of(asked, plan)]
    if not allowed:
        with pytest.raises(NoPlan):
            choose_coding(asked)
        return
    chosen = choose_coding(asked)
    assert not problems_of(asked, chosen)
    assert chosen.coding.total <= min(32, peers)
    usual = [plan for plan in allowed if plan.storage_overhead <= 1]
    if prefer is Preference.STORAGE:
        assert chosen.storage_overhead == min(plan.storage_overhead for plan in allowed)
        return
    pool = usual if overhead is None and usual else allowed
    key = "loss" if prefer is Preference.RELIABILITY else "spread_seconds"
    assert getattr(chosen, key) == min(getattr(plan, key) for plan in pool)


def test_no_plan_says_why_and_reliability_one_needs_nodes_that_never_fail() -> None:
    with pytest.raises(NoPlan, match=r"at most 3 fragments reaches a reliability of 0\.9999.*the best, 1\+2"):
        choose_coding(request(peers=3, node_failure=0.1))
    with pytest.raises(NoPlan):
        choose_coding(request(reliability=1.0, node_failure=1e-9))
    assert choose_coding(request(reliability=1.0, node_failure=0.0)).success == 1
    with pytest.raises(NoPlan, match="storage overhead"):
        choose_coding(request(peers=4, max_overhead=0.1))


def test_beyond_twice_the_state_only_where_nothing_else_is_reliable() -> None:
    plan = choose_coding(request(peers=3, node_failure=0.1, reliability=0.999))
    assert plan.coding == Coding(1, 2)
    assert choose_coding(request(prefer=Preference.RELIABILITY)).coding == Coding(16, 16)


def test_slow_recomputing_makes_the_fastest_coding_smaller() -> None:
    steep = CodeRates(
        {Coding(2, 2): CodeRate(1e9, 1e9), Coding(16, 2): CodeRate(1e8, 1e8), Coding(16, 16): CodeRate(2e7, 2e7)}
    )
    by_bandwidth = [choose_coding(request(bandwidth=b, rates=steep)).coding.total for b in (1e4, 1e7, 1e10)]
    assert by_bandwidth == sorted(by_bandwidth, reverse=True)
    assert by_bandwidth[0] > by_bandwidth[-1]


def test_bad_requests_are_refused() -> None:
    for name, value in [
        ("state_bytes", 0),
        ("bandwidth", -1),
        ("peers", 1),
        ("node_failure", 1),
        ("reliability", 1.5),
        ("max_overhead", 0),
    ]:
        with pytest.raises(BadInput, match=name):
            request(**{name: value})


def test_rates_are_as_measured_and_fitted_between() -> None:
    def true(coding: Coding) -> float:
        return 1 / (1e-10 + 3e-11 * coding.parity + 2e-12 * coding.data)

    measured = [Coding(1, 1), Coding(4, 2), Coding(10, 4), Coding(10, 20)]
    rates = CodeRates.from_measurements(MeasuredRate(c, CodeRate(true(c), true(c) / 2)) for c in measured)
    for coding in all_codings(32):
        assert rates.of(coding).encode == pytest.approx(true(coding), rel=1e-6)
        assert rates.of(coding).decode == pytest.approx(true(coding) / 2, rel=1e-6)
    assert CodeRates.constant(5.0).of(Coding(7, 3)) == CodeRate(5.0, 5.0)
    busier = rates.adjusted(0.5, 0.25, {Coding(4, 2): 0.1})
    assert busier.of(Coding(4, 2)).decode == pytest.approx(true(Coding(4, 2)) / 2 * 0.25 * 0.1)
    # What one coding taught is believed of its like.
    assert busier.of(Coding(5, 2)).encode == pytest.approx(true(Coding(5, 2)) * 0.5 * 0.1)


# -- shares ------------------------------------------------------------------------------------------------------------


def brute_force_loss(peers: list[Peer], shares: dict[str, int], coding: Coding, domain_failure: float) -> float:
    domains = sorted({peer.domain for peer in peers if peer.domain})
    total = 0.0
    for up in itertools.product([True, False], repeat=len(peers)):
        for domains_up in itertools.product([True, False], repeat=len(domains)):
            chance = math.prod(1 - x.failure if u else x.failure for x, u in zip(peers, up, strict=True))
            chance *= math.prod(1 - domain_failure if u else domain_failure for u in domains_up)
            standing = dict(zip(domains, domains_up, strict=True))
            alive = sum(
                shares.get(x.id, 0)
                for x, u in zip(peers, up, strict=True)
                if u and (not x.domain or standing[x.domain])
            )
            total += chance if alive < coding.data else 0.0
    return total


peers_strategy = st.lists(
    st.tuples(st.floats(1, 100), st.floats(0, 3), st.floats(0, 0.4), st.sampled_from([None, "a", "b", "c"])),
    min_size=2,
    max_size=6,
).map(lambda rows: [Peer(f"p{i}", b, s * 1000, f, d) for i, (b, s, f, d) in enumerate(rows)])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    peers=peers_strategy, coding=st.sampled_from([Coding(1, 1), Coding(2, 1), Coding(2, 2), Coding(3, 2), Coding(2, 4)])
)
def test_greedy_shares_have_the_least_makespan_and_the_loss_is_exact(peers: list[Peer], coding: Coding) -> None:
    fragment = 500.0

    def ends(counts: tuple[int, ...]) -> float | None:
        plan = {x.id: c for x, c in zip(peers, counts, strict=True) if c}
        by_domain: dict[str, int] = {}
        for x, c in zip(peers, counts, strict=True):
            by_domain[domain_of(x)] = by_domain.get(domain_of(x), 0) + c
            if c * fragment > x.storage:
                return None
        if sum(plan.values()) != coding.total or max(by_domain.values()) > coding.parity:
            return None
        return max(c * fragment / x.bandwidth for x, c in zip(peers, counts, strict=True))

    possible = [
        end
        for counts in itertools.product(range(coding.parity + 1), repeat=len(peers))
        if (end := ends(counts)) is not None
    ]
    shares = assign_fragments(peers, coding, fragment)
    if shares is None:
        assert not possible
        return
    assert ends(tuple(shares.get(x.id, 0) for x in peers)) == pytest.approx(min(possible))
    exact = brute_force_loss(peers, shares, coding, 0.03)
    assert loss_of_shares(peers, shares, coding, 0.03) == pytest.approx(exact, abs=1e-12)


def shares_request(peers: list[Peer], **changes: object) -> SharesRequest:
    values: dict[str, object] = {
        "state_bytes": 64e6,
        "peers": tuple(peers),
        "reliability": 0.999,
        "bandwidth": 1e9,
        "rates": CodeRates.constant(1e9),
    }
    return SharesRequest(**{**values, **changes})  # type: ignore[arg-type]


def test_fast_peers_get_more_full_ones_none_and_no_rack_more_than_k() -> None:
    peers = [Peer(f"fast{i}", 100e6, domain="r1") for i in range(3)]
    peers += [Peer(f"slow{i}", 10e6, domain=f"r{2 + i % 3}") for i in range(12)]
    peers += [Peer("full", 100e6, storage=0, domain="r9")]
    asked = shares_request(peers)
    plan = plan_shares(asked)
    assert not share_problems(asked, plan)
    assert "full" not in plan.shares
    fast = [plan.shares.get(f"fast{i}", 0) for i in range(3)]
    slow = [plan.shares.get(f"slow{i}", 0) for i in range(12)]
    assert min(fast) >= max(slow)
    assert sum(fast) <= plan.coding.parity


def test_equal_peers_get_equal_shares_and_equation_three_holds() -> None:
    peers = [Peer(f"p{i}", 50e6, failure=0.02) for i in range(40)]
    plan = plan_shares(shares_request(peers, prefer=Preference.STORAGE))
    assert set(plan.shares.values()) == {1}
    assert plan.loss == pytest.approx(loss_probability(plan.coding, 0.02), rel=1e-9)


def test_two_racks_cannot_lose_one_with_less_than_a_copy() -> None:
    peers = [Peer(f"p{i}", 50e6, domain=f"r{i % 2}") for i in range(10)]
    plan = plan_shares(shares_request(peers, prefer=Preference.STORAGE, reliability=0.99))
    assert plan.coding.parity >= plan.coding.data
    with pytest.raises(NoPlan, match="no domain may hold more than k"):
        plan_shares(shares_request([Peer("a", 1e6, domain="x"), Peer("b", 1e6, domain="x")]))


def test_wrong_shares_are_found() -> None:
    peers = [Peer(f"p{i}", 50e6, storage=10e6, domain="x") for i in range(4)]
    bad = SharesPlan(Coding(2, 2), {"p0": 3, "nobody": 1}, 32e6, 0.5, 0.5, 1.0, 1, 1, 1)
    found = " / ".join(share_problems(shares_request(peers, max_overhead=0.5), bad))
    for word in ("no room", "is not a peer", "over k", "below", "times the state"):
        assert word in found


def test_allowed_plans_are_sorted() -> None:
    plans = allowed_plans(request(prefer=Preference.STORAGE))
    overheads = [plan.storage_overhead for plan in plans]
    assert overheads == sorted(overheads)


def test_a_restore_has_lost_a_holder_already() -> None:
    """Eq. 3, given that the node whose state is restored held one of the fragments."""
    for coding in (Coding(2, 2), Coding(3, 3), Coding(12, 4)):
        one_less = Coding(coding.data, coding.parity - 1)
        assert loss_probability(coding, 0.05, gone=1) == pytest.approx(loss_probability(one_less, 0.05))
        assert loss_probability(coding, 0.05, gone=0) == loss_probability(coding, 0.05)
    assert loss_probability(Coding(3, 1), 0.05, gone=2) == 1.0


def test_equal_weights_give_the_formula_of_the_paper() -> None:
    rates = CodeRates({Coding(4, 2): CodeRate(1e9, 1e9)})
    plain = FragmentRequest(6e6, 6, 0.01, 0.99, 1e8, rates, peer_bandwidth=1e7)
    for coding in (Coding(4, 2), Coding(3, 3), Coding(1, 1)):
        weighed = evaluate(replace(plain, weights=(1.0,) * 6), coding)
        assert weighed.spread_seconds == pytest.approx(evaluate(plain, coding).spread_seconds)


def test_slow_peers_make_a_restore_longer_and_never_give_more_than_they_hold() -> None:
    rates = CodeRates({Coding(4, 2): CodeRate(1e9, 1e9)})
    request = FragmentRequest(6e6, 6, 0.01, 0.99, 1e9, rates, peer_bandwidth=1e7)
    even = evaluate(request, Coding(4, 2))
    slow = evaluate(replace(request, weights=(1.0, 1.0, 1.0, 1.0, 0.1, 0.1)), Coding(4, 2))
    assert slow.recovery_seconds > even.recovery_seconds
    # Three fast holders are left, each with 1.5 MB: 4.5 MB in 0.15 s, then the two slow ones give the rest alone.
    assert slow.retrieval_seconds == pytest.approx(0.15 + (6e6 - 4.5e6 - 2 * 0.15 * 1e6) / 2e6)


@pytest.mark.parametrize("wrong", [{"gone": -1}, {"weights": (1.0, 0.0)}])
def test_weights_and_losses_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    rates = CodeRates({Coding(4, 2): CodeRate(1e9, 1e9)})
    with pytest.raises(BadInput):
        FragmentRequest(6e6, 6, 0.01, 0.99, 1e9, rates, **wrong)  # type: ignore[arg-type]

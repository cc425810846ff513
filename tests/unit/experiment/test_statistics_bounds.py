"""Each bound and rule by itself: what it says at its edges, and that intervals and p-values agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.experiment.comparing import is_base_of_shares
from appliance.experiment.samples import steps_of
from appliance.experiment.stats.contrast import Contrast, absolute, logarithmic
from appliance.experiment.stats.estimates import Estimate, raw_estimate
from appliance.experiment.stats.guardrail import Guard, guard
from appliance.experiment.stats.looks import Looks, interval, p_value, reach
from appliance.experiment.stats.moments import Moments
from appliance.experiment.stats.multiplicity import discovery_level
from appliance.experiment.stats.planner import Planner
from appliance.experiment.stats.quantile import quantile_estimate
from appliance.experiment.stats.sample_ratio import sample_ratio
from appliance.experiment.stats.sequential import bound
from appliance.experiment.stats.switchback import neighbours, period_values, switchback
from appliance.experiment.switching import Period, paired_periods, turns_of

effects = st.floats(-5, 5)


@given(
    effect=effects,
    variance=st.floats(1e-3, 10),
    units=st.integers(10, 10**6),
    planned=st.integers(10, 10**6),
    alpha=st.sampled_from([0.2, 0.05, 0.01, 0.001]),
    looks=st.sampled_from(list(Looks)),
)
def test_an_interval_is_without_zero_where_its_p_value_is_below_the_level(
    effect: float, variance: float, units: int, planned: int, alpha: float, looks: Looks
) -> None:
    contrast = Contrast(
        effect=np.asarray(float(effect)),
        variance=np.asarray(float(variance)),
        dof=np.asarray(float(units - 1)),
        units=np.asarray(float(units)),
    )
    low, high = interval(contrast, looks, alpha, planned)
    p = p_value(contrast, looks, planned)
    assert 0 <= p <= 1
    if abs(p - alpha) > 1e-9:
        assert (low > 0 or high < 0) == (p < alpha)


def test_the_running_bound_is_narrowest_about_where_it_was_planned() -> None:
    units = np.array([1e2, 1e3, 1e4, 1e5, 1e6])
    widths = bound(units, 0.05, 1e4) / np.sqrt(units)
    assert (np.diff(widths) < 0).all()
    # Beside the narrowest bound at each number of users, planned for it: the loss elsewhere.
    best = np.array([float(bound(np.asarray(float(n)), 0.05, n)) for n in units])
    assert best == pytest.approx(reach(Looks.ANY, 0.05))
    assert bound(units, 0.05, 1e4).argmin() == 2


def test_known_splits_alarm_or_do_not() -> None:
    half = [0.5, 0.5]
    assert sample_ratio([([5120, 4880], half)]).p_value == pytest.approx(0.0164, abs=1e-4)
    assert not sample_ratio([([5120, 4880], half)]).alarms
    assert sample_ratio([([5200, 4800], half)]).p_value == pytest.approx(6.3e-5, abs=1e-6)
    assert sample_ratio([([5200, 4800], half)]).alarms
    assert sample_ratio([([9000, 500, 480], [0.9, 0.05, 0.05])]).p_value > 0.5
    assert not sample_ratio([([0, 0], half)]).alarms
    assert sample_ratio([([30, 0], half)]).alarms


def test_a_split_is_held_against_the_arms_that_were_open_at_the_time() -> None:
    shares = [0.4, 0.3, 0.3]
    first, second = ([4000, 3000, 3000], shares), ([2000, 0, 1500], [4 / 7, 0, 3 / 7])
    fair = sample_ratio([first, second, ([500, 0, 0], [1.0, 0, 0])])
    assert fair.counts == (6500, 3000, 4500)
    assert fair.expected == pytest.approx(fair.counts)
    assert fair.p_value == 1
    alone = ([100, 0], [1.0, 0.0])
    one = sample_ratio([([5120, 4880], [0.5, 0.5]), alone])
    assert one.p_value == pytest.approx(0.0164, abs=1e-4), "one arm alone is no split"
    # What is wrong in one span is not made up for by the other.
    assert sample_ratio([([5200, 4800], [0.5, 0.5]), ([4800, 5200], [0.5, 0.5])]).alarms


@pytest.mark.parametrize(
    ("low", "high", "up_is_better", "told"),
    [
        (-0.02, 0.04, False, Guard.SAFE),
        (-0.02, 0.07, False, Guard.OPEN),
        (0.01, 0.09, False, Guard.HARMED),
        (0.06, 0.09, False, Guard.BREACHED),
        (-0.04, 0.2, True, Guard.SAFE),
        (-0.09, 0.02, True, Guard.OPEN),
        (-0.09, -0.01, True, Guard.HARMED),
        (-0.09, -0.06, True, Guard.BREACHED),
    ],
)
def test_a_guardrail_stands_as_its_interval_says(
    low: float, high: float, up_is_better: bool, told: Guard
) -> None:
    assert guard(low, high, 0.05, up_is_better=up_is_better) is told


def test_a_level_of_discovery_is_one_metrics_share_when_nothing_is_found() -> None:
    assert discovery_level([0.5, 0.03, 0.9], 0.05) == pytest.approx(0.05 / 3)
    assert discovery_level([0.001, 0.03, 0.9], 0.05) == pytest.approx(0.05 / 3 * 2)
    assert discovery_level([], 0.05) == pytest.approx(0.05)


def test_the_planner_turns_round() -> None:
    plan = Planner(relative_variance=2.5, looks=Looks.ANY, shares=(0.5, 0.25), power=0.9)
    users = plan.users_needed(0.05)
    assert plan.minimum_effect(users) == pytest.approx(0.05)
    assert plan.power_at(0.05, users) == pytest.approx(0.9)
    uneven = replace(plan, shares=(0.9, 0.1)), replace(plan, shares=(0.5, 0.5))
    ratio = uneven[0].users_needed(0.05) / uneven[1].users_needed(0.05)
    assert ratio == pytest.approx((1 / 0.9 + 1 / 0.1) / 4)
    # Two arms of one user each way, 5 % and 80 %: the textbook's 15.7 variances over the effect squared.
    textbook = Planner(relative_variance=1.0, looks=Looks.PLANNED).users_needed(np.expm1(0.1)) / 2
    assert textbook == pytest.approx(2 * 7.849 / 0.01, rel=1e-3)


def test_times_of_a_few_milliseconds_are_compared_as_what_they_are() -> None:
    treated = np.arange(12) % 2 == 1
    for before, after, change in ((5, 10, 1.0), (400, 500, 0.25), (0, 1, 1.0)):
        noise = np.tile([1.0, 1.0, 1.01, 1.01], 3)
        told = turns_of(
            "t",
            treated,
            np.arange(12, dtype=np.int32),
            steps_of(np.where(treated, after, before) * noise),
            np.full(12, 30, dtype=np.int64),
            0.5,
        )
        assert told.effect is not None
        assert told.effect.change == pytest.approx(change, rel=0.05)


def test_a_quantile_lies_where_its_share_of_observations_does() -> None:
    rng = np.random.default_rng(2)
    value = rng.lognormal(0, 1, 20_000)
    user = rng.integers(0, 900, 20_000)
    once = np.ones(20_000, dtype=np.int64)
    for share in (0.1, 0.5, 0.95):
        told = quantile_estimate(user, value, once, share)
        assert told is not None
        assert told.value == pytest.approx(np.quantile(value, share), rel=1e-3)
        # Independent observations: the textbook's error of a quantile.
        at = np.log(told.value)
        density = np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi) / told.value
        error = np.sqrt(share * (1 - share) / 20_000) / density
        assert np.sqrt(told.variance / told.count) == pytest.approx(error, rel=0.1)
        # The same observations, counted up: twice as many of the same users tell no more.
        twice = quantile_estimate(user, value, 2 * once, share)
        assert twice is not None
        assert twice.variance == pytest.approx(told.variance, rel=0.02)


def test_a_quantile_too_far_out_for_its_users_is_none() -> None:
    user = np.arange(30)
    value = np.linspace(1, 2, 30)
    once = np.ones(30, dtype=np.int64)
    assert quantile_estimate(user, value, once, 0.5) is not None
    assert quantile_estimate(user, value, once, 0.95) is None
    assert quantile_estimate(user, np.ones(30), once, 0.5) is None


def test_a_switchback_pairs_neighbours_and_leaves_out_what_is_alone() -> None:
    tide = np.array([1.0, 1.0, 4.0, 4.0, 2.0, 2.0, 7.0])
    block = np.array([0, 0, 1, 1, 2, 2, 3], dtype=np.int32)
    treated = np.array([False, True, True, False, False, True, True])
    slower = np.where(treated, [1, 1.1, 1.2, 1, 1, 1.15, 1.1], 1.0)
    told = switchback(block, treated, tide * slower)
    assert told is not None
    assert told.units == 3
    assert told.effect == pytest.approx(np.log([1.1, 1.2, 1.15]).mean())
    assert switchback(block[:2], treated[:2], tide[:2]) is None
    assert switchback(block[:0], treated[:0], tide[:0]) is None


def test_values_of_periods_are_quantiles_of_what_was_counted_in_them() -> None:
    period = np.array([4, 1, 1, 1, 4], dtype=np.int32)
    value = np.array([9.0, 3.0, 1.0, 2.0, 8.0])
    count = np.array([1, 1, 1, 8, 3], dtype=np.int64)
    periods, values = period_values(period, value, count, 0.5)
    assert periods.tolist() == [1, 4]
    assert values.tolist() == [2.0, 8.0]


def test_neighbours_of_different_arms_are_pairs_unless_another_version_lies_between() -> None:
    assert neighbours([0, 1, 1, 0, 0, 0, 1, 1]) == [(0, 1), (2, 3), (5, 6)]
    assert neighbours([0, None, 1, 0, None]) == [(2, 3)]
    assert neighbours([0]) == []
    assert neighbours([]) == []


def test_periods_are_compared_side_by_side_and_never_across_what_lay_between() -> None:
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    hours = [
        ("a", -700),
        ("b", 0),
        ("c", 3),
        ("a", 4),
        ("b", 24),
        ("a", 24.1),
        ("a", 26),
        ("b", 28),
    ]
    starts = [noon + timedelta(hours=hour) for _, hour in hours]
    served = [
        Period(version=version, starts=begins, ends=ends)
        for (version, _), begins, ends in zip(
            hours, starts, [*starts[1:], noon + timedelta(hours=29)], strict=True
        )
    ]
    pairs = paired_periods(served, ("a", "b"), timedelta(minutes=10))
    told = [
        tuple((one.version, one.starts - noon, one.ends - noon) for one in pair) for pair in pairs
    ]
    minutes = [
        [("a", -170, 0), ("b", 10, 180)],  # not the month before
        # (a, b) at 24 h: b had no time of its own after its first minutes; c lay between b and a.
        [("a", 1630, 1680), ("b", 1690, 1740)],
    ]
    assert told == [
        tuple(
            (version, timedelta(minutes=one), timedelta(minutes=other))
            for version, one, other in pair
        )
        for pair in minutes
    ]


def test_a_pair_without_a_reply_in_one_period_is_left_out_and_no_other_takes_its_place() -> None:
    treated = np.arange(12) % 2 == 1
    kept = np.array([period for period in range(12) if period not in (3, 4)], dtype=np.int32)
    # Between the two that were left alone lies a change that is none of the second version's.
    values = np.where(kept < 4, 400.0, 4_000.0) * np.where(treated[kept], 1.25, 1.0)
    noise = np.array([1, 1, 1.01, 1.01, 1, 1, 1.01, 1, 1, 1.01])
    told = turns_of(
        "t", treated, kept, steps_of(values * noise), np.full(10, 30, dtype=np.int64), 0.5
    )
    assert told.blocks == 4
    assert told.effect is not None
    assert told.effect.change == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("scale", [absolute, logarithmic])
def test_users_who_are_all_alike_differ_by_no_rounding(
    scale: Callable[[Estimate, Estimate], Contrast],
) -> None:
    """Sums that were rounded differently leave a variance just below zero, and a last digit."""

    def arm(value: float, variance: float) -> Estimate:
        cov = np.array([[variance, 0.0], [0.0, 0.0]])
        return raw_estimate(Moments(count=np.array(900.0), mean=np.array([value, 1.0]), cov=cov))

    control, treatment = arm(3.1, -1e-17), arm(3.1 + 4e-16 * 3, -3e-18)
    found = scale(control, treatment)
    assert (float(found.effect), float(found.variance)) == (0.0, 0.0)
    assert not np.isnan(found.interval(0.05)).any()
    apart = scale(control, replace(treatment, value=np.array(3.2)))
    low, high = apart.interval(0.05)
    assert low > 0
    assert high > 0
    assert is_base_of_shares(control)

"""The short form of `bench/experiments_aa.py`: experiments in which the truth is known."""

from __future__ import annotations

import os

import pytest

from appliance.experiment.stats.looks import Looks
from appliance.experiment.stats.planner import Planner
from bench import experiments_aa as bench
from bench.experiment_population import Population, population

RUNS = 2_000 if "APPLIANCE_TESTS_NIGHTLY" in os.environ else 500
NOISE = 2.6 * (0.05 * 0.95 / RUNS) ** 0.5
"""What chance adds to or takes from a share of 5 %, but in one of a hundred seeds."""


@pytest.fixture(scope="module")
def people() -> Population:
    return population(bench.SEED)


def test_only_users_as_units_and_bounds_for_every_look_keep_false_findings_rare(
    people: Population,
) -> None:
    rates = bench.false_positives(people, RUNS)
    assert 0.05 - NOISE <= rates.planned <= 0.05 + NOISE
    assert rates.daily_always_valid <= 0.05
    # What the product must not do, in the same experiments.
    assert rates.messages_as_units > 0.5
    assert rates.daily_naive > 0.2


@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("effect", bench.EFFECTS)
def test_a_planted_effect_is_found_as_often_as_the_planner_said(
    people: Population, effect: float, has_past: bool
) -> None:
    found = bench.power(people, RUNS, effect, has_past=has_past)
    assert found.planned == pytest.approx(0.8, abs=0.005)
    assert found.found == pytest.approx(found.planned, abs=0.03 if RUNS == bench.RUNS else 0.055)


@pytest.mark.parametrize(
    ("effect", "users_planned"), [(0.02, None), (0.02, 2_000), (0.05, None), (0.10, None)]
)
def test_by_bounds_for_any_look_an_effect_is_found_as_often_as_the_planner_said(
    people: Population, effect: float, users_planned: int | None
) -> None:
    # Planned for far fewer users than it takes, the bounds are wider there, and the planner knows.
    found = bench.power(
        people, RUNS, effect, has_past=True, looks=Looks.ANY, users_planned=users_planned
    )
    assert found.planned == pytest.approx(0.8, abs=0.005)
    assert found.found == pytest.approx(found.planned, abs=0.03 if RUNS == bench.RUNS else 0.055)


def test_looking_daily_finds_an_effect_at_least_as_often_as_the_last_look(
    people: Population,
) -> None:
    found = bench.power_daily(people, RUNS // 2, 0.10)
    assert found.planned == pytest.approx(0.8, abs=0.005)
    assert found.planned - 0.055 < found.found < found.planned + 0.1


def test_the_past_cuts_the_variance_as_its_correlation_says(people: Population) -> None:
    cut = bench.past_cut(people, RUNS)
    assert cut.theory < 0.7
    assert cut.measured == pytest.approx(cut.theory, rel=4 / RUNS**0.5)


@pytest.mark.parametrize("quantile", [0.5, 0.95])
def test_quantiles_of_messages_have_the_users_spread(people: Population, quantile: float) -> None:
    runs = RUNS if RUNS == bench.RUNS else 200
    rate = bench.false_quantiles(people, runs, quantile)
    noise = 2.6 * (0.05 * 0.95 / runs) ** 0.5
    assert 0.05 - noise <= rate <= 0.05 + noise


def test_switchbacks_are_judged_by_blocks() -> None:
    rates = bench.false_switchbacks(RUNS)
    assert 0.05 - NOISE <= rates.blocks <= 0.05 + NOISE
    assert rates.messages > 0.2


def test_a_fair_split_looked_at_daily_hardly_ever_alarms() -> None:
    assert bench.false_ratio_alarms(RUNS) <= 0.025


def test_looking_at_any_time_costs_about_twice_the_users() -> None:
    planned = Planner(relative_variance=1.0, looks=Looks.PLANNED)
    any_time = Planner(relative_variance=1.0, looks=Looks.ANY)
    assert 1.6 < any_time.users_needed(0.05) / planned.users_needed(0.05) < 2.1

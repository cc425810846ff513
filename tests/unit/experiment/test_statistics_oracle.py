"""Ratios, intervals, the past and corrections against tea-tasting's on the same users, to 1e-6."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tea_tasting as tt

from appliance.experiment.analysis import analyse
from appliance.experiment.stats.contrast import absolute, logarithmic
from appliance.experiment.stats.estimates import estimates, raw_estimate
from appliance.experiment.stats.looks import Looks
from appliance.experiment.stats.moments import Floats, Moments
from appliance.experiment.stats.multiplicity import discovery_level, family_level
from tests.unit.experiment.measurements import PLAN, measured

USERS = 1_500


@pytest.fixture(scope="module")
def rows() -> Floats:
    """(users, 5): arm, numerator, denominator, and both of the time before."""
    rng = np.random.default_rng(9)
    messages = rng.poisson(rng.gamma(1.0, 8.0, USERS)) + 1
    before = rng.poisson(rng.gamma(1.0, 8.0, USERS)) + 1
    level = rng.normal(0, 0.5, USERS)
    arm = rng.random(USERS) < 0.4
    seconds = messages * np.exp(level + rng.normal(0, 0.3, USERS) + 0.08 * arm)
    seconds_before = before * np.exp(level + rng.normal(0, 0.3, USERS))
    return np.stack([arm, seconds, messages, seconds_before, before], axis=1)


def oracle(rows: Floats, metric: Any) -> Any:
    names = ["variant", "n", "d", "n0", "d0"]
    table = pa.table(
        {name: rows[:, place] for place, name in enumerate(names[: rows.shape[1]])}
        | {"variant": rows[:, 0].astype(int)}
    )
    return tt.Experiment(m=metric).analyze(table)["m"]


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("is_ratio", [False, True])
def test_estimates_and_intervals_are_the_oracles(
    rows: Floats, is_ratio: bool, has_past: bool, alpha: float
) -> None:
    options = {"confidence_level": 1 - alpha, "equal_var": False, "use_t": True}
    if is_ratio:
        past = {"numer_covariate": "n0", "denom_covariate": "d0"} if has_past else {}
        told = oracle(rows, tt.RatioOfMeans(numer="n", denom="d", **past, **options))
    else:
        past = {"covariate": "n0"} if has_past else {}
        told = oracle(rows, tt.Mean("n", **past, **options))
    figures = rows[:, 1 : 5 if has_past else 3].copy()
    if not is_ratio:
        figures[:, 1::2] = 1.0
    arms = [Moments.of(figures[rows[:, 0] == arm]) for arm in (0, 1)]
    control, treatment = estimates(*arms)
    difference, ratio = absolute(control, treatment), logarithmic(control, treatment)
    low, high = difference.interval(alpha)
    relative_low, relative_high = np.expm1(ratio.interval(alpha))
    ours = {
        "control": control.value,
        "treatment": treatment.value,
        "effect_size": difference.effect,
        "effect_size_ci_lower": low,
        "effect_size_ci_upper": high,
        "rel_effect_size": np.expm1(ratio.effect),
        "rel_effect_size_ci_lower": relative_low,
        "rel_effect_size_ci_upper": relative_high,
        "pvalue": difference.p_value(),
    }
    for name, value in ours.items():
        assert value == pytest.approx(getattr(told, name), rel=1e-6, abs=1e-9), name


def test_moments_of_two_samples_together_are_those_of_one(rows: Floats) -> None:
    figures = rows[:, 1:]
    both = Moments.of(figures[:600]) + Moments.of(figures[600:])
    whole = Moments.of(figures)
    assert both.mean == pytest.approx(whole.mean)
    assert both.cov == pytest.approx(whole.cov)
    sums = Moments.from_sums(
        np.asarray(float(USERS)), figures.sum(axis=0), np.einsum("ui,uj->ij", figures, figures)
    )
    assert sums.cov == pytest.approx(whole.cov)


def test_a_past_that_is_the_same_for_all_changes_nothing(rows: Floats) -> None:
    figures = rows[:, 1:].copy()
    figures[:, 2:] = 3.0
    arms = [Moments.of(figures[rows[:, 0] == arm]) for arm in (0, 1)]
    for adjusted, arm in zip(estimates(*arms), arms, strict=True):
        assert adjusted == raw_estimate(arm)


def test_the_levels_find_what_the_oracles_corrections_find() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        p_values = np.concatenate([rng.random(12), rng.random(6) * 0.02]).tolist()
        results = {
            "e": tt.experiment.ExperimentResult(
                {f"m{place}": {"pvalue": p_value} for place, p_value in enumerate(p_values)}
            )
        }
        fdr = tt.adjust_fdr(results, alpha=0.05, arbitrary_dependence=False)["e"]
        found = [p_value <= discovery_level(p_values, 0.05) for p_value in p_values]
        assert found == [bool(fdr[f"m{place}"]["null_rejected"]) for place in range(18)]
        assert family_level(0.05, 18) == 0.05 / 18


def test_every_figure_of_a_report_is_the_oracles() -> None:
    """All metrics of sums, with their pasts, as a planned look tells them, and the split."""
    found = measured(users=2_500, messages=0.1, hits=-0.02, hours=PLAN.hours)
    plan = replace(PLAN, looks=Looks.PLANNED, deciding=("messages_sent", "time_spent"))
    told = analyse(found, plan)
    compared = 0
    for source in found.sums:
        item = next(one for one in told.results[0].findings if one.metric is source.metric)
        if item.effect is None:
            continue
        assert item.level is not None
        figures = np.concatenate([found.users.arm[:, None], source.rows], axis=1)
        names = {"numer": "n", "denom": "d"}
        if source.before is not None:
            names |= {"numer_covariate": "n0", "denom_covariate": "d0"}
        options = {"confidence_level": 1 - item.level, "equal_var": False, "use_t": True}
        result = oracle(figures, tt.RatioOfMeans(**names, **options))
        assert item.absolute is not None
        assert item.relative is not None
        ours: dict[str, float | None] = {
            "effect_size": item.absolute.change,
            "effect_size_ci_lower": item.absolute.low,
            "effect_size_ci_upper": item.absolute.high,
            "rel_effect_size": item.relative.change,
            "rel_effect_size_ci_lower": item.relative.low,
            "rel_effect_size_ci_upper": item.relative.high,
        }
        if source.before is None:
            ours |= {"control": item.control, "treatment": item.value}
        for name, value in ours.items():
            wanted = pytest.approx(getattr(result, name), rel=1e-6, abs=1e-9)
            assert value == wanted, (source.metric.name, name)
            compared += 1
    assert compared == 6 * 5 + 2 * 4
    split = oracle(figures, tt.SampleRatio(method="norm", correction=False))
    assert told.sample_ratio.p_value == pytest.approx(split.pvalue, rel=1e-6)

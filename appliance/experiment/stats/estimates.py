"""What an arm's users show of a metric: a ratio of sums by the delta method, sharpened by their past.

Owns the arithmetic of one arm. Never: compares two, or decides which figures belong together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from appliance.experiment.stats.moments import Floats, Moments

PAST = 2
"""Figures from here on are of the period before: numerator and denominator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The value of a metric in one arm, from `count` units; `variance` / `count` is that of `value`."""

    value: Floats
    variance: Floats
    count: Floats


def raw_estimate(arm: Moments) -> Estimate:
    """Mean numerator over mean denominator, the past unused.

    Var(N/D) by the first-order expansion (delta method; Deng, Knoblich & Lu, KDD 2018,
    arXiv:1803.06336): users are the unit, however correlated the messages of each are.
    """
    now = slice(0, PAST)
    gradient = _gradient(arm.mean[..., now])
    return Estimate(
        value=arm.mean[..., 0] / arm.mean[..., 1],
        variance=_variance(gradient, arm.cov[..., now, now]),
        count=arm.count,
    )


def estimates(control: Moments, treatment: Moments) -> tuple[Estimate, Estimate]:
    """Both arms' values, each less what its users' past foretold of it.

    CUPED (Deng, Xu, Kohavi & Walker, WSDM 2013) for ratios, as Deng, Knoblich & Lu 2018 have it: the
    past's ratio, times a coefficient found in both arms together, is taken off. As the past cannot depend
    on the arm, that moves no expectation, and it cuts the variance by the squared correlation of the two.
    """
    assert control.mean.shape[-1] == treatment.mean.shape[-1]
    if control.mean.shape[-1] == PAST:
        return raw_estimate(control), raw_estimate(treatment)
    both = control + treatment
    coefficient = _coefficient(both)
    usual = both.mean[..., PAST] / both.mean[..., PAST + 1]
    return (
        _adjusted(control, coefficient, usual),
        _adjusted(treatment, coefficient, usual),
    )


def variance_kept(arm: Moments) -> Floats:
    """The share of the variance left when the past is taken off: 1 less the squared correlation."""
    if arm.mean.shape[-1] == PAST:
        return np.ones_like(arm.count)
    usual = arm.mean[..., PAST] / arm.mean[..., PAST + 1]
    return _adjusted(arm, _coefficient(arm), usual).variance / raw_estimate(arm).variance


def _adjusted(arm: Moments, coefficient: Floats, usual: Floats) -> Estimate:
    past = arm.mean[..., PAST:]
    gradient = np.concatenate(
        [_gradient(arm.mean[..., :PAST]), -coefficient[..., None] * _gradient(past)], axis=-1
    )
    value = arm.mean[..., 0] / arm.mean[..., 1]
    return Estimate(
        value=value - coefficient * (past[..., 0] / past[..., 1] - usual),
        variance=_variance(gradient, arm.cov),
        count=arm.count,
    )


def _coefficient(both: Moments) -> Floats:
    now, past = _gradient(both.mean[..., :PAST]), _gradient(both.mean[..., PAST:])
    spread = _form(past, both.cov[..., PAST:, PAST:], past)
    shared = _form(now, both.cov[..., :PAST, PAST:], past)
    # A past that is the same for all foretells nothing.
    return np.divide(shared, spread, out=np.zeros_like(spread), where=spread > 0)


def _gradient(mean: Floats) -> Floats:
    """Of numerator / denominator, at their means (..., 2)."""
    numerator, denominator = mean[..., 0], mean[..., 1]
    return np.stack([1 / denominator, -numerator / denominator**2], axis=-1)


def _variance(gradient: Floats, cov: Floats) -> Floats:
    """By the delta method. One that is none is a difference of large sums, at times just below zero."""
    found: Floats = np.maximum(_form(gradient, cov, gradient), 0.0)
    return found


def _form(left: Floats, matrix: Floats, right: Floats) -> Floats:
    found: Floats = np.einsum("...i,...ij,...j->...", left, matrix, right)
    return found

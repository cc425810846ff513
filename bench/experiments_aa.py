"""Do the experiments' statistics lie? Thousands of experiments in which the truth is known.

    python -m bench.experiments_aa            2,000 runs of everything, about a minute
    python -m bench.experiments_aa --runs 200

A/A (no difference): how often each way of judging sees one. Power: how often a planted effect is found,
beside what the planner said. `tests/unit/experiment/test_simulated_experiments.py` holds the short form
to its bounds.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from appliance.experiment.comparing import USERS_MIN
from appliance.experiment.samples import steps_of, time_of
from appliance.experiment.stats.contrast import Contrast, absolute, logarithmic
from appliance.experiment.stats.estimates import (
    estimates,
    raw_estimate,
    variance_kept,
)
from appliance.experiment.stats.looks import Looks, interval
from appliance.experiment.stats.moments import Floats, Moments
from appliance.experiment.stats.planner import Planner
from appliance.experiment.stats.quantile import quantile_estimate
from appliance.experiment.stats.sample_ratio import ALARM_BELOW
from appliance.experiment.stats.switchback import switchback
from bench.experiment_population import (
    Population,
    by_day,
    by_user,
    drawn_moments,
    draws,
    pairs,
    population,
)

RUNS = 2_000
SEED = 20_26
USERS_AN_ARM = 2_000
ALPHA = 0.05
EFFECTS = (0.02, 0.05, 0.10)


def share(found: NDArray[np.bool_]) -> float:
    """Of the runs (first axis): those with any finding."""
    return float(found.reshape(len(found), -1).any(axis=1).mean())


def is_found(ends: tuple[Floats, Floats]) -> NDArray[np.bool_]:
    """Whether intervals are without zero."""
    low, high = ends
    return np.asarray((low > 0) | (high < 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FalsePositives:
    """Shares of A/A experiments in which a difference was seen."""

    messages_as_units: float
    """A z-test over messages, at the planned end."""

    planned: float
    """The delta method over users, at the planned end."""

    daily_naive: float
    """The same, looked at every day, until it is below 5 %."""

    daily_always_valid: float


def false_positives(people: Population, runs: int, seed: int = SEED) -> FalsePositives:
    """A/A experiments on seconds a message, users joining over 30 days, looked at daily."""
    rng = np.random.default_rng(seed)
    daily = by_day(people)
    figures = daily[:, :, 1:3]
    # Users who have not joined yet are zeros everywhere, and not counted.
    table = (daily[:, :, 0], figures, pairs(figures), daily[:, :, 3])
    seen: list[NDArray[np.bool_]] = []
    for often in draws(rng, runs, people.users, USERS_AN_ARM):
        arms = drawn_moments(often, *table[:3])
        squares = np.tensordot(often, table[3], 1)
        contrast = logarithmic(*estimates(_arm(arms, 0), _arm(arms, 1)))
        enough = arms.count.min(axis=1) >= USERS_MIN
        naive = is_found(contrast.interval(ALPHA))
        always = is_found(interval(contrast, Looks.ANY, ALPHA, 2 * USERS_AN_ARM))
        messages = is_found(_of_messages(arms, squares).interval(ALPHA))
        seen.append(
            np.stack(
                [
                    messages[:, -1],
                    naive[:, -1],
                    naive.any(axis=1),
                    (always & enough).any(axis=1),
                ],
                axis=1,
            )
        )
    rates = np.concatenate(seen).mean(axis=0).tolist()
    return FalsePositives(
        messages_as_units=rates[0],
        planned=rates[1],
        daily_naive=rates[2],
        daily_always_valid=rates[3],
    )


def _arm(arms: Moments, number: int) -> Moments:
    """One arm of moments whose second axis is the arm."""
    return Moments(count=arms.count[:, number], mean=arms.mean[:, number], cov=arms.cov[:, number])


def _of_messages(arms: Moments, squares: Floats) -> Contrast:
    """What takes messages for units sees: their mean and variance, as if each were somebody else's."""
    messages = arms.mean[..., 1] * arms.count
    mean = arms.mean[..., 0] / arms.mean[..., 1]
    variance = (squares / messages - mean**2) / messages
    effect = mean[:, 1] - mean[:, 0]
    return Contrast(
        effect=effect,
        variance=variance.sum(axis=1),
        dof=messages.sum(axis=1),
        units=messages.sum(axis=1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A planted effect: how often the planner said it would be found, and how often it was."""

    effect: float
    users: int
    planned: float
    found: float


def power(
    people: Population,
    runs: int,
    effect: float,
    *,
    has_past: bool,
    looks: Looks = Looks.PLANNED,
    users_planned: float | None = None,
    seed: int = SEED,
) -> Found:
    """Experiments of the size that the planner asks for, with an effect that multiplies the metric.

    `users_planned`: for how many the bounds were made (None: for as many as are asked for).
    """
    rng = np.random.default_rng(seed)
    rows = by_user(people)[:, : 4 if has_past else 2]
    truth = Moments.of(rows)
    spread = raw_estimate(truth)
    plan = Planner(
        relative_variance=float(spread.variance / spread.value**2 * variance_kept(truth)),
        looks=looks,
        alpha=ALPHA,
        users_planned=users_planned,
    )
    drawn = round(plan.users_needed(effect) / 2)
    scale = np.ones(rows.shape[1])
    scale[0] += effect
    found = []
    for often in draws(rng, runs, people.users, drawn):
        arms = drawn_moments(often, np.ones(people.users), rows, pairs(rows))
        treated = _arm(arms, 1)
        treated = Moments(
            count=treated.count, mean=treated.mean * scale, cov=treated.cov * pairs(scale)
        )
        contrast = logarithmic(*estimates(_arm(arms, 0), treated))
        found.append(is_found(interval(contrast, looks, ALPHA, users_planned or 2 * drawn)))
    return Found(
        effect=effect,
        users=2 * drawn,
        planned=plan.power_at(effect, 2 * drawn),
        found=share(np.concatenate(found)),
    )


def power_daily(people: Population, runs: int, effect: float, seed: int = SEED) -> Found:
    """The same where users join over 30 days and are looked at on each, by bounds for any look."""
    rng = np.random.default_rng(seed)
    daily = by_day(people)
    figures = daily[:, :, 1:3]
    spread = raw_estimate(Moments.of(figures[:, -1]))
    plan = Planner(
        relative_variance=float(spread.variance / spread.value**2), looks=Looks.ANY, alpha=ALPHA
    )
    drawn = round(plan.users_needed(effect) / 2)
    scale = np.array([1 + effect, 1.0])
    products = pairs(figures)
    found = []
    for often in draws(rng, runs, people.users, drawn):
        arms = drawn_moments(often, daily[:, :, 0], figures, products)
        treated = _arm(arms, 1)
        treated = Moments(
            count=treated.count, mean=treated.mean * scale, cov=treated.cov * pairs(scale)
        )
        contrast = logarithmic(*estimates(_arm(arms, 0), treated))
        seen = is_found(interval(contrast, Looks.ANY, ALPHA, 2 * drawn))
        found.append(seen & (arms.count.min(axis=1) >= USERS_MIN))
    return Found(
        effect=effect,
        users=2 * drawn,
        planned=plan.power_at(effect, 2 * drawn),
        found=share(np.concatenate(found)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCut:
    """Shares of the variance left by CUPED: 1 - correlation squared, and as experiments had it."""

    theory: float
    measured: float


def past_cut(people: Population, runs: int, seed: int = SEED) -> PastCut:
    """The spread of the effect over A/A experiments, with the past over without it."""
    rng = np.random.default_rng(seed)
    rows = by_user(people)
    effects = []
    for often in draws(rng, runs, people.users, USERS_AN_ARM):
        arms = drawn_moments(often, np.ones(people.users), rows, pairs(rows))
        control, treated = _arm(arms, 0), _arm(arms, 1)
        with_past = absolute(*estimates(control, treated)).effect
        without = absolute(raw_estimate(control), raw_estimate(treated)).effect
        effects.append(np.stack([with_past, without], axis=1))
    spread = np.concatenate(effects).var(axis=0)
    return PastCut(
        theory=float(variance_kept(Moments.of(rows))), measured=float(spread[0] / spread[1])
    )


def false_quantiles(
    people: Population, runs: int, quantile: float, *, users: int = 1_000, seed: int = SEED
) -> float:
    """A/A experiments on a quantile of all messages' seconds: the share in which a difference is seen."""
    rng = np.random.default_rng(seed)
    order = np.argsort(people.during.user, kind="stable")
    owner = people.during.user[order]
    # To steps of 1 %, as the ledger's query gives them.
    seconds = time_of(steps_of(1000 * people.during.seconds[order]))
    start = np.searchsorted(owner, np.arange(people.users))
    length = np.bincount(owner, minlength=people.users)
    found = 0
    for _ in range(runs):
        arms = []
        for _ in range(2):
            chosen = rng.integers(0, people.users, users)
            sent = length[chosen]
            user = np.repeat(np.arange(users), sent)
            within = np.arange(len(user)) - np.repeat(np.cumsum(sent) - sent, sent)
            value = seconds[np.repeat(start[chosen], sent) + within]
            estimate = quantile_estimate(user, value, np.ones_like(user), quantile)
            assert estimate is not None
            arms.append(estimate)
        low, high = logarithmic(*arms).interval(ALPHA)
        found += bool(low > 0 or high < 0)
    return found / runs


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseSwitchbacks:
    """Shares of A/A switchbacks in which a difference was seen: blocks as units, and messages."""

    blocks: float
    messages: float


def false_switchbacks(runs: int, *, blocks: int = 60, seed: int = SEED) -> FalseSwitchbacks:
    """Latency that follows the day and a load that lingers, 150 messages in each half-hour period."""
    rng = np.random.default_rng(seed)
    periods, each = 2 * blocks, 150
    block = np.repeat(np.arange(blocks, dtype=np.int32), 2)
    tide = 0.4 * np.sin(np.arange(periods) * 2 * np.pi / 48)
    load = rng.normal(0, 0.15, (periods, runs))
    for period in range(1, periods):
        load[period] += 0.7 * load[period - 1]
    by_blocks = by_messages = 0
    for run in range(runs):
        values = np.exp(tide + load[:, run])[:, None] * rng.gamma(4.0, 0.25, (periods, each))
        treated = rng.integers(0, 2, blocks).repeat(2).astype(bool)
        treated[1::2] ^= True
        contrast = switchback(block, treated, values.mean(axis=1))
        assert contrast is not None
        by_blocks += bool(contrast.p_value() < ALPHA)
        one, other = (
            raw_estimate(Moments.of(np.stack([side, np.ones_like(side)], axis=1)))
            for side in (values[~treated].ravel(), values[treated].ravel())
        )
        by_messages += bool(absolute(one, other).p_value() < ALPHA)
    return FalseSwitchbacks(blocks=by_blocks / runs, messages=by_messages / runs)


def false_ratio_alarms(runs: int, *, users_a_day: int = 100, seed: int = SEED) -> float:
    """A fair split looked at daily for 30 days: the share of experiments in which it ever alarms."""
    rng = np.random.default_rng(seed)
    first = rng.binomial(users_a_day, 0.5, (runs, 30)).cumsum(axis=1)
    users = users_a_day * np.arange(1, 31)
    distance = (2 * first - users) ** 2 / users
    return share(special.chdtrc(1, distance) < ALARM_BELOW)


def tell(look: str, past: str, found: Found) -> None:
    """A line of the table of planted effects."""
    print(
        f"{found.effect:14.0%}   {look:32} {past:4} {found.users:10,}   {found.planned:12.1%}   "
        f"{found.found:5.1%}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    runs = parser.parse_args().runs
    began = time.perf_counter()
    people = population(SEED)
    sent = np.sort(np.bincount(people.during.user))[::-1]
    top = sent[: len(sent) // 100].sum() / sent.sum()
    print(f"{people.users:,} users, {sent.mean():.1f} messages each; 1 % of them send {top:.0%}")
    print(f"\nA/A, {runs:,} experiments, {USERS_AN_ARM:,} users an arm, joining over 30 days")
    rates = false_positives(people, runs)
    print(f"  messages as units, one look        {rates.messages_as_units:6.1%}")
    print(f"  users as units, one planned look   {rates.planned:6.1%}")
    print(f"  the same, looked at daily          {rates.daily_naive:6.1%}")
    print(f"  always valid, looked at daily      {rates.daily_always_valid:6.1%}")
    for quantile in (0.5, 0.95):
        rate = false_quantiles(people, runs, quantile)
        print(f"  p{quantile * 100:.0f} of all messages, one look      {rate:6.1%}")
    switched = false_switchbacks(runs)
    print(f"  switchback, blocks as units        {switched.blocks:6.1%}")
    print(f"  switchback, messages as units      {switched.messages:6.1%}")
    print(f"  sample ratio at 0.001, daily       {false_ratio_alarms(runs):6.1%}")
    cut = past_cut(people, runs)
    print(
        f"\nthe past leaves of the variance: theory {cut.theory:.3f}, measured {cut.measured:.3f}"
    )
    print(
        "\nplanted effect   look                             past      users   planner said   found"
    )
    for effect in EFFECTS:
        for has_past in (False, True):
            past = "yes" if has_past else "no"
            tell("as planned", past, power(people, runs, effect, has_past=has_past))
            any_look = power(people, runs, effect, has_past=has_past, looks=Looks.ANY)
            tell("any, at the end", past, any_look)
        untuned = power(
            people, runs, effect, has_past=True, looks=Looks.ANY, users_planned=USERS_AN_ARM
        )
        tell(f"any, planned for {USERS_AN_ARM:,} users", "yes", untuned)
        tell("any, daily until it is seen", "no", power_daily(people, runs, effect))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

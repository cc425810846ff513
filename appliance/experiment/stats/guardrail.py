"""Whether an arm does harm that nobody agreed to. Decides; never pauses anything itself."""

from __future__ import annotations

from enum import Enum


class Guard(Enum):
    """How a guardrail stands after a look."""

    SAFE = "safe"
    """Whatever is in the interval is put up with."""

    OPEN = "open"
    """Not enough is known yet."""

    HARMED = "harmed"
    """It is worse, perhaps by less than is put up with."""

    BREACHED = "breached"
    """It is worse by more than is put up with: the arm is paused."""


def guard(low: float, high: float, margin: float, *, up_is_better: bool) -> Guard:
    """Judge the interval [low, high] of a relative change against the harm that is put up with.

    `margin` is a share of the control's value, 0 or more. The interval is one that holds at any look
    (`sequential.py`): a guardrail is looked at all the time.
    """
    assert margin >= 0
    least_harm, most_harm = (-high, -low) if up_is_better else (low, high)
    return _stands(least_harm, least_harm - margin, most_harm - margin)


def guard_differences(
    difference: tuple[float, float], beyond: tuple[float, float], *, up_is_better: bool
) -> Guard:
    """The same where a change is no share of the control's value: from the intervals of the difference,
    and of what of it is beyond the harm that is put up with."""
    if up_is_better:
        difference, beyond = (-difference[1], -difference[0]), (-beyond[1], -beyond[0])
    return _stands(difference[0], *beyond)


def _stands(least_harm: float, least_beyond: float, most_beyond: float) -> Guard:
    if least_beyond > 0:
        return Guard.BREACHED
    if most_beyond <= 0:
        return Guard.SAFE
    return Guard.HARMED if least_harm > 0 else Guard.OPEN

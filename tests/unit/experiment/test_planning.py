"""What an experiment needs, from a history in which the spread and the arrivals are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from appliance.experiment.comparing import USERS_MIN
from appliance.experiment.planning import plan_experiment
from appliance.experiment.samples import Measured, Users
from appliance.experiment.stats.looks import Looks
from appliance.experiment.stats.planner import Planner
from appliance.store.experiment_records import Options
from tests.experiment_drafts import a_draft
from tests.unit.experiment.measurements import measured

DAYS = 10
DRAFT = a_draft(
    {"birds": "", "ships": ""},
    range_end=0.5,
    coverage=0.5,
    options=Options(primary=("time_spent",), minimum_effect=0.1, looks="planned", days=DAYS),
)


def history(users: int = 6_000) -> Measured:
    """A user each so many minutes, over the days before the draft."""
    found = measured(users=users)
    people = found.users
    return replace(
        found,
        users=Users(
            arms=people.arms,
            shares=people.shares,
            arm=np.zeros_like(people.arm),
            exposed_at=(np.arange(users) + 1) / users * DAYS * 86_400,
            paused_at=people.paused_at,
        ),
    )


def test_users_and_days_are_those_of_the_spread_and_the_arrivals() -> None:
    past = history()
    minutes = past.sums[1].numerator
    spread = float(minutes.var(ddof=1) / minutes.mean() ** 2)
    needed = Planner(relative_variance=spread, looks=Looks.PLANNED).users_needed(0.1)
    plan = plan_experiment(past, DRAFT)
    assert (plan.came, plan.let_in, plan.days) == (6_000, 1_500, DAYS)
    (item,) = plan.metrics
    assert plan.users == item.users == np.ceil(needed)
    # A quarter of those who come are let in: 150 a day.
    assert item.days == pytest.approx(needed / 150, rel=0.01)
    assert item.detectable is not None
    options = structs.replace(DRAFT.options, minimum_effect=item.detectable)
    assert plan_experiment(past, replace(DRAFT, options=options)).users == pytest.approx(
        plan.let_in, abs=1
    )


def test_a_past_cuts_what_is_needed_and_more_to_decide_by_adds_to_it() -> None:
    options = Options(primary=("messages_sent", "time_spent", "errors"), minimum_effect=0.01)
    plan = plan_experiment(history(), replace(DRAFT, options=options))
    sent, minutes, errors = plan.metrics
    assert sent.variance_kept is not None
    assert sent.variance_kept < 0.6
    assert minutes.variance_kept == 1
    assert errors.lacks == "nothing was measured before"
    assert errors.users is None
    assert sent.users is not None
    assert minutes.users is not None
    assert plan.users == max(sent.users, minutes.users)
    alone = plan_experiment(
        history(), replace(DRAFT, options=structs.replace(options, primary=("time_spent",)))
    )
    assert alone.users is not None
    assert alone.users < minutes.users


def test_few_are_never_enough_to_be_judged() -> None:
    options = Options(primary=("time_spent",), minimum_effect=1.0, looks="planned")
    arms = (replace(DRAFT.arms[0], share=0.9), replace(DRAFT.arms[1], share=0.1))
    plan = plan_experiment(history(), replace(DRAFT, options=options, arms=arms))
    assert plan.users == USERS_MIN / 0.1


def test_what_is_not_clearly_above_zero_is_told_so_and_not_as_nothing() -> None:
    past = history()
    signs = np.where(np.arange(6_000) % 2 == 0, 1.0, -1.0)
    sums = (replace(past.sums[1], numerator=past.sums[1].numerator * signs),)
    (item,) = plan_experiment(replace(past, sums=sums), DRAFT).metrics
    assert item.users is None
    assert item.lacks is not None
    assert "not clearly above zero" in item.lacks

"""What is said of an experiment: planted effects are told for what they are, and doubts before them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.experiment.analysis import analyse
from appliance.experiment.comparing import USERS_MIN
from appliance.experiment.findings import Analysis, Finding, Plan, Reading, Verdict
from appliance.experiment.metric import Direction
from appliance.experiment.samples import Measured
from appliance.experiment.stats.guardrail import Guard
from appliance.experiment.stats.looks import Looks
from tests.unit.experiment.measurements import PLAN, TTFT, measured


def finding(analysis: Analysis, metric: str, arm: int = 0) -> Finding:
    return next(item for item in analysis.results[arm].findings if item.metric.name == metric)


def without_users(found: Measured, arm: int) -> Measured:
    """The same experiment, where nobody came to an arm."""
    return without_rows(found, found.users.arm == arm)


def without_rows(found: Measured, gone: NDArray[np.bool_]) -> Measured:
    """The same experiment without some users."""
    users, kept = found.users, ~gone
    place = np.cumsum(kept) - 1
    past = {
        source.metric.name: None if source.before is None else source.before[kept]
        for source in found.sums
    }
    return replace(
        found,
        users=replace(users, arm=users.arm[kept], exposed_at=users.exposed_at[kept]),
        sums=tuple(
            replace(
                source,
                numerator=source.numerator[kept],
                denominator=source.denominator[kept],
                before=past[source.metric.name],
                before_denominator=None
                if source.before_denominator is None
                else source.before_denominator[kept],
            )
            for source in found.sums
        ),
        observations=tuple(
            replace(
                source,
                user=place[source.user[kept[source.user]]].astype(np.int32),
                value=source.value[kept[source.user]],
                count=source.count[kept[source.user]],
            )
            for source in found.observations
        ),
    )


def test_a_planted_effect_is_told_with_an_interval_that_holds_it() -> None:
    told = analyse(measured(messages=0.12), PLAN)
    sent = finding(told, "messages_sent")
    assert told.results[0].verdict is Verdict.HELPS
    assert sent.reading is Reading.BETTER
    assert sent.guard is Guard.SAFE
    assert sent.relative is not None
    assert 0 < sent.relative.low < 0.12 < sent.relative.high
    assert sent.variance_kept is not None
    assert sent.variance_kept < 0.6
    assert finding(told, "ttft_p95").reading is Reading.UNCLEAR


def test_what_breaches_a_guardrail_harms_whatever_the_deciding_metric_does() -> None:
    told = analyse(measured(messages=0.3, hits=-0.2), PLAN)
    result = told.results[0]
    assert finding(told, "messages_sent").reading is Reading.BETTER
    assert result.verdict is Verdict.HARMS
    assert {item.metric.name for item in result.breached} == {"hit_ratio", "computed_tokens"}
    assert result.rests_on is result.breached[0]


@pytest.mark.parametrize(
    ("effect", "verdict"), [(-0.2, Verdict.HARMS), (0.2, Verdict.HELPS), (0.0, Verdict.UNCLEAR)]
)
def test_the_deciding_metric_gives_the_verdict(effect: float, verdict: Verdict) -> None:
    assert analyse(measured(messages=effect), PLAN).results[0].verdict is verdict


def test_without_an_effect_at_the_end_no_difference_is_seen_and_how_small_a_one_would_be() -> None:
    told = analyse(measured(hours=PLAN.hours), PLAN)
    assert told.results[0].verdict is Verdict.NO_DIFFERENCE
    detectable = finding(told, "messages_sent").detectable
    assert detectable is not None
    assert 0.03 < detectable < 0.2


def test_a_split_that_chance_does_not_explain_voids_the_best_of_results() -> None:
    found = measured(messages=0.3, shares=(0.6, 0.4))
    told = analyse(replace(found, users=replace(found.users, shares=(0.5, 0.5))), PLAN)
    assert told.sample_ratio.alarms
    assert told.results[0].verdict is Verdict.VOID


def test_a_pause_ends_its_arms_comparison_and_no_other() -> None:
    found = measured(shares=(0.4, 0.3, 0.3), users=12_000)
    users, paused = found.users, 3 * 86400.0
    late = users.exposed_at >= paused
    # Nobody comes to the arm after its pause, and whoever is in the control then writes twice as much.
    sent = found.sums[0].numerator
    now = without_rows(
        replace(
            found,
            users=replace(users, paused_at=(np.inf, paused, np.inf)),
            sums=(replace(found.sums[0], numerator=sent * (2 - (users.arm > 0))),),
        ),
        (users.arm == 1) & late,
    )
    then = replace(without_rows(replace(found, sums=found.sums[:1]), late), hours=72.0)
    told = analyse(replace(now, judged={"warmer": then}, watched={"warmer": then}), PLAN)
    assert sum(told.sample_ratio.counts) == told.users
    assert told.sample_ratio.p_value > 0.001, "who came after the pause is no wrong split"
    first, second = (finding(told, "messages_sent", arm=place) for place in (0, 1))
    assert first.reading is Reading.UNCLEAR, "nor do they count"
    assert first.control == pytest.approx(sent[(users.arm == 0) & ~late].mean())
    assert second.control == pytest.approx(2 * sent[users.arm == 0].mean())
    assert second.reading is Reading.WORSE
    assert told.results[0].hours == 72
    assert told.results[0].users == (~late & (users.arm < 2)).sum()
    assert told.results[0].verdict is not Verdict.VOID


def test_guardrails_are_watched_after_a_planned_look_that_stays_as_it_was() -> None:
    plan = replace(PLAN, looks=Looks.PLANNED)
    then = measured(hours=plan.hours, messages=0.12)
    later = replace(measured(hours=20 * 24.0, hits=-0.3), sums=measured(hits=-0.3).sums)
    for watched in (then, later):
        found = replace(then, judged={"warmer": then}, watched={"warmer": watched})
        told = analyse(found, plan)
        assert told.results[0].hours == plan.hours
        sent, hits = (finding(told, name) for name in ("messages_sent", "hit_ratio"))
        assert (sent.reading, sent.looks) == (Reading.BETTER, Looks.PLANNED)
        if watched is later:
            assert hits.guard is Guard.BREACHED
            assert (hits.reading, hits.looks) == (Reading.WORSE, Looks.ANY), "told as it is"
            assert told.results[0].verdict is Verdict.HARMS
        else:
            assert hits.guard is Guard.SAFE
            assert told.results[0].verdict is Verdict.HELPS


def test_few_users_are_shown_and_not_judged() -> None:
    told = analyse(measured(users=USERS_MIN, messages=1.0, hits=-0.5), PLAN)
    assert told.results[0].verdict is Verdict.TOO_EARLY
    assert not told.results[0].breached
    sent = finding(told, "messages_sent")
    assert sent.reading is Reading.TOO_EARLY
    assert sent.relative is not None


@pytest.mark.parametrize("empty", [0, 1])
def test_an_arm_without_users_is_named(empty: int) -> None:
    told = analyse(without_users(measured(users=800), empty), PLAN)
    assert told.results[0].verdict in (Verdict.TOO_EARLY, Verdict.VOID)
    for item in told.results[0].findings:
        assert item.reading is Reading.NO_DATA
        assert item.lacks is not None
        assert told.arms[empty] in item.lacks


def test_no_users_at_all_are_told_for_every_metric() -> None:
    told = analyse(without_users(without_users(measured(users=60), 0), 1), PLAN)
    assert told.users == 0
    assert told.results[0].verdict is Verdict.TOO_EARLY
    assert all(
        item.lacks == "no users in today and warmer yet" for item in told.results[0].findings
    )


def test_a_metric_without_data_does_not_silence_the_others() -> None:
    found = measured()
    sums = (replace(found.sums[1], denominator=np.zeros(6_000)), *found.sums[:1])
    one = replace(found.observations[0], count=np.zeros_like(found.observations[0].count))
    told = analyse(replace(found, sums=sums, observations=(one,)), PLAN)
    assert finding(told, "time_spent").lacks == "nothing was measured yet"
    assert finding(told, "ttft_p50").lacks == "nothing was measured yet"
    assert finding(told, "messages_sent").relative is not None


def test_a_metric_that_only_one_arm_has_is_told() -> None:
    found = measured(users=2_000)
    first = found.users.arm == 0
    sums = (replace(found.sums[2], denominator=np.where(first, found.sums[2].denominator, 0.0)),)
    shown = first[found.observations[0].user]
    one = replace(found.observations[0], count=found.observations[0].count * shown)
    told = analyse(replace(found, sums=sums, observations=(one,)), PLAN)
    for name in ("regenerations", "ttft_p50"):
        assert finding(told, name).lacks == "nothing was measured in warmer yet"


def test_what_never_happened_in_the_control_is_compared_as_it_is() -> None:
    found = measured(users=2_000)
    failed = np.where(found.users.arm == 1, 0.1 * found.sums[3].denominator, 0.0)
    noise = np.random.default_rng(1).random(2_000) < 0.5
    sums = (replace(found.sums[3], numerator=failed * noise),)
    told = finding(analyse(replace(found, sums=sums, observations=()), PLAN), "errors")
    assert told.control == 0
    assert told.relative is None
    assert told.absolute is not None
    assert told.absolute.low > 0
    assert told.reading is Reading.WORSE
    assert told.guard is Guard.BREACHED


def test_each_metric_that_decides_and_each_arm_makes_the_others_stricter() -> None:
    plan = replace(PLAN, deciding=("messages_sent", "time_spent"))
    told = analyse(measured(shares=(0.4, 0.3, 0.3)), plan)
    assert finding(told, "messages_sent", arm=1).level == pytest.approx(0.05 / 4)
    # What explains is judged together (five metrics of two arms: nothing ever failed), and what is found
    # moves the level of all.
    assert finding(told, "ttft_p50").level == pytest.approx(0.05 / 10)
    found = analyse(measured(shares=(0.4, 0.3, 0.3), ttft=0.5), plan)
    assert finding(found, "ttft_p50").level == pytest.approx(0.05 * 4 / 10)
    assert finding(found, "ttft_p50").reading is Reading.WORSE


def test_a_planned_look_is_narrower_and_nothing_is_said_before_it() -> None:
    plan = replace(PLAN, looks=Looks.PLANNED)
    early = analyse(measured(messages=0.12, hits=-0.3), plan)
    assert finding(early, "messages_sent").reading is Reading.TOO_EARLY
    # A guardrail waits for no plan.
    assert early.results[0].verdict is Verdict.HARMS
    ended = [
        finding(analyse(measured(messages=0.12, hours=PLAN.hours), one), "messages_sent").relative
        for one in (PLAN, plan)
    ]
    assert ended[0] is not None
    assert ended[1] is not None
    assert ended[1].high - ended[1].low < 0.75 * (ended[0].high - ended[0].low)


def test_guardrails_are_judged_for_every_look_whatever_the_plan() -> None:
    plan = replace(PLAN, looks=Looks.PLANNED)
    for ttft in np.linspace(0.05, 0.2, 7):
        found = measured(ttft=float(ttft), hours=PLAN.hours, users=1_500)
        guards = [finding(analyse(found, one), "ttft_p50").guard for one in (PLAN, plan)]
        assert guards[0] is guards[1]


@pytest.mark.parametrize("control", [0.0, 0.1])
def test_arms_without_any_spread_that_differ_are_certain_to(control: float) -> None:
    found = measured(users=2_000)
    asked = found.sums[3].denominator
    failed = np.where(found.users.arm == 1, asked, control * asked)
    sums = (replace(found.sums[3], numerator=failed),)
    told = analyse(replace(found, sums=sums, observations=()), PLAN)
    assert finding(told, "errors").reading is Reading.WORSE
    assert finding(told, "errors").guard is Guard.BREACHED
    assert told.results[0].verdict is Verdict.HARMS


def test_a_metric_without_a_direction_is_changed_and_neither_better_nor_worse() -> None:
    found = measured(ttft=0.3)
    shown = replace(TTFT, direction=Direction.NONE, guardrail=None)
    one = replace(found.observations[0], metric=shown)
    told = analyse(replace(found, observations=(one,)), PLAN)
    assert finding(told, "ttft_p50").reading is Reading.CHANGED


def test_a_plan_that_decides_by_nothing_is_too_early_and_not_empty() -> None:
    told = analyse(measured(), Plan(deciding=(), hours=24.0))
    assert told.results[0].verdict is Verdict.TOO_EARLY
    assert len(told.results[0].findings) == 8

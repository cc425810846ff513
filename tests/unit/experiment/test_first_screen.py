"""The first screen never contradicts itself: verdict, guardrails, split, pause, looks and cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import product

import numpy as np
import pytest

from appliance.experiment.analysis import analyse
from appliance.experiment.findings import Analysis, ArmResult, Effect, Finding, Reading, Verdict
from appliance.experiment.metric import Direction, Group
from appliance.experiment.report.document import report_text
from appliance.experiment.report.page import report_page
from appliance.experiment.report.subject import Subject
from appliance.experiment.report.words import UNJUDGED, did_it_help, how_sure, what_it_costs
from appliance.experiment.samples import Measured, Sums
from appliance.experiment.stats.guardrail import Guard
from appliance.experiment.stats.looks import Looks
from tests.unit.experiment.measurements import HITS, MESSAGES, PLAN, measured, subject
from tests.unit.experiment.test_analysis import finding
from tests.unit.experiment.test_report import plain

ENDED = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)
measured_once = cache(measured)


def subjects() -> Iterator[tuple[str, Subject]]:
    """One that runs, one whose arm is paused, one that has ended."""
    runs = subject()
    yield "", runs
    arms = tuple(
        replace(arm, paused_at=ENDED) if arm.name == "warmer" else arm for arm in runs.arms
    )
    yield "is paused", replace(runs, arms=arms)
    yield "has ended", replace(runs, state="stopped", stopped_at=ENDED)


def analyses() -> Iterator[tuple[str, Analysis]]:
    """Every verdict beside every guardrail, split and moment."""
    for messages, hits, ttft, users in product(
        (-0.3, 0.0, 0.3), (0, -0.3), (0, 0.14, 0.4), (150, 800)
    ):
        once = measured_once(messages=messages, hits=hits, ttft=ttft, users=users)
        for is_wrong, looks, is_over in product((False, True), Looks, (False, True)):
            found = replace(once, hours=PLAN.hours if is_over else 9 * 24.0)
            if is_wrong:
                found = replace(found, users=replace(found.users, shares=(0.8, 0.2)))
            # The second one may be what an answer rests on.
            for deciding in (("messages_sent",), ("messages_sent", "ttft_p50"))[: 2 - is_wrong]:
                name = f"{messages:+} {hits:+} {ttft:+} {users} {is_wrong} {looks} {is_over} {deciding}"
                yield name, analyse(found, replace(PLAN, looks=looks, deciding=deciding))


def is_without_zero(effect: Effect) -> bool:
    return effect.low > 0 or effect.high < 0


def is_harm(effect: Effect, item: Finding) -> bool:
    return effect.high < 0 if item.metric.direction is Direction.UP else effect.low > 0


def agree_numbers(item: Finding) -> None:
    """A finding's word, interval and guardrail."""
    if item.reading in (Reading.BETTER, Reading.WORSE, Reading.UNCLEAR):
        assert item.effect is not None
        assert is_without_zero(item.effect) == (item.reading is not Reading.UNCLEAR)
        assert is_harm(item.effect, item) == (item.reading is Reading.WORSE)
    if item.guard is None:
        return
    assert item.guarded is not None
    margin = item.metric.guardrail
    assert margin is not None
    harm = item.guarded.low if item.metric.direction is Direction.DOWN else -item.guarded.high
    most = item.guarded.high if item.metric.direction is Direction.DOWN else -item.guarded.low
    assert item.guarded.is_share
    assert (item.guard is Guard.BREACHED) == (harm > margin)
    assert (item.guard is Guard.SAFE) == (most <= margin)
    assert (item.guard is Guard.HARMED) == (0 < harm <= margin < most)
    if item.guard is Guard.BREACHED:
        assert item.reading is Reading.WORSE


def agree_answers(result: ArmResult, analysis: Analysis, about: Subject, end: str) -> None:
    helped = did_it_help(result, analysis, about)
    sure, costs = how_sure(result, analysis), what_it_costs(result, analysis, about)
    told = plain(" ".join((*helped.told, *sure.told, *costs.told)))
    rests_on = result.rests_on
    match result.verdict:
        case Verdict.VOID:
            assert (helped.short, sure.short, costs.short) == (
                *("It cannot be said", "Not at all"),
                "It cannot be said",
            )
            assert True not in (helped.is_good, sure.is_good, costs.is_good)
            return
        case Verdict.HARMS | Verdict.HELPS | Verdict.MIXED:
            assert rests_on is not None
            assert rests_on.effect is not None
            assert is_without_zero(rests_on.effect)
            assert is_harm(rests_on.effect, rests_on) == (result.verdict is Verdict.HARMS)
            assert plain(sure.told[0]).startswith(rests_on.metric.title)
            assert sure.short in ("Sure", "Very sure")
        case _:
            assert not any(
                item.reading in (Reading.BETTER, Reading.WORSE, Reading.CHANGED)
                for item in result.deciding
            )
            assert sure.short.startswith(("Not", "Sure that it is below"))
    if result.verdict is Verdict.HELPS:
        assert not result.breached
        assert not any(item.guard is Guard.HARMED for item in result.findings)
    for item in result.findings:
        if item.guard in (Guard.BREACHED, Guard.HARMED):
            assert item.metric.title in told or "more guardrail" in told, item.metric.name
    for group, word in ((Group.COST, "more"), (Group.SPEED, "slower")):
        is_worse = any(
            item.metric.group is group and item.reading is Reading.WORSE for item in result.findings
        )
        assert is_worse == (word in costs.short.lower()), (costs.short, group)
        of_group = [item for item in result.findings if item.metric.group is group]
        if of_group and all(item.reading in UNJUDGED for item in of_group):
            assert "not measured" in costs.short.lower() or "too early" in costs.short.lower()
            assert group.value in costs.short or costs.short in ("Not measured", "Too early to say")
    if end:
        # Nothing is waited for any more.
        waits = ("known yet", "early to say", "judged once", "to be trusted")
        assert not any(word in f"{helped.short} {told}" for word in waits), (helped, told)
        if result.verdict in (Verdict.UNCLEAR, Verdict.TOO_EARLY):
            assert end in told


def test_no_two_words_or_numbers_of_a_first_screen_contradict_each_other() -> None:
    verdicts, guards = set(), set()
    for name, analysis in analyses():
        (result,) = analysis.results
        verdicts.add(result.verdict)
        for item in result.findings:
            guards.add(item.guard)
            agree_numbers(item)
        for end, about in subjects():
            try:
                agree_answers(result, analysis, about, end)
            except AssertionError as error:
                raise AssertionError(f"{name}, {end or 'runs'}: {error}") from error
            if end:
                assert "as users come now" not in report_page(about, analysis), name
    assert verdicts == set(Verdict) - {Verdict.CHANGED}
    assert guards == {*Guard, None}


def test_a_metric_that_decides_without_a_direction_has_changed() -> None:
    found = measured_once(messages=0.3)
    source = found.sums[0]
    metric = replace(source.metric, direction=Direction.NONE, guardrail=None)
    told = analyse(replace(found, sums=(replace(source, metric=metric),)), PLAN)
    assert told.results[0].verdict is Verdict.CHANGED
    text = plain(report_text(subject(), told))
    assert "Did it help? It changed, for better or worse." in text
    assert "How sure are we? Very sure." in text


def test_a_metric_that_all_users_have_alike_is_not_waited_for() -> None:
    found = measured_once()
    source = replace(
        found.sums[0], numerator=np.full(6_000, 3.0), before=None, before_denominator=None
    )
    told = analyse(replace(found, sums=(source,)), PLAN)
    text = report_text(subject(), told)
    assert "Did it help? Nothing to judge by yet." in text
    assert "the same for every user" in text
    assert "Below 100 users" not in text


def balance(shift: float, *, around: float, spread: float = 3.0, metric: str = "up") -> Measured:
    """A figure of either sign: what is above zero for one user is below it for the next."""
    found = measured_once(users=4_000)
    rng = np.random.default_rng(5)
    figures = around + spread * rng.normal(size=4_000) + shift * (found.users.arm == 1)
    declared = replace(
        MESSAGES, name="balance", unit="points a user", direction=Direction(metric), guardrail=0.1
    )
    ones = np.ones(4_000)
    return replace(
        found, sums=(Sums(metric=declared, numerator=figures, denominator=ones),), observations=()
    )


SIGNED = replace(PLAN, deciding=("balance",))


@pytest.mark.parametrize("around", [0.0, 0.02, -0.02, -5.0])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_figure_of_either_sign_is_told_in_its_own_unit(
    around: float, shift: float, way: str
) -> None:
    told = analyse(balance(shift, around=around, metric=way), SIGNED)
    item = finding(told, "balance")
    assert item.relative is None, "a change is no share of what is not above zero"
    assert item.effect is not None
    assert item.effect.low < shift < item.effect.high
    expected = {0: Reading.UNCLEAR, 1: Reading.BETTER, -1: Reading.WORSE}
    assert item.reading is expected[int(shift) * (1 if way == "up" else -1)]
    text = plain(report_text(subject(), told) + report_page(subject(), told))
    assert "e+" not in text
    assert "inf" not in text.replace("info", "")
    # A tenth of the size of the control's value is put up with: of one near zero next to nothing.
    if item.reading is Reading.WORSE:
        assert item.guard is Guard.BREACHED
    if item.reading is Reading.BETTER:
        assert item.guard is Guard.SAFE


def test_a_guardrail_on_a_figure_below_zero_allows_a_share_of_its_size() -> None:
    # From -5 to -5.45: worse by about a tenth, which is allowed; to -6: by a fifth.
    for shift, guard in ((-0.45, Guard.HARMED), (-1.0, Guard.BREACHED), (0.25, Guard.SAFE)):
        told = finding(analyse(balance(shift, around=-5.0, spread=2.0), SIGNED), "balance")
        assert told.guard is guard
        assert told.guarded is not None
        assert not told.guarded.is_share


def test_few_events_are_no_base_for_a_share() -> None:
    found = measured_once(users=4_000)
    rare = np.zeros(4_000)
    first = found.users.arm == 0
    rare[np.flatnonzero(first)[:3]] = 1
    rare[np.flatnonzero(~first)[:25]] = 1
    source = replace(found.sums[3], numerator=rare, denominator=np.ones(4_000))
    told = finding(analyse(replace(found, sums=(source,), observations=()), PLAN), "errors")
    assert told.relative is None
    assert told.reading is Reading.WORSE
    assert told.effect is not None
    assert told.effect.change == pytest.approx(25 / (~first).sum() - 3 / first.sum())


def test_an_arms_end_is_told_with_its_own_users_and_hours() -> None:
    found = measured(shares=(0.4, 0.3, 0.3), users=3_000)
    then = replace(measured(shares=(0.4, 0.3, 0.3), users=900, hours=48.0), hours=48.0)
    told = analyse(replace(found, judged={"warmer": then}, watched={"warmer": then}), PLAN)
    first, second = told.results
    assert first.users < second.users
    assert "2 days of 14 days planned" in how_sure(first, told).told[-1]
    assert "9 days of 14 days planned" in how_sure(second, told).told[-1]


def test_what_a_guardrail_is_sure_of_is_what_its_metric_is_told_to_be() -> None:
    """With many metrics their intervals are wider than the guardrail's."""
    for hits in np.linspace(-0.1, -0.04, 13):
        found = measured(users=700, hits=float(hits))
        for sums in (found.sums, tuple(one for one in found.sums if one.metric is HITS)):
            item = finding(analyse(replace(found, sums=sums), PLAN), "hit_ratio")
            if item.guard in (Guard.BREACHED, Guard.HARMED):
                assert item.reading is Reading.WORSE


def test_cost_that_was_not_measured_is_no_cost_without_a_change() -> None:
    analysis = analyse(measured(), PLAN)
    unknown = {Group.COST: Reading.NO_DATA, Group.SPEED: Reading.UNCLEAR}
    result = replace(
        analysis.results[0],
        verdict=Verdict.UNCLEAR,
        findings=tuple(
            replace(item, reading=unknown.get(item.metric.group, item.reading))
            for item in analysis.results[0].findings
        ),
    )
    told = what_it_costs(result, analysis, subject())
    assert told.short == "No change seen; cost not measured yet"


def test_all_metrics_that_decide_are_small_or_it_is_not_said() -> None:
    both = replace(PLAN, deciding=("messages_sent", "time_spent"))
    analysis = analyse(measured(users=40_000, hours=400.0), both)
    result = analysis.results[0]
    assert result.verdict is Verdict.NO_DIFFERENCE
    sure = how_sure(result, replace(analysis, plan=replace(both, minimum_effect=0.5)))
    assert sure.short.startswith("Sure that it is below 50")
    first, second = result.deciding
    assert second.relative is not None
    wide = replace(second, relative=replace(second.relative, low=-0.6, high=0.9))
    others = tuple(item for item in result.findings if not item.decides)
    spread = replace(result, findings=(first, wide, *others))
    told = how_sure(spread, replace(analysis, plan=replace(both, minimum_effect=0.5)))
    assert told.short == "Not sure"

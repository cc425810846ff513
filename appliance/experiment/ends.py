"""Until when the figures of an arm count, and those of its guardrails. Pure; owns the rule.

Never: reads the clock, or measures anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from appliance.store.experiment_records import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """An arm is `judged` by what came before one time, and its guardrails by what came before another,
    which is never the earlier one."""

    judged: datetime
    watched: datetime


def ends_of(experiment: Experiment, now: datetime) -> tuple[Ends, ...]:
    """Of each arm but the control, in their order, of an experiment that has started.

    Nothing counts after its stop, or after a pause of the arm or of the control: who comes to one alone
    is compared with nobody, and the new chats of users of a paused arm are made as if there were no
    experiment. A look that was planned sees what there was at the planned end, so that it says the same
    on a later day; guardrails go on being watched.
    """
    assert experiment.started_at is not None
    planned_end = experiment.started_at + timedelta(days=experiment.options.days)
    control, *others = experiment.arms
    found = []
    for arm in others:
        watched = min((now, *_given(experiment.stopped_at, control.paused_at, arm.paused_at)))
        judged = min(watched, planned_end) if experiment.options.looks == "planned" else watched
        found.append(Ends(judged=judged, watched=watched))
    return tuple(found)


def _given(*times: datetime | None) -> tuple[datetime, ...]:
    return tuple(time for time in times if time is not None)

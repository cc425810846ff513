"""What a report's queries find, against sums by hand over the same random messages."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import floor
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from msgspec import structs

from appliance.errors import ConfigError, InvalidRequest
from appliance.experiment.measuring import NobodyYet, measure, measure_history
from appliance.experiment.metric_files import load_metrics
from appliance.experiment.samples import Measured
from appliance.store.experiment_records import Experiment, Options
from appliance.store.experiments import Experiments
from appliance.store.pool import Pool
from tests.experiment_drafts import a_draft

WHO: dict[str, Any] = {"author": "ana", "message": "let us see"}
NOW = datetime.now(UTC).replace(microsecond=0)
STARTED = NOW - timedelta(days=10)
VERSIONS = {"control": "a" * 64, "other": "b" * 64, "third": "d" * 64}
WARM_UP = 600
OPTIONS = Options(warm_up_minutes=WARM_UP, before_days=7)
PAUSE = "UPDATE appliance.experiment_arms SET paused_at = $1 WHERE arm = "
ENDS = {
    "it runs": (OPTIONS, "", NOW, {}),
    "it was stopped": (
        OPTIONS,
        "UPDATE appliance.experiments SET state = 'stopped', stopped_at = $1",
        STARTED + timedelta(days=8),
        {},
    ),
    "the planned look is past": (
        structs.replace(OPTIONS, looks="planned", days=6),
        "",
        STARTED + timedelta(days=6),
        {"other watched": NOW, "third watched": NOW},
    ),
    "an arm was paused": (
        OPTIONS,
        f"{PAUSE}'other'",
        NOW,
        {"other judged": (paused := STARTED + timedelta(days=5)), "other watched": paused},
    ),
    "the control was paused": (OPTIONS, f"{PAUSE}'control'", STARTED + timedelta(days=5), {}),
}
"""Why nothing later counts: the options, what else was done, until when the figures count, and those that
do until another time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message as it is stored."""

    conversation: Talk
    role: str
    at: datetime
    version: str | None = None
    finish: str | None = None
    prompt: int | None = None
    hit: int | None = None
    tokens: int = 0
    ttft: int | None = None
    ended: int | None = None
    is_edit: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation as it is stored."""

    key: UUID
    tenant: str
    user: str | None
    character: str
    arm: str | None
    opened: datetime
    exposed: datetime | None
    failed: tuple[datetime, ...] = ()

    @property
    def person(self) -> tuple[str, str]:
        return self.tenant, self.user or ""


def random_talks(draw: random.Random, people: int) -> list[Talk]:
    talks = []
    for number in range(people):
        tenant = draw.choice(("acme", "zeta"))
        user = f"user {number}" if number else None
        arm = draw.choice(tuple(VERSIONS))
        for _ in range(draw.randint(1, 4)):
            # Nothing is within two hours after NOW's time of day: the database's clock goes on meanwhile.
            opened = STARTED + timedelta(
                days=draw.randint(-12, 8), seconds=draw.randint(7_200, 80_000)
            )
            is_in = opened >= STARTED and draw.random() < 0.8
            mine = arm if number % 2 or draw.random() < 0.5 else draw.choice(tuple(VERSIONS))
            talks.append(
                Talk(
                    key=uuid4(),
                    tenant=tenant,
                    user=user,
                    character="ada" if is_in else draw.choice(("ada", "mara")),
                    arm=mine if is_in else None,
                    opened=opened,
                    exposed=opened + timedelta(seconds=draw.choice((0, 30)))
                    if is_in and draw.random() < 0.9
                    else None,
                    failed=tuple(
                        opened + timedelta(seconds=draw.choice((0, 100, 200_000)))
                        for _ in range(draw.choice((0, 0, 0, 3)) if is_in else 0)
                    ),
                )
            )
    return talks


def random_messages(draw: random.Random, talk: Talk) -> Iterator[Said]:
    at = talk.exposed or talk.opened
    version = None if talk.arm is None else VERSIONS[talk.arm]
    if draw.random() < 0.3:
        yield Said(conversation=talk, role="assistant", at=talk.opened, finish="stop")
    if talk.arm is not None and talk.exposed is None:
        return
    for _ in range(draw.randint(1, 12)):
        if draw.random() < 0.8:
            yield Said(conversation=talk, role="user", at=at, is_edit=draw.random() < 0.1)
        prompt = draw.randint(1, 500)
        moved = draw.random() < 0.05
        yield Said(
            conversation=talk,
            role="assistant",
            at=at,
            version="c" * 64 if moved else version,
            finish=draw.choice(("stop", "stop", "length", "cancelled", "failed")),
            prompt=prompt,
            hit=draw.randint(0, prompt),
            tokens=draw.randint(0, 30),
            ttft=draw.choice((None, draw.randint(0, 5000))),
            ended=draw.randint(0, 20_000),
            is_cut=draw.random() < 0.2,
        )
        at += timedelta(seconds=draw.choice((5, 50, 500, 86_400)))
        if at >= NOW:
            return


async def store(
    pool: Pool,
    talks: list[Talk],
    said: list[Said],
    overrides: dict[str, str],
    options: Options = OPTIONS,
) -> None:
    for version in VERSIONS.values():
        await pool.execute(
            "INSERT INTO appliance.prompt_versions (name, version, author, message) "
            "VALUES ('ada', $1, 'a', 'b')",
            version,
        )
    await Experiments(pool).create(an_experiment(overrides, options), **WHO)
    await Experiments(pool).start("ships", check=lambda others: None, **WHO)
    await pool.execute("UPDATE appliance.experiments SET started_at = $1", STARTED)
    await pool.executemany(
        "INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, user_id, "
        "experiment, arm, created_at, updated_at, exposed_at, failed_at) "
        "VALUES ($1,$2,'',$3,$4,$5,$6,$7,$7,$8,$9)",
        [
            (
                *(t.tenant, t.key, t.character, t.user, t.arm and "ships", t.arm, t.opened),
                *(t.exposed, list(t.failed) or None),
            )
            for t in talks
        ],
    )
    await pool.executemany(
        "INSERT INTO appliance.messages (tenant, conversation_id, message_id, turn_key, depth, role, "
        "text, created_at, prompt_version, finish_reason, prompt_tokens, prefix_hit_tokens, token_ids, "
        "ttft_ms, reply_ms, is_edit, anchor_id) "
        "VALUES ($1,$2,$3,$4,0,$5,'x',$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)",
        [
            (
                *(m.conversation.tenant, m.conversation.key, uuid4(), uuid4(), m.role, m.at),
                *(m.version, m.finish, m.prompt, m.hit, bytes(4 * m.tokens), m.ttft, m.ended),
                *(m.is_edit or None, uuid4() if m.is_cut else None),
            )
            for m in said
        ],
    )


def an_experiment(overrides: dict[str, str], options: Options = OPTIONS) -> Experiment:
    return a_draft(VERSIONS, overrides=overrides, options=options, created_at=NOW)


Person = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
    """`people` in order, the `arms` that they are in, sums by name and person, who is in two arms, and
    from when on the cache of an arm is warm."""

    people: list[Person]
    arms: dict[Person, str]
    sums: dict[str, dict[Person, float]]
    crossed: set[Person]
    warm_at: dict[str, datetime]


def by_hand(
    talks: list[Talk], said: list[Said], overrides: dict[str, str], ends: datetime
) -> ByHand:
    """Counts everything that came before a time."""
    arms: dict[Person, set[str]] = defaultdict(set)
    exposed: dict[Person, datetime] = {}
    for talk in talks:
        if talk.exposed is not None and talk.exposed < ends and talk.arm is not None:
            arms[talk.person].add(talk.arm)
            exposed[talk.person] = min(exposed.get(talk.person, talk.exposed), talk.exposed)
    testers = {person for person in arms if "/".join(filter(None, person)) in overrides}
    crossed = {person for person in arms if len(arms[person]) > 1} - testers
    people = sorted(arms.keys() - crossed - testers)
    own = {person: next(iter(arms[person])) for person in people}
    warm_at = {
        arm: min((exposed[person] for person in people if own[person] == arm), default=ends)
        + timedelta(minutes=WARM_UP)
        for arm in VERSIONS
    }
    sums: dict[str, dict[Person, float]] = defaultdict(lambda: defaultdict(float))
    minutes: dict[str, set[tuple[Person, int]]] = defaultdict(set)
    for talk in talks:
        if talk.person in own and talk.opened < ends:
            began = talk.opened >= exposed[talk.person] or talk.exposed == exposed[talk.person]
            sums["conversations"][talk.person] += began
            recent = STARTED - timedelta(days=7) <= talk.opened < STARTED
            sums["conversations_before"][talk.person] += recent
        if talk.person in own:
            failed = sum(exposed[talk.person] <= at < ends for at in talk.failed)
            for name in ("failed", "tried"):
                sums[name][talk.person] += failed
    for one in said:
        person = one.conversation.person
        if one.role == "assistant" and one.prompt is None:
            continue  # A greeting: nobody has said anything.
        if person not in own or not STARTED - timedelta(days=7) <= one.at < ends:
            continue
        before, after = one.at < STARTED, one.at >= exposed[person]
        minute = (person, floor(one.at.timestamp() / 60))
        if before:
            minutes["minutes_before"].add(minute)
            here = one.conversation.character == "ada"
        elif after:
            minutes["minutes"].add(minute)
            day = floor((one.at - exposed[person]).total_seconds() / 86400)
            for number in (1, 7):
                if day == number and ends - exposed[person] >= timedelta(days=number + 1):
                    sums[f"returned_day_{number}"][person] = 1
            here = one.conversation.arm is not None
            here = here and one.version in (None, VERSIONS[own[person]])
        else:
            continue
        end = "_before" if before else ""
        sums[f"sent{end}"][person] += one.role == "user"
        if not here:
            continue
        is_warm = before or one.at >= warm_at[own[person]]
        sums[f"edits{end}"][person] += one.is_edit
        if one.role == "user":
            sums[f"answered{end}"][person] += 1
            continue
        assert one.prompt is not None
        assert one.hit is not None
        sums[f"replies{end}"][person] += 1
        sums[f"tried{end}"][person] += 1
        sums[f"stopped{end}"][person] += one.finish == "cancelled"
        sums[f"failed{end}"][person] += one.finish == "failed"
        sums[f"truncated{end}"][person] += one.is_cut
        if is_warm:
            minutes[f"warm_minutes{end}"].add(minute)
            sums[f"warm_cost_tokens{end}"][person] += one.prompt - one.hit + one.tokens
            sums[f"warm_replies{end}"][person] += 1
            sums[f"warm_prompt_tokens{end}"][person] += one.prompt
            sums[f"warm_hit_tokens{end}"][person] += one.hit
            sums[f"warm_computed_tokens{end}"][person] += one.prompt - one.hit
    for end in ("", "_before"):
        for person in people:
            replies, sent = sums[f"replies{end}"][person], sums[f"answered{end}"][person]
            sums[f"regenerated{end}"][person] = max(0, replies - sent)
    for name, found in minutes.items():
        for person, _ in found:
            sums[name][person] += 1
    for number in (1, 7):
        for person in people:
            if ends - exposed[person] >= timedelta(days=number + 1):
                sums[f"seen_day_{number}"][person] = 1
    return ByHand(people=people, arms=own, sums=sums, crossed=crossed, warm_at=warm_at)


def column(measured: Measured, reference: str) -> Any:
    """What was measured of `file.column`."""
    for one in measured.sums:
        if one.metric.numerator == reference:
            return one.numerator
        if one.metric.denominator == reference:
            return one.denominator
        if f"{one.metric.numerator}_before" == reference:
            return one.before
        if one.metric.denominator and f"{one.metric.denominator}_before" == reference:
            return one.before_denominator
    raise AssertionError(reference)


@pytest.mark.parametrize("why", ENDS)
async def test_all_figures_are_those_of_a_count_by_hand(pool: Pool, why: str) -> None:
    options, done, ends, others = ENDS[why]
    draw = random.Random(f"{why}, all of it")
    talks = random_talks(draw, 250)
    said = [one for talk in talks for one in random_messages(draw, talk)]
    overrides = {"acme/user 5": "control", "zeta/user 5": "other", "acme/user 6": "other"}
    await store(pool, talks, said, overrides, options)
    if done:
        await pool.execute(done, ends if not others else next(iter(others.values())))
    experiment = await Experiments(pool).get("ships")
    measured = await measure(pool, experiment, load_metrics())
    # The same time is not measured twice.
    assert len({id(one) for one in measured.judged.values()} | {id(measured)}) <= 3
    found = by_hand(talks, said, overrides, ends)
    assert found.crossed, "the case is there"
    looked_at = as_by_hand(measured, found)
    assert looked_at > 8
    times_by_hand(measured, found, said, ends)
    for arm in ("other", "third"):
        for kind, one in (("judged", measured.judged[arm]), ("watched", measured.watched[arm])):
            until = others.get(f"{arm} {kind}", ends)
            as_by_hand(one, by_hand(talks, said, overrides, until))
            assert one.hours == pytest.approx((until - STARTED).total_seconds() / 3600, abs=2)


def as_by_hand(measured: Measured, found: ByHand) -> int:
    """How many figures have a past that is as it was counted, as they are."""
    names = list(VERSIONS)
    assert measured.users.crossed == len(found.crossed)
    assert measured.users.arm.tolist() == [names.index(found.arms[one]) for one in found.people]
    references = {one.metric.numerator for one in measured.sums}
    references |= {one.metric.denominator for one in measured.sums if one.metric.denominator}
    looked_at = 0
    for reference in sorted(references):
        name = reference.partition(".")[2]
        expected = [found.sums[name][person] for person in found.people]
        assert column(measured, reference).tolist() == expected, reference
        past = found.sums.get(f"{name}_before")
        if past is not None and column(measured, f"{reference}_before") is not None:
            expected = [past[person] for person in found.people]
            assert column(measured, f"{reference}_before").tolist() == expected, reference
            looked_at += 1
    return looked_at


def times_by_hand(measured: Measured, found: ByHand, said: list[Said], ends: datetime) -> None:
    """What was found in the cache while it was cold, and the times of full messages, by arm."""
    times = next(one for one in measured.observations if one.metric.name == "reply_time_p50")
    for place, arm in enumerate(VERSIONS):
        mine = [
            one
            for one in said
            if one.prompt is not None
            and found.arms.get(one.conversation.person) == arm
            and one.conversation.arm is not None
            and one.version == VERSIONS[arm]
            and one.at < ends
        ]
        early = [one for one in mine if one.at < found.warm_at[arm]]
        hits = sum(one.hit or 0 for one in early) / max(1, sum(one.prompt or 0 for one in early))
        assert (measured.warm_up_hit_ratio[place] or 0) == pytest.approx(hits)
        values = sorted(
            one.ended for one in mine if one.finish in ("stop", "length") and one.ended is not None
        )
        here = measured.users.arm[times.user] == place
        counted = np.repeat(times.value[here], times.count[here])
        assert np.sort(counted) == pytest.approx(np.array(values), rel=0.006, abs=0.01)


async def test_a_report_is_never_silently_empty(pool: Pool, tmp_path: Path) -> None:
    await store(pool, [], [], {"acme/tester": "other"})
    experiment = await Experiments(pool).get("ships")
    with pytest.raises(NobodyYet, match="nobody has had a prompt of it yet: 0 conversations"):
        await measure(pool, experiment, load_metrics())
    (tmp_path / "metrics.yaml").write_text(
        "- {name: own, title: Own, unit: x, direction: up, numerator: own.x, group: quality}"
    )
    with pytest.raises(ConfigError, match=r"own\.sql: No such file"):
        load_metrics(tmp_path)
    talk = Talk(
        key=uuid4(),
        tenant="acme",
        user="mo",
        character="ada",
        arm="other",
        opened=STARTED,
        exposed=STARTED,
    )
    await pool.execute(
        "INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, user_id, "
        "experiment, arm, exposed_at) VALUES ('acme', $1, '', 'ada', 'mo', 'ships', 'other', now())",
        talk.key,
    )
    for sql, told in (
        ("SELECT person, NULL::float8 AS x FROM appliance.experiment_people($1::text)", "is null"),
        ("SELECT person, 'a' AS x FROM appliance.experiment_people($1::text)", "is of type text"),
        ("SELECT person, 1 AS y FROM appliance.experiment_people($1::text)", "has no column 'x'"),
        ("SELECT person, 1 AS x FROM appliance.experiment_people($1::text)", ""),
    ):
        (tmp_path / "own.sql").write_text(sql)
        metrics = load_metrics(tmp_path)
        if told:
            with pytest.raises(InvalidRequest, match=told) as fault:
                await measure(pool, experiment, metrics)
            assert not isinstance(fault.value, NobodyYet), "no reason to look away"
            continue
        measured = await measure(pool, experiment, metrics)
        assert measured.users.counts == (0, 1, 0)
        by_name = {one.metric.name: one for one in measured.sums}
        assert by_name["own"].numerator.tolist() == [1.0]
        assert by_name["hit_ratio"].is_empty, "no data is told apart from nothing"


async def test_a_draft_is_measured_as_if_it_had_begun_and_leaves_nothing(pool: Pool) -> None:
    draft = an_experiment({"acme/user 3": "other"}, structs.replace(OPTIONS, days=10))
    with pytest.raises(NobodyYet, match="nobody opened a chat with ada in the last 10 days"):
        await measure_history(pool, draft, load_metrics())
    draw = random.Random(3)
    talks = random_talks(draw, 150)
    said = [one for talk in talks for one in random_messages(draw, talk)]
    await store(pool, talks, said, {})
    measured = await measure_history(pool, draft, load_metrics())
    opened: dict[Person, datetime] = {}
    for talk in talks:
        if talk.character == "ada" and talk.opened >= STARTED + timedelta(seconds=5):
            opened[talk.person] = min(opened.get(talk.person, talk.opened), talk.opened)
    people = sorted(opened.keys() - {("acme", "user 3")})
    assert len(people) > 80
    assert measured.users.counts == (len(people), 0, 0)
    for reference, has_ended in (("replies.sent", False), ("replies.sent_before", True)):
        expected = [
            sum(
                one.role == "user"
                and one.conversation.person == person
                and (one.at < STARTED if has_ended else one.at >= opened[person])
                and one.at >= STARTED - timedelta(days=7)
                for one in said
            )
            for person in people
        ]
        assert column(measured, reference).tolist() == expected, reference
    assert [one.name for one in await Experiments(pool).all()] == ["ships"], "nothing is kept"
    assert await pool.fetchval("SELECT count(*) FROM appliance.experiment_events") == 2

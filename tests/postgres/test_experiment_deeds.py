"""Deeds with experiments whose answer is lost, or that somebody else has done: done once, told truly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from appliance.errors import Conflict, LabelProtected
from appliance.store import pool as pools
from appliance.store.experiment_records import Experiment
from appliance.store.experiments import QUERIES, Experiments, store_end
from appliance.store.pool import Connection, Pool
from appliance.store.prompt_registry import PromptRegistry
from tests.experiment_drafts import a_draft

WHO: dict[str, Any] = {"author": "ana", "message": "let us see"}
OTHER: dict[str, Any] = {"author": "bo", "message": "let us see"}
VERSIONS = {"birds": "a" * 64, "ships": "b" * 64}
transacted = pools.transacted

Deed = Callable[..., Awaitable[Any]]


@dataclass(slots=True)
class Line:
    """The way to the database. `loses`: the next commit's answer is lost. `before`: the next transaction
    is lost before it is committed, and this happens before it is tried again."""

    loses: bool = False
    before: Callable[[], Awaitable[Any]] | None = None

    @asynccontextmanager
    async def transacted(self, pool: Pool) -> AsyncIterator[Connection]:
        before, self.before = self.before, None
        loses, self.loses = self.loses, False
        try:
            async with transacted(pool) as connection:
                yield connection
                if before is not None:
                    raise ConnectionResetError
        finally:
            if before is not None:
                await before()
        if loses:
            raise ConnectionResetError


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    made = Line()
    monkeypatch.setattr(pools, "transacted", made.transacted)
    return made


@pytest.fixture
async def store(pool: Pool) -> Experiments:
    return await published(pool)


async def published(pool: Pool) -> Experiments:
    """Experiments on two versions of Ada, the first of which everybody has."""
    registry = PromptRegistry(pool)
    for version in VERSIONS.values():
        await registry.publish("ada", version, {"x": version.encode()}, **WHO)
    await registry.move("ada", "production", VERSIONS["birds"], seen=None, **WHO)
    return Experiments(pool)


DRAFT = a_draft(VERSIONS, coverage=0.1)


def deeds(store: Experiments, pool: Pool) -> dict[str, Deed]:
    """A whole life, deed after deed, by the kinds of their events."""

    async def ship(*, author: str, message: str) -> Any:
        who = {"author": author, "message": message}

        async def end(connection: Connection) -> None:
            if not await store_end(
                connection, "ships", "shipped", arm="ships", report='{"n": 2}', **who
            ):
                raise Conflict("it does not run")

        birds, ships = VERSIONS.values()
        return await PromptRegistry(pool).move(
            "ada", "production", ships, seen=birds, also=end, author=author, message=message
        )

    return {
        "created": lambda **who: store.create(DRAFT, **who),
        "started": lambda **who: store.start("ships", check=lambda others: None, **who),
        "ramped": lambda **who: store.ramp("ships", 0.5, check=lambda others: None, **who),
        "paused": lambda **who: store.pause("ships", "ships", **who),
        "stopped": lambda **who: store.end("ships", "stopped", arm=None, report='{"n": 1}', **who),
        "shipped": ship,
    }


async def test_a_deed_whose_answer_was_lost_is_done_once_and_told_as_done(
    pool: Pool, store: Experiments, line: Line
) -> None:
    told = []
    for deed in deeds(store, pool).values():
        line.loses = True
        told.append(await deed(**WHO))
    assert told[3] is True, "it was this one that paused the arm"
    assert told[5].to_version == VERSIONS["ships"], "and moved the label"
    events = await store.events("ships")
    assert [event.kind for event in events] == list(deeds(store, pool))
    assert await store.report("ships") == '{"n": 2}', "the last one"
    assert [one.version for one in await store.shipped("ada")] == [VERSIONS["ships"]]
    assert await store.shipped("mara") == ()
    assert len(await PromptRegistry(pool).moves("ada")) == 2


async def test_a_ramp_asks_while_no_other_experiment_can_start(store: Experiments) -> None:
    await store.create(DRAFT, **WHO)
    await store.start("ships", check=lambda others: None, **WHO)
    seen: list[str] = []

    def refuse(others: Sequence[Experiment]) -> None:
        seen.extend(other.name for other in others)
        raise Conflict("another leaves them out")

    with pytest.raises(Conflict, match="leaves them out"):
        await store.ramp("ships", 0.5, check=refuse, **WHO)
    assert seen == ["ships"]
    assert (await store.get("ships")).coverage < 0.5


async def test_the_pause_of_one_arm_is_not_taken_for_that_of_another(
    store: Experiments, line: Line
) -> None:
    await store.create(DRAFT, **WHO)
    await store.start("ships", check=lambda others: None, **WHO)
    assert await store.pause("ships", "ships", **WHO)
    line.before = lambda: store.pause("ships", "birds", **OTHER)
    assert await store.pause("ships", "birds", **WHO) is False


IN_TURN = {
    "created": {"started"},
    "started": {"ramped", "paused", "stopped", "shipped"},
    "ramped": {"paused", "stopped", "shipped"},
    "paused": {"stopped", "shipped"},
    "stopped": {"shipped"},
    "shipped": set[str](),
}
"""What can be done after a deed; each of them once."""


async def test_a_deed_out_of_turn_changes_nothing(pool: Pool, store: Experiments) -> None:
    registry, all_deeds = PromptRegistry(pool), deeds(store, pool)

    async def known() -> Any:
        return await store.all(), await store.events("ships"), await registry.labels("ada")

    for kind, deed in all_deeds.items():
        await deed(**WHO)
        before = await known()
        for other in all_deeds.keys() - IN_TURN[kind]:
            with suppress(Conflict):
                assert await all_deeds[other](**WHO) in (False, None)
            assert await known() == before, f"{other} after {kind}"


async def test_who_starts_one_waits_for_whoever_starts_another_and_sees_it(
    pool: Pool, store: Experiments
) -> None:
    await store.create(DRAFT, **WHO)
    seen: list[Sequence[Experiment]] = []
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
    async with pool.acquire() as other, other.transaction():
        await other.execute(QUERIES["lock_experiments"])
        start = asyncio.create_task(store.start("ships", check=seen.append, **WHO))
        async with asyncio.timeout(30):
            while not start.done() and not await pool.fetchval(waits):
                await asyncio.sleep(0.01)
        assert not start.done()
        assert not seen
    await start
    assert [one.name for one in seen[-1]] == ["ships"]


async def test_a_move_of_long_ago_is_not_taken_for_one_whose_answer_was_lost(
    pool: Pool, store: Experiments, line: Line
) -> None:
    registry, (birds, ships) = PromptRegistry(pool), tuple(VERSIONS.values())
    await pool.execute(
        "INSERT INTO appliance.prompt_moves (name, label, from_version, to_version, protected, author, "
        "message, moved_at) VALUES ('ada', 'production', $1, $2, false, 'ana', 'let us see', "
        "now() - interval '1 day')",
        birds,
        ships,
    )
    await registry.move("ada", "production", birds, seen=birds, protect=True, **WHO)

    async def nothing() -> None:
        return None

    line.before = nothing
    with pytest.raises(LabelProtected):
        await registry.move("ada", "production", ships, seen=birds, **WHO)


async def test_of_a_deed_that_somebody_else_has_done_meanwhile_the_second_try_says_so(
    pool: Pool, store: Experiments, line: Line
) -> None:
    for kind, deed in deeds(store, pool).items():
        line.before = lambda deed=deed: deed(**OTHER)
        if kind == "paused":
            assert await deed(**WHO) is False
            continue
        if kind == "shipped":
            assert await deed(**WHO) is None, "the label is there, and somebody else moved it"
            continue
        with pytest.raises(Conflict):
            await deed(**WHO)
    events = await store.events("ships")
    assert [(event.kind, event.author) for event in events] == [
        (kind, "bo") for kind in deeds(store, pool)
    ]

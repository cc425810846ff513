"""Conversations in an experiment: pinned when they are opened, exposed once, at no query a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from appliance.chat import trials as trials_module
from appliance.chat.catalog import Catalog
from appliance.chat.conversations import Conversations
from appliance.chat.experimenting import Experimenting
from appliance.chat.params import ChatLimits
from appliance.chat.plan import Planner
from appliance.chat.running import RunningTurns
from appliance.chat.trials import Trials
from appliance.chat.turn import Turns
from appliance.config import DatabaseConfig
from appliance.errors import (
    Conflict,
    ContextLengthExceeded,
    GenerationFailed,
    InvalidRequest,
    NotFound,
    TemplateError,
)
from appliance.experiment.definition import ArmDefinition, Definition
from appliance.prompt.bundle import Bundle
from appliance.prompt.characters import Characters, CharacterVersion
from appliance.prompt.chat_format.model_text import ModelText
from appliance.store import prompt_registry
from appliance.store.entries import ConversationEntry, decode, encode
from appliance.store.experiment_records import Arm, Experiment, Options
from appliance.store.experiments import Experiments
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool, connect
from appliance.store.prompt_registry import PromptRegistry
from appliance.store.records import ConversationChange, NewConversation, Trial
from appliance.store.rows import opened_conversation
from appliance.wire.client import EngineClient
from tests.characters import bundle_of
from tests.scripted_engine import Script, ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import PLAIN, TENANT, read, send
from tests.unit.chat.test_without_database import Lent

WHO: dict[str, Any] = {"author": "ana", "message": "let us see"}


@pytest.fixture
async def versions(catalog: Catalog) -> tuple[str, str]:
    """Two published versions of the character `assistant`."""
    made = []
    for system in ("Be brief.", "Be long."):
        bundle: Bundle = bundle_of("assistant", system=system)
        version = CharacterVersion.of(bundle).version
        await catalog.registry.publish("assistant", version, bundle.files, **WHO)
        made.append(version)
    return made[0], made[1]


def two_arms(versions: tuple[str, str], **fields: Any) -> Experiment:
    given: dict[str, Any] = {
        "name": "length",
        "character": "assistant",
        "hypothesis": "Longer replies hold users longer.",
        "layer": "assistant",
        "salt": "length",
        "range_start": 0.0,
        "range_end": 1.0,
        "coverage": 1.0,
        "excludes": (),
        "overrides": {},
        "options": Options(),
        "arms": (
            Arm(name="brief", share=0.5, version=versions[0]),
            Arm(name="long", share=0.5, version=versions[1]),
        ),
        "state": "draft",
        "created_at": datetime.now(UTC),
        **fields,
    }
    return Experiment(**given)


@pytest.fixture
async def trials(pool: Pool, versions: tuple[str, str]) -> Trials:
    """A snapshot with one running experiment."""
    store = Experiments(pool)
    await store.create(two_arms(versions), **WHO)
    await store.start("length", check=lambda others: None, **WHO)
    made = Trials()
    await made.reload(store)
    return made


@pytest.fixture
async def chatting(
    pool: Pool,
    ledger: Ledger,
    running: RunningTurns,
    client: EngineClient,
    model: ModelText,
    catalog: Catalog,
    trials: Trials,
) -> Any:
    """(turns, conversations) of a server where the experiment runs."""
    turns = Turns(
        ledger=ledger,
        running=running,
        engine=client,
        model=model,
        catalog=catalog,
        limits=ChatLimits(),
        trials=trials,
        keep_failure=Experiments(pool).add_failure,
    )
    yield (
        turns,
        Conversations(ledger=ledger, running=running, catalog=catalog, trials=trials),
    )
    await turns.close()


async def test_who_is_left_out_of_one_stays_out_when_the_other_ends(
    pool: Pool, versions: tuple[str, str]
) -> None:
    store, made = Experiments(pool), Trials()
    half = two_arms(versions, name="half", salt="half", coverage=0.5)
    later = two_arms(versions, name="later", salt="later", layer="later", excludes=("half",))
    for one in (half, later):
        await store.create(one, **WHO)
        await store.start(one.name, check=lambda others: None, **WHO)

    async def experiments() -> list[str | None]:
        await made.reload(store)
        found = [made.of("assistant", TENANT, f"user {number}") for number in range(200)]
        return [None if one is None else one.trial.experiment for one in found]

    before = await experiments()
    assert set(before) == {"half", "later"}
    assert made.of("mara", TENANT, "user 1") is None, "they are on another character"
    await store.end("half", "stopped", arm=None, report=None, **WHO)
    assert await experiments() == [None if name == "half" else name for name in before]


async def test_a_draft_that_one_excludes_leaves_nobody_out_of_it_yet(
    pool: Pool, versions: tuple[str, str]
) -> None:
    store, made = Experiments(pool), Trials()
    await store.create(two_arms(versions, name="half", salt="half"), **WHO)
    await store.create(two_arms(versions, name="later", layer="later", excludes=("half",)), **WHO)
    await store.start("later", check=lambda others: None, **WHO)
    await made.reload(store)
    assert [one.name for one in await store.running()] == ["later"]
    assert made.of("assistant", TENANT, "mo") is not None


async def test_what_another_server_did_is_seen_soon_and_the_last_snapshot_serves_a_database_at_fault(
    pool: Pool,
    versions: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(trials_module, "POLL_S", 0.01)
    monkeypatch.setattr(trials_module, "AWAY_POLL_S", 0.01)
    store, made = Experiments(pool), Trials()
    await store.create(two_arms(versions), **WHO)

    async def until(what: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not what():
                await asyncio.sleep(0.01)

    def is_in() -> bool:
        return made.of("assistant", TENANT, "mo") is not None

    watching = asyncio.create_task(made.watch(store))
    await store.start("length", check=lambda others: None, **WHO)
    await until(is_in)
    # As while a schema is restored.
    await pool.execute("ALTER TABLE appliance.experiments RENAME TO elsewhere")
    await until(lambda: "experiments_not_read" in caplog.messages)
    assert is_in()
    await pool.execute("ALTER TABLE appliance.elsewhere RENAME TO experiments")
    await store.end("length", "stopped", arm=None, report=None, **WHO)
    await until(lambda: not is_in())
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_a_chat_is_opened_without_an_arm_while_its_version_cannot_be_read(
    ledger: Ledger,
    running: RunningTurns,
    trials: Trials,
    characters: Characters,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_registry, "READ_RETRY_S", 0.1)
    away = await connect("postgresql://nobody@127.0.0.1:1/nothing", DatabaseConfig())
    catalog = Catalog(PromptRegistry(away), current=characters)
    chats = Conversations(ledger=ledger, running=running, catalog=catalog, trials=trials)
    opened = await chats.open(tenant=TENANT, user="mo")
    assert (opened.trial, opened.prompt_version) == (None, None)
    assert await chats.get(tenant=TENANT, conversation_id=opened.conversation_id) == opened
    await away.close()


async def exposures(pool: Pool, conversation_id: UUID) -> Any:
    return await pool.fetchrow(
        "SELECT user_id, experiment, arm, exposed_at, prompt_version FROM appliance.conversations "
        "WHERE conversation_id = $1",
        conversation_id,
    )


async def test_a_user_is_pinned_at_the_start_and_exposed_once_with_the_statements_of_any_turn(
    pool: Pool,
    ledger: Ledger,
    chatting: Any,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    versions: tuple[str, str],
) -> None:
    turns, conversations = chatting
    engine.script = vocabulary.script("one", " two", leaves_node=True)
    opened = await conversations.open(tenant=TENANT, user="mo")
    before = await exposures(pool, opened.conversation_id)
    assert before["exposed_at"] is None, "who was only assigned has seen nothing"
    arms = {"brief": versions[0], "long": versions[1]}
    assert before["prompt_version"] == opened.prompt_version == arms[before["arm"]]
    async with pool.acquire() as connection:
        lent: Any = Lent(connection)
        ledger._pool = ledger._writer._pool = lent
        await read(send(turns, opened.conversation_id, "first"))
        assert set(lent.taken()) == {"get_conversation", "BEGIN", "append_turn", "COMMIT"}
        for number in range(3):
            await read(send(turns, opened.conversation_id, f"warm {number}"))
            assert lent.taken() == ["get_conversation", "BEGIN", "append_turn", "COMMIT"]
    ledger._pool = ledger._writer._pool = pool
    tree = await ledger.messages(TENANT, opened.conversation_id)
    seen = await exposures(pool, opened.conversation_id)
    assert seen["exposed_at"] == tree[0].created_at, "at the first turn, and never again"
    times = await pool.fetch(
        "SELECT ttft_ms, reply_ms FROM appliance.messages WHERE role = 'assistant'"
    )
    assert len(times) == 4
    assert all(0 <= row["ttft_ms"] <= row["reply_ms"] for row in times)


@pytest.mark.parametrize(
    ("greetings", "is_seen"),
    [
        (("Hello.", "Ahoy!"), True),
        (("", "Ahoy!"), True),
        (("Hello.", "Hello."), False),
        (("", ""), False),
    ],
)
async def test_who_is_greeted_otherwise_is_exposed_when_the_chat_is_opened_by_the_same_statement(
    pool: Pool,
    ledger: Ledger,
    running: RunningTurns,
    turns: Turns,
    catalog: Catalog,
    greetings: tuple[str, str],
    is_seen: bool,
) -> None:
    arms = []
    for number, greeting in enumerate(greetings):
        made = bundle_of("assistant", system=f"You are number {number}.", greeting=greeting)
        await catalog.registry.publish("assistant", made.version, made.files, **WHO)
        arms.append(ArmDefinition(name=f"arm-{number}", version=made.version))
    store, trials = Experiments(pool), Trials()
    deeds = Experimenting(experiments=store, trials=trials, catalog=catalog, prompts=turns.prompts)
    definition = Definition(name="hello", hypothesis="h", arms=arms, primary=["messages_sent"])
    await deeds.create(definition, **WHO)
    await deeds.start("hello", coverage=None, **WHO)
    conversations = Conversations(ledger=ledger, running=running, catalog=catalog, trials=trials)
    async with pool.acquire() as connection:
        lent: Any = Lent(connection)
        ledger._pool = ledger._writer._pool = lent
        opened = [await conversations.open(tenant=TENANT, user="u0")]
        lent.taken()  # with what the driver asks once
        opened += [await conversations.open(tenant=TENANT, user=f"u{n}") for n in range(1, 12)]
        assert lent.taken() == ["BEGIN", "open_conversation", "COMMIT"] * 11
    ledger._pool = ledger._writer._pool = pool
    shown = {True: 0, False: 0}
    for one in opened:
        seen = (await exposures(pool, one.conversation_id))["exposed_at"]
        shown[seen is not None] += 1
        assert seen in (None, one.created_at), "at the first render that differs"
    assert shown == {is_seen: 12, not is_seen: 0}, "in both arms alike"
    by_arm = await store.counts("hello")
    assert [one.exposed for one in by_arm] == [one.conversations * is_seen for one in by_arm]


async def failures(pool: Pool, conversation_id: UUID) -> tuple[int, bool]:
    """How many failed replies are kept of a chat, and whether it is exposed."""
    row = await pool.fetchrow(
        "SELECT coalesce(cardinality(failed_at), 0) AS failed, exposed_at IS NOT NULL AS is_exposed "
        "FROM appliance.conversations WHERE conversation_id = $1",
        conversation_id,
    )
    assert row is not None
    return row["failed"], row["is_exposed"]


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (TemplateError("a value is not defined"), True),
        (ContextLengthExceeded("too long"), True),
        (ZeroDivisionError(), True),
        (InvalidRequest("no text"), False),
        (NotFound("no message"), False),
        (Conflict("it moved on"), False),
    ],
)
async def test_a_prompt_that_cannot_be_made_is_kept_as_a_failed_reply_and_what_cannot_be_asked_is_not(
    pool: Pool, chatting: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, is_kept: bool
) -> None:
    turns, conversations = chatting
    opened = await conversations.open(tenant=TENANT, user="mo")

    async def fails(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(Planner, "_answering", fails)
    for _ in range(2):
        with pytest.raises(type(error)):
            await read(send(turns, opened.conversation_id, "first"))
    await turns.close()
    expected = (2, True) if is_kept else (0, False)
    assert await failures(pool, opened.conversation_id) == expected


async def test_a_reply_that_fails_before_its_first_token_is_kept_once_and_only_of_the_arms_version(
    pool: Pool,
    ledger: Ledger,
    chatting: Any,
    trials: Trials,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    versions: tuple[str, str],
) -> None:
    turns, conversations = chatting
    engine.script = Script(fails="generation_failed", is_admitted=False)
    opened = [await conversations.open(tenant=TENANT, user=f"u{number}") for number in range(3)]
    keys = [one.conversation_id for one in opened]
    other = next(version for version in versions if version != opened[1].prompt_version)
    await ledger.change(TENANT, keys[1], ConversationChange(prompt_version=other))

    async def fails(key: UUID) -> None:
        with pytest.raises(GenerationFailed):
            await read(send(turns, key, "first"))
        await turns.close()

    for key in keys[:2]:
        await fails(key)
    assert [await failures(pool, key) for key in keys] == [(1, True), (0, False), (0, False)]
    seen = await exposures(pool, keys[0])
    engine.script = vocabulary.script("one", fails="generation_failed")
    await fails(keys[0])
    assert await failures(pool, keys[0]) == (1, True), "one that broke off is a message"
    assert await exposures(pool, keys[0]) == seen, "exposed once"
    await Experiments(pool).end("length", "stopped", arm=None, report=None, **WHO)
    engine.script = Script(fails="generation_failed", is_admitted=False)
    await fails(keys[2])
    await trials.reload(Experiments(pool))
    await fails(keys[2])
    assert await failures(pool, keys[2]) == (0, False)


async def test_a_deleted_chat_that_counted_leaves_its_arm_and_nothing_of_its_user(
    pool: Pool, ledger: Ledger, chatting: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    turns, conversations = chatting
    engine.script = vocabulary.script("one", leaves_node=True)
    arms = []
    for user in ("mo", "mo", "jo"):
        opened = await conversations.open(tenant=TENANT, user=user)
        await read(send(turns, opened.conversation_id, "first"))
        await ledger.delete(TENANT, opened.conversation_id)
        assert opened.trial is not None
        arms.append(opened.trial.arm)
    unseen = await conversations.open(tenant=TENANT, user="bo")
    await ledger.delete(TENANT, unseen.conversation_id)
    rows = await pool.fetch("SELECT * FROM appliance.experiment_deletions ORDER BY at")
    assert [row["arm"] for row in rows] == arms
    assert set(rows[0].keys()) == {"experiment", "arm", "mark", "at"}
    assert all(0 <= row["mark"] < 1 << 16 for row in rows), "as many others have it"
    assert rows[0]["mark"] == rows[1]["mark"] != rows[2]["mark"], "it tells users apart"


async def test_an_edit_and_a_branch_are_marked_and_going_on_is_not(
    pool: Pool, chatting: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    turns, conversations = chatting
    engine.script = vocabulary.script("one", leaves_node=True)
    opened = await conversations.open(tenant=TENANT, user="mo")
    key = opened.conversation_id
    _, _, first = await read(send(turns, key, "first"))
    assert first.message is not None
    await read(send(turns, key, "second"))
    await read(send(turns, key, "second, again", parent=first.message.message_id))
    await read(send(turns, key, "first, again", parent=None))
    await read(turns.regenerate(tenant=TENANT, conversation_id=key, message_id=None, params=PLAIN))
    await read(send(turns, key, "on"))
    rows = await pool.fetch(
        "SELECT text, is_edit FROM appliance.messages WHERE role = 'user' ORDER BY created_at"
    )
    assert {row["text"]: row["is_edit"] for row in rows} == {
        "first": None,
        "second": None,
        "second, again": True,
        "first, again": True,
        "on": None,
    }


async def test_after_the_end_and_with_another_version_nobody_is_exposed(
    pool: Pool,
    chatting: Any,
    trials: Trials,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    versions: tuple[str, str],
) -> None:
    turns, conversations = chatting
    engine.script = vocabulary.script("one", leaves_node=True)
    moved = await conversations.open(tenant=TENANT, user="mo")
    other = next(version for version in versions if version != moved.prompt_version)
    await ledger.change(TENANT, moved.conversation_id, ConversationChange(prompt_version=other))
    await read(send(turns, moved.conversation_id, "first"))
    assert (await exposures(pool, moved.conversation_id))["exposed_at"] is None
    late = await conversations.open(tenant=TENANT, user="jo")
    store = Experiments(pool)
    await store.end("length", "stopped", arm=None, report=None, **WHO)
    assert await store.running() == ()
    assert [one.state for one in await store.all()] == ["stopped"]
    await trials.reload(store)
    await read(send(turns, late.conversation_id, "first"))
    assert (await exposures(pool, late.conversation_id))["exposed_at"] is None
    after = await conversations.open(tenant=TENANT, user="jo")
    assert (await exposures(pool, after.conversation_id))["experiment"] is None


async def test_a_group_is_in_no_experiment_on_one_of_its_members(pool: Pool, chatting: Any) -> None:
    _, conversations = chatting
    opened = await conversations.open(tenant=TENANT, user="mo", members=("assistant", "mara"))
    assert opened.trial is None
    assert (await exposures(pool, opened.conversation_id))["experiment"] is None


async def test_a_paused_arm_opens_no_more_conversations_and_a_deleted_one_that_nobody_saw_leaves_nothing(
    pool: Pool, ledger: Ledger, chatting: Any, trials: Trials
) -> None:
    _, conversations = chatting
    store = Experiments(pool)
    assert await store.pause("length", "long", **WHO)
    assert not await store.pause("length", "long", **WHO)
    await trials.reload(store)
    opened = [await conversations.open(tenant=TENANT, user=f"u{number}") for number in range(20)]
    arms = [one.trial and one.trial.arm for one in opened]
    assert set(arms) == {"brief", None}
    for one in opened:
        await ledger.delete(TENANT, one.conversation_id)
    assert await store.counts("length") == ()
    assert not await pool.fetchval("SELECT count(*) FROM appliance.experiment_deletions")


def test_a_conversation_that_waits_in_the_journal_keeps_its_user_and_its_arm() -> None:
    opened = NewConversation(
        tenant=TENANT,
        conversation_id=UUID(int=1),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        prompt_version="a" * 64,
        user="mo",
        trial=Trial(experiment="length", arm="long"),
        exposes=True,
    )
    entry = ConversationEntry(opened=opened)
    assert decode(encode(entry)) == entry
    assert opened_conversation(opened).trial == opened.trial

"""Characters from the database: the first start, labels that move, conversations that stay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.chat import catalog as catalog_module
from appliance.chat.catalog import Catalog
from appliance.chat.conversations import Conversations
from appliance.chat.publishing import fill_empty, publish
from appliance.chat.turn import Turns
from appliance.errors import (
    ConfigError,
    InvalidBundle,
    NotFound,
    StorageUnavailable,
    TemplateError,
)
from appliance.prompt.bundle import CHARACTER_FILE, Bundle
from appliance.prompt.cards.charx import CARD_FILE
from appliance.prompt.characters import LOREBOOK_FILE, Characters
from appliance.prompt.chat_format.model_text import ModelText
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool
from appliance.store.prompt_records import Label
from appliance.store.prompt_registry import QUERIES, PromptRegistry
from appliance.tokens import unpack
from tests.card_fixtures import encoded, v2
from tests.characters import bundle_of, characters_of
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import CHARACTERS, Vocabulary
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.prompt.formats import written

PROMPTS = Path(__file__).parents[3] / "prompts"
WHO: dict[str, Any] = {"author": "ana", "message": "why not"}
OLD = bundle_of("assistant", system="Be brief.")
NEW = bundle_of("assistant", system="Be long.")


async def put(catalog: Catalog, bundle: Bundle, label: str = "production") -> str:
    """Publish a bundle and move a label to it."""
    version, _ = await publish(catalog.registry, bundle, **WHO)
    labels = {at.label: at.version for at in await catalog.registry.labels(bundle.name)}
    await catalog.registry.move(
        bundle.name, label, version, seen=labels.get(label), confirmed=True, **WHO
    )
    return version


def last_prompt(model: ModelText, engine: ScriptedEngine) -> str:
    return written(model.chat_format, unpack(engine.generated[-1].token_ids))


async def test_the_first_start_publishes_the_folder_and_later_ones_leave_the_database_alone(
    catalog: Catalog, tmp_path: Path
) -> None:
    registry = catalog.registry
    with pytest.raises(ConfigError, match="there is no character 'assistant'"):
        await fill_empty(registry, tmp_path)
    assert await fill_empty(registry, PROMPTS) == 3
    for label in await registry.labelled("production"):
        assert label.protected
    shipped = await catalog.reload()
    assert set(shipped.by_id) == {"assistant", "gardener", "lighthouse"}
    await put(catalog, NEW)
    assert await fill_empty(registry, PROMPTS) == 0
    assert (await catalog.reload()).get(None).version == NEW.version


async def test_a_first_start_that_was_killed_in_the_middle_is_gone_on_with(
    catalog: Catalog,
) -> None:
    kept = await put(catalog, bundle_of("gardener", system="Mine."))
    await publish(catalog.registry, bundle_of("lighthouse"), **WHO)
    assert await fill_empty(catalog.registry, PROMPTS) == 2
    assert (await catalog.reload()).get("gardener").version == kept
    assert (await catalog.of("lighthouse", None)).character.greeting


async def test_a_bundle_that_makes_no_prompt_is_not_published(catalog: Catalog) -> None:
    for bad in (
        bundle_of("mara", template="gone"),
        bundle_of("mara", templates={"mine": "name: [\n---\n"}, template="mine"),
        Bundle(name="mara", files={"note.txt": b"no character"}),
    ):
        with pytest.raises((InvalidBundle, TemplateError)):
            await publish(catalog.registry, bad, **WHO)
    assert await catalog.registry.names() == ()


async def test_a_moved_label_serves_new_chats_and_leaves_those_that_began_before(
    turns: Turns,
    conversations: Conversations,
    catalog: Catalog,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_module, "POLL_S", 0.02)
    await put(catalog, OLD)
    await catalog.reload()
    watching = asyncio.create_task(catalog.watch())
    engine.script = vocabulary.script("one")
    before = (await conversations.open(tenant=TENANT)).conversation_id
    started, _, _ = await read(send(turns, before, "first"))
    assert started.prompt_version == OLD.version
    await put(catalog, NEW)
    async with asyncio.timeout(30):
        while catalog.current.get(None).version != NEW.version:
            await asyncio.sleep(0.01)
    after = (await conversations.open(tenant=TENANT)).conversation_id
    await read(send(turns, after, "first"))
    assert "Be long." in last_prompt(model, engine)
    for text in ("second", "third"):
        started, _, _ = await read(send(turns, before, text))
        assert started.prompt_version == OLD.version
        assert "Be brief." in last_prompt(model, engine)
    watching.cancel()


async def test_a_pinned_version_is_used_after_a_restart_that_knows_only_the_new_one(
    ledger: Ledger,
    conversations: Conversations,
    turns: Turns,
    catalog: Catalog,
    pool: Pool,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
) -> None:
    await put(catalog, OLD)
    await catalog.reload()
    engine.script = vocabulary.script("one")
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    _, _, done = await read(send(turns, opened, "first"))
    first = engine.generated[-1].token_ids
    await put(catalog, NEW)
    restarted = Catalog(PromptRegistry(pool))
    with pytest.raises(StorageUnavailable):
        _ = restarted.current
    await restarted.reload()
    assert restarted.current.get(None).version == NEW.version
    assert (await restarted.of(None, OLD.version)).character.system == "Be brief."
    assert done.message is not None
    prompts = turns.prompts
    again = await replace(
        prompts,
        paths=replace(prompts.paths, catalog=restarted),
        builder=replace(prompts.builder, catalog=restarted),
    ).of(tenant=TENANT, conversation_id=opened, message_id=done.message.message_id)
    assert again.prompt.token_ids == first
    assert again.is_as_sent


async def test_a_conversation_without_a_version_takes_production_and_is_pinned_by_its_next_turn(
    turns: Turns,
    conversations: Conversations,
    ledger: Ledger,
    catalog: Catalog,
    pool: Pool,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
) -> None:
    engine.script = vocabulary.script("one")
    opened = await conversations.open(tenant=TENANT)
    assert opened.prompt_version is None
    key = (TENANT, opened.conversation_id)
    await read(send(turns, opened.conversation_id, "first"))
    await pool.execute("UPDATE appliance.conversations SET prompt_version = NULL")
    await put(catalog, NEW)
    await catalog.reload()
    # What was remembered of the turn before is of another version: the whole path is read again.
    started, _, _ = await read(send(turns, opened.conversation_id, "second"))
    assert started.prompt_version == NEW.version
    assert (await ledger.get(*key)).prompt_version == NEW.version


async def test_a_greeting_pins_the_version_that_it_is_of(
    conversations: Conversations, catalog: Catalog
) -> None:
    opened = await conversations.open(tenant=TENANT, character="mara")
    assert opened.prompt_version == CHARACTERS.get("mara").version


async def test_a_conversation_moves_when_it_is_asked_to_and_says_from_where(
    turns: Turns,
    conversations: Conversations,
    catalog: Catalog,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
) -> None:
    await put(catalog, OLD)
    await put(catalog, NEW, "canary")
    await catalog.reload()
    engine.script = vocabulary.script("one")
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    for text in ("first", "second"):
        await read(send(turns, opened, text))
    held = await conversations.get(tenant=TENANT, conversation_id=opened)
    moved = (await conversations.change(held, reference="canary")).conversation
    assert (held.prompt_version, moved.prompt_version) == (OLD.version, NEW.version)
    started, _, _ = await read(send(turns, opened, "third"))
    assert started.prompt_version == NEW.version
    prompt = last_prompt(model, engine)
    assert "Be long." in prompt
    assert "first" in prompt
    back = OLD.version[:10]
    held = await conversations.get(tenant=TENANT, conversation_id=opened)
    moved = (await conversations.change(held, reference=back)).conversation
    assert (held.prompt_version, moved.prompt_version) == (NEW.version, OLD.version)
    with pytest.raises(NotFound, match="assistant has no label 'nightly'"):
        await conversations.change(moved, reference="nightly")


async def test_while_the_database_is_away_the_last_snapshot_serves_on_and_is_renewed_after(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POLL_S", "AWAY_POLL_S"):
        monkeypatch.setattr(catalog_module, name, 0.02)
    catalog = Catalog(PromptRegistry(pool))
    await put(catalog, OLD)
    await catalog.reload()
    version = catalog.current.get(None).version
    asked, newest = asyncio.Event(), catalog.registry.labelled

    async def refused(label: str) -> tuple[Label, ...]:
        asked.set()
        raise StorageUnavailable("the database does not answer")

    monkeypatch.setattr(catalog.registry, "labelled", refused)
    watching = asyncio.create_task(catalog.watch())
    await asyncio.wait_for(asked.wait(), 30)
    await put(catalog, NEW)
    await asyncio.sleep(0.1)
    assert catalog.current.get(None).version == version
    assert not watching.done()
    monkeypatch.setattr(catalog.registry, "labelled", newest)
    async with asyncio.timeout(30):
        while catalog.current.get(None).version != NEW.version:
            await asyncio.sleep(0.01)
    watching.cancel()


async def test_a_version_whose_files_were_tampered_with_is_told_and_the_one_before_serves_on(
    catalog: Catalog, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await put(catalog, OLD)
    await put(catalog, bundle_of("mara"))
    await catalog.reload()
    await put(catalog, NEW)
    mara = await put(catalog, bundle_of("mara", system="New."))
    await pool.execute("ALTER TABLE appliance.prompt_files DISABLE TRIGGER immutable")
    await pool.execute(
        "UPDATE appliance.prompt_files SET content = content || '\\x20' WHERE version = $1",
        NEW.version,
    )
    current = await catalog.reload()
    assert current.get(None).version == OLD.version
    assert current.get("mara").version == mara
    (told,) = [record for record in caplog.records if record.message == "prompt_version_unusable"]
    assert "are not those that were published" in told.reason  # type: ignore[attr-defined]
    with pytest.raises(TemplateError, match="is unusable"):
        await catalog.of(None, NEW.version)


UNREADABLE = {
    "character": {CHARACTER_FILE: b"id: mara\nname: Mara\ncolour: red\n"},
    "template": {**bundle_of("mara", template="mine", templates={"mine": "[\n---\n"}).files},
    "lorebook": {**bundle_of("mara").files, LOREBOOK_FILE: b'{"entries": [{"keys": 7}]}'},
    "lorebook text": {**bundle_of("mara").files, LOREBOOK_FILE: b"{"},
    "card": {CARD_FILE: b'{"spec": "chara_card_v9", "data": {}}'},
    "card's lorebook": {CARD_FILE: encoded(v2(character_book={"entries": [{"keys": 7}]}))},
    "portrait": {CARD_FILE: encoded(v2()), "portrait.png": b"none"},
}
"""Files of versions that a release before this one may have taken, by what is wrong in them."""


@pytest.mark.parametrize("files", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_version_that_no_longer_reads_stops_no_server_and_the_one_before_serves_on(
    catalog: Catalog, pool: Pool, caplog: pytest.LogCaptureFixture, files: Mapping[str, bytes]
) -> None:
    await put(catalog, OLD)
    good = await put(catalog, bundle_of("mara"))
    await catalog.reload()
    bad = Bundle(name="mara", files=files).version
    await catalog.registry.publish("mara", bad, files, **WHO)
    await catalog.registry.move("mara", "production", bad, seen=good, confirmed=True, **WHO)
    started = Catalog(PromptRegistry(pool))
    for served in (catalog, started):
        assert (await served.reload()).get("mara").version == good
        assert served.current.get(None).version == OLD.version
        with pytest.raises(TemplateError, match="is unusable"):
            await served.of("mara", bad)
    assert any(record.message == "prompt_version_unusable" for record in caplog.records)


async def test_a_turn_of_an_active_conversation_asks_the_database_nothing_about_prompts(
    turns: Turns,
    conversations: Conversations,
    catalog: Catalog,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await put(catalog, OLD)
    await catalog.reload()
    engine.script = vocabulary.script("one")
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    await put(catalog, NEW)
    await read(send(turns, opened, "first"))
    await catalog.reload()

    def asked(*_: object) -> None:
        raise AssertionError("a query for a prompt")

    for way in ("_fetch", "_write"):
        monkeypatch.setattr(catalog.registry, way, asked)
    for text in ("second", "third"):
        started, _, _ = await read(send(turns, opened, text))
        assert started.prompt_version == OLD.version


def test_a_snapshot_has_one_version_of_each_character() -> None:
    both = characters_of(OLD, bundle_of("mara"))
    assert isinstance(both, Characters)
    assert set(both.by_id) == {"assistant", "mara"}


async def test_a_move_that_is_stored_after_a_later_one_is_seen(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of moves are not the order in which they are stored."""
    monkeypatch.setattr(catalog_module, "POLL_S", 0.02)
    catalog = Catalog(PromptRegistry(pool))
    await put(catalog, OLD)
    await put(catalog, NEW, "canary")
    await catalog.reload()
    watching = asyncio.create_task(catalog.watch())
    async with pool.acquire() as connection, connection.transaction():
        move = ("assistant", "production", NEW.version, OLD.version, None, "ana", "why", True)
        assert await connection.fetchrow(QUERIES["move_label"], *move) is not None
        await put(catalog, OLD, "canary")
        await asyncio.sleep(0.1)
        assert catalog.current.get(None).version == OLD.version
    async with asyncio.timeout(30):
        while catalog.current.get(None).version != NEW.version:
            await asyncio.sleep(0.01)
    watching.cancel()

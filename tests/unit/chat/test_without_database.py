"""Chats while the database takes no writes, or does not answer at all: what is known goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import psutil
import pytest

from appliance.chat.catalog import Catalog
from appliance.chat.conversations import Conversations
from appliance.chat.params import ChatLimits
from appliance.chat.running import RunningTurns
from appliance.chat.turn import Turns
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.errors import StorageUnavailable
from appliance.prompt.chat_format.model_text import ModelText
from appliance.store.ledger import QUERIES
from appliance.store.prompt_registry import PromptRegistry
from appliance.wire.client import EngineClient
from tests.postgres.journalled import Kept, keeping
from tests.postgres_fixtures import TEMPLATE, quiet, start_new
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import CHARACTERS, Vocabulary
from tests.unit.chat.driver import TENANT, read, read_until, send


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A cluster that these tests stop and start."""
    cluster = Cluster(tmp_path_factory.mktemp("own") / "postgres", find_binaries())
    with asyncio.Runner() as runner:
        runner.run(start_new(cluster))
        runner.run(cluster.stop())
    return cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats:
    """The chat layer over a journalled ledger of its own cluster."""

    cluster: Cluster
    kept: Kept
    turns: Turns
    conversations: Conversations

    async def open(self, character: str | None = None) -> UUID:
        opened = await self.conversations.open(tenant=TENANT, character=character)
        return opened.conversation_id

    async def say(self, conversation: UUID, text: str, turn_key: UUID | None = None) -> UUID:
        """One turn; the id of its reply."""
        _, _, done = await read(send(self.turns, conversation, text, turn_key=turn_key))
        assert done.message is not None
        return done.message.message_id

    async def texts(self, conversation: UUID) -> list[str]:
        tree = await self.conversations.messages(tenant=TENANT, conversation_id=conversation)
        return [message.text for message in tree]

    async def kill(self) -> None:
        """kill -9 of the postmaster; its children end by themselves."""
        pid = int((self.cluster.directory / "postmaster.pid").read_text().split("\n")[0])
        os.kill(pid, signal.SIGKILL)
        await self.cluster.stop()


@pytest.fixture
async def chats(
    own: Cluster, tmp_path: Path, client: EngineClient, model: ModelText
) -> AsyncIterator[Chats]:
    await own.start(quiet)
    async with keeping(own.url(TEMPLATE), tmp_path / "journal") as kept:
        running = RunningTurns()
        catalog = Catalog(PromptRegistry(kept.pool), current=CHARACTERS)
        turns = Turns(
            ledger=kept.ledger,
            running=running,
            engine=client,
            model=model,
            catalog=catalog,
            limits=ChatLimits(),
        )
        conversations = Conversations(ledger=kept.ledger, running=running, catalog=catalog)
        yield Chats(cluster=own, kept=kept, turns=turns, conversations=conversations)
        await turns.close()
    await own.stop()


async def test_a_known_chat_and_a_new_one_go_on_while_the_database_is_away_and_a_cold_one_is_told(
    chats: Chats, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    engine.script = vocabulary.script("one", " two", leaves_node=True)
    warm, cold = await chats.open(), await chats.open()
    await chats.say(warm, "first")
    await chats.say(cold, "first")
    engine.script = vocabulary.script("one", token_s=0.2, leaves_node=True)
    events = send(chats.turns, warm, "second")
    await anext(events)
    await chats.kill()
    rest = [event async for event in events]
    assert rest, "the stream went on and ended well"
    assert chats.kept.waiting == 1
    # A server that has just started knows no chat.
    chats.kept.ledger._recent.forget((TENANT, cold))
    chats.turns.tips.put((TENANT, cold), None)
    started = time.monotonic()
    engine.script = vocabulary.script(" three", leaves_node=True)
    key = uuid4()
    reply = await chats.say(warm, "third", turn_key=key)
    assert await chats.say(warm, "third", turn_key=key) == reply
    await chats.say(warm, "fourth")
    fresh = await chats.open(character="mara")
    await chats.say(fresh, "hello")
    await chats.say(fresh, "again")
    assert time.monotonic() - started < 5
    assert await chats.texts(fresh) == ["You made it!", "hello", " three", "again", " three"]
    with pytest.raises(StorageUnavailable):
        await chats.say(cold, "second")
    with pytest.raises(StorageUnavailable):
        await chats.conversations.list(tenant=TENANT, limit=5)
    with pytest.raises(StorageUnavailable):
        await chats.conversations.delete(tenant=TENANT, conversation_id=warm)
    await chats.cluster.start(quiet)
    await chats.kept.drained()
    await chats.say(cold, "second")
    assert await chats.texts(warm) == [
        *("first", "one two", "second", "one", "third", " three", "fourth", " three")
    ]
    assert await chats.texts(cold) == ["first", "one two", "second", " three"]
    assert await chats.texts(fresh) == ["You made it!", "hello", " three", "again", " three"]


async def test_a_database_that_hangs_holds_up_the_end_of_a_turn_for_a_second_or_two(
    chats: Chats, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    engine.script = vocabulary.script("one", leaves_node=True)
    conversation = await chats.open()
    await chats.say(conversation, "first")
    pid = int((chats.cluster.directory / "postmaster.pid").read_text().split("\n")[0])
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    engine.script = vocabulary.script("one", token_s=0.2, leaves_node=True)
    events = send(chats.turns, conversation, "second")
    await read_until(events, 1)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        started = time.monotonic()
        assert [event async for event in events]
        assert time.monotonic() - started < 4
        assert chats.kept.waiting == 1
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
    await chats.kept.drained()
    # The write that hung came through as well, perhaps: once is what is there.
    assert await chats.texts(conversation) == ["first", "one", "second", "one"]
    await chats.say(conversation, "third")


async def test_a_turn_of_a_known_chat_asks_the_database_twice_and_for_nothing_of_its_history(
    chats: Chats, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    engine.script = vocabulary.script("one", " two", leaves_node=True)
    conversation = await chats.open()
    for number in range(4):
        await chats.say(conversation, f"message {number}")
    async with chats.kept.pool.acquire() as connection:
        lent = Lent(connection)
        chats.kept.ledger._pool = chats.kept.ledger._writer._pool = lent  # type: ignore[assignment]
        for number in range(3):
            await chats.say(conversation, f"warm {number}")
            assert lent.taken() == ["get_conversation", "BEGIN", "append_turn", "COMMIT"]
    assert engine.generated[-1].after is not None


class Lent:
    """A pool of one connection, which notes what it is asked."""

    def __init__(self, connection: object) -> None:
        self.connection = connection
        self._asked: list[str] = []
        connection.add_query_logger(self._note)  # type: ignore[attr-defined]

    def _note(self, record: asyncpg.connection.LoggedQuery) -> None:
        names = [name for name, query in QUERIES.items() if query == record.query]
        self._asked += names or [record.query]

    def taken(self) -> list[str]:
        """The names of the statements since the last call."""
        asked, self._asked = self._asked, []
        return asked

    def acquire(self, *, timeout: float) -> Lent:
        return self

    async def __aenter__(self) -> object:
        return self.connection

    async def __aexit__(self, *_: object) -> None:
        return None


async def test_a_full_journal_refuses_a_turn_before_the_engine_is_asked(
    chats: Chats, engine: ScriptedEngine, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.script = vocabulary.script("one", leaves_node=True)
    conversation = await chats.open()
    await chats.say(conversation, "first")
    chats.kept.is_maintenance = True
    monkeypatch.setattr(type(chats.kept.journal), "has_room", lambda self, turns: False)
    asked = len(engine.generated)
    with pytest.raises(StorageUnavailable, match="none is begun"):
        await chats.say(conversation, "second")
    assert len(engine.generated) == asked
    monkeypatch.undo()
    await chats.say(conversation, "second")
    chats.kept.is_maintenance = False
    await chats.kept.drained()
    assert await chats.texts(conversation) == ["first", "one", "second", "one"]

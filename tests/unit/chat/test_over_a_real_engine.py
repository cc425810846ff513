"""Turns over a real engine with a tiny model: every earlier token is found, and cached equals cold."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from appliance.chat.completion import Completions
from appliance.chat.conversations import Conversations
from appliance.chat.params import ChatLimits, GenerationParams
from appliance.chat.plan import Place
from appliance.chat.prompt_view import PromptView
from appliance.chat.running import RunningTurns
from appliance.chat.turn import Turns
from appliance.config import EngineConfig
from appliance.engine.connections import Connections
from appliance.engine.limits import fit_limits
from appliance.engine.sequence import Sequence
from appliance.engine.service import EngineService
from appliance.model.config import read_config
from appliance.model.decoder import load_model
from appliance.model.kv_cache import bytes_per_page
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.messages import ChatMessage, Role
from appliance.store.ledger import Ledger
from appliance.store.records import Message
from appliance.store.text import storable
from appliance.tokens import count
from appliance.wire.client import EngineClient
from appliance.wire.frames import Generate, Sampling
from appliance.wire.pending import Event
from tests.model_fixtures import tiny_model, vocabulary, write_directory
from tests.unit.chat.conftest import catalog_of
from tests.unit.chat.driver import TENANT, read, read_until, send

NOW = datetime(2026, 1, 31)
# Control tokens end a reply, and bytes that are no character are encoded again: other tests' matters.
ODD = [i for i, piece in enumerate(vocabulary()) if i < 3 or not piece.replace("Ġ", "").isascii()]
GREEDY = Sampling(temperature=0, logit_bias=dict.fromkeys(ODD, -100.0))
SHORT = GenerationParams(sampling=GREEDY, new_tokens_max=8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model(max_position_embeddings=2048)
    return write_directory(tmp_path_factory.mktemp("tiny-model"), model)


@pytest.fixture(scope="module")
def engine_socket(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    socket = tmp_path_factory.mktemp("run") / "engine.sock"
    model = read_config(directory)
    page_bytes = bytes_per_page(model, 16)
    limits = fit_limits(
        # An audit uses the path that it looks at, at its own moments: what is evicted next would be open.
        EngineConfig(kv_cache_bytes=1024 * page_bytes, audit_tokens_per_minute=0),
        model_context_tokens=model.context_tokens,
        bytes_per_page=page_bytes,
        cores=1,
    )
    service = EngineService(
        load_model(directory, "cpu", 1), limits, partial(Connections, socket), pid=1, drain_s=1
    )
    thread = threading.Thread(target=service.serve)
    thread.start()
    yield socket
    service.stop()
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
async def client(engine_socket: Path) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine_socket) as connected:
        await asyncio.wait_for(connected.wait_ready(), 30)
        yield connected


def turns_of(ledger: Ledger, client: EngineClient, directory: Path) -> Turns:
    """A chat layer as after a restart of the server: with an empty memo."""
    return Turns(
        ledger=ledger,
        running=RunningTurns(),
        engine=client,
        model=ModelText.load(directory, now=NOW),
        catalog=catalog_of(ledger),
        limits=ChatLimits(),
    )


async def test_each_turn_finds_every_token_of_the_turns_before(
    ledger: Ledger, conversations: Conversations, client: EngineClient, directory: Path
) -> None:
    turns = turns_of(ledger, client, directory)
    opened = (await conversations.open(tenant=TENANT, character="mara")).conversation_id
    closing = count(ModelText.load(directory, now=NOW).chat_format.closing)
    covered = 0
    prompts = {}
    for number in range(6):
        started, _, done = await read(send(turns, opened, f"Message {number}", params=SHORT))
        assert started.prefix_hit_tokens >= covered
        assert done.message is not None
        assert done.message.token_ids is not None
        assert done.usage.new_tokens == count(done.message.token_ids)
        covered = started.prompt_tokens + done.usage.new_tokens + closing
        prompts[done.message.message_id] = started.prompt_tokens
    restarted = turns_of(ledger, client, directory)
    for message_id, tokens in prompts.items():
        before, after = [
            await PromptView(layer.prompts).prompt_of(
                tenant=TENANT, conversation_id=opened, message_id=message_id
            )
            for layer in (turns, restarted)
        ]
        assert before == after
        assert before.tokens == tokens


@pytest.fixture
def sent(client: EngineClient, monkeypatch: pytest.MonkeyPatch) -> list[Generate]:
    """The requests that the client sends."""
    frames: list[Generate] = []
    generate = client.generate

    def recorded(request: Generate, **options: Any) -> AsyncGenerator[Event, None]:
        frames.append(request)
        return generate(request, **options)

    monkeypatch.setattr(client, "generate", recorded)
    return frames


@pytest.fixture
def read_paths(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The leaves of the paths that are read from the ledger."""
    leaves: list[UUID] = []
    path = ledger.path

    async def recorded(
        tenant: str, conversation_id: UUID, leaf_id: UUID, **options: Any
    ) -> tuple[Message, ...]:
        leaves.append(leaf_id)
        return await path(tenant, conversation_id, leaf_id, **options)

    monkeypatch.setattr(ledger, "path", recorded)
    return leaves


async def test_a_next_turn_reads_and_sends_only_what_is_new(
    ledger: Ledger,
    conversations: Conversations,
    client: EngineClient,
    directory: Path,
    sent: list[Generate],
    read_paths: list[UUID],
) -> None:
    turns = turns_of(ledger, client, directory)
    opened = (await conversations.open(tenant=TENANT, character="mara")).conversation_id
    sizes = []
    for number in range(8):
        started, _, done = await read(send(turns, opened, f"Question {number}", params=SHORT))
        after = sent[-1].after
        assert (after is None) == (number == 0)
        assert started.prefix_hit_tokens >= (0 if after is None else after.tokens)
        assert count(sent[-1].token_ids) + (after.tokens if after else 0) == started.prompt_tokens
        sizes.append(len(sent[-1].token_ids))
        assert done.message is not None
        prompt = await PromptView(turns.prompts).prompt_of(
            tenant=TENANT, conversation_id=opened, message_id=done.message.message_id
        )
        assert prompt.tokens == started.prompt_tokens
        assert prompt.stretches == tuple(sent[-1].stretches)
        assert prompt.token_ids.endswith(sent[-1].token_ids)
    assert len(set(sizes[1:])) == 1
    asked_for_prompts = 8
    assert len(read_paths) == asked_for_prompts + 1
    assert len(sent) == 8


async def test_a_turn_whose_node_the_engine_lost_sends_everything_and_goes_on(
    ledger: Ledger,
    conversations: Conversations,
    client: EngineClient,
    directory: Path,
    sent: list[Generate],
) -> None:
    turns = turns_of(ledger, client, directory)
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    await read(send(turns, opened, "The cube is made of wood.", params=SHORT))
    # Fills the cache with other conversations until this one is gone.
    for number in range(14):
        other = (await conversations.open(tenant=TENANT)).conversation_id
        await read(send(turns, other, f"{number} " + "xyz " * 300, params=SHORT))
    started, _, done = await read(send(turns, opened, "What is it made of?", params=SHORT))
    assert [frame.after is None for frame in sent[-2:]] == [False, True]
    assert done.finish_reason == "length"
    assert done.usage.prompt_tokens == started.prompt_tokens == count(sent[-1].token_ids)
    await read(send(turns, opened, "Really?", params=SHORT))
    assert sent[-1].after is not None
    assert len(sent) == 18


async def test_swipes_edits_and_a_moved_head_send_the_whole_path(
    ledger: Ledger,
    conversations: Conversations,
    client: EngineClient,
    directory: Path,
    sent: list[Generate],
) -> None:
    turns = turns_of(ledger, client, directory)
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    _, _, first = await read(send(turns, opened, "One.", params=SHORT))
    assert first.message is not None
    await read(send(turns, opened, "Two.", params=SHORT))
    other = replace(SHORT, sampling=msgspec.structs.replace(GREEDY, temperature=1.5, seed=4))
    await read(
        turns.regenerate(tenant=TENANT, conversation_id=opened, message_id=None, params=other)
    )
    await read(send(turns, opened, "Three.", params=SHORT))
    await read(send(turns, opened, "Two!", parent=first.message.message_id, params=SHORT))
    await conversations.change(
        await conversations.get(tenant=TENANT, conversation_id=opened),
        head_id=first.message.message_id,
    )
    await read(send(turns, opened, "Four.", params=SHORT))
    assert [frame.after is None for frame in sent] == [True, False, True, False, True, True]


async def test_a_client_that_sends_the_whole_history_as_text_finds_every_token_too(
    client: EngineClient, directory: Path
) -> None:
    model = ModelText.load(directory, now=NOW)
    completions = Completions(engine=client, model=model, limits=ChatLimits())
    history: list[ChatMessage] = []
    covered = 0
    for number in range(5):
        history.append(ChatMessage(role="user", content=f"Message {number}"))
        events = completions.run(tenant="text", messages=tuple(history), params=SHORT)
        started, _, done = await read(events)
        assert started.prefix_hit_tokens >= covered
        history.append(ChatMessage(role="assistant", content=done.text))
        covered = started.prompt_tokens + done.usage.new_tokens + count(model.chat_format.closing)


async def test_replies_after_swipes_edits_and_branches_equal_those_of_a_cold_tenant(
    ledger: Ledger, conversations: Conversations, client: EngineClient, directory: Path
) -> None:
    turns = turns_of(ledger, client, directory)
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    _, _, a1 = await read(send(turns, opened, "The cube is made of toothpaste.", params=SHORT))
    swiped = await read(
        turns.regenerate(tenant=TENANT, conversation_id=opened, message_id=None, params=SHORT)
    )
    assert swiped[2].text == a1.text
    edited = await read(send(turns, opened, "The cube is made of wood.", parent=None, params=SHORT))
    assert a1.message is not None
    parent = a1.message.message_id
    branched = await read(send(turns, opened, "What?", parent=parent, params=SHORT))
    cold = (await conversations.open(tenant="cold")).conversation_id
    texts = []
    for text, place in (
        ("The cube is made of toothpaste.", None),
        ("What?", Place.HEAD),
        ("The cube is made of wood.", None),
    ):
        events = turns.send(
            tenant="cold",
            conversation_id=cold,
            text=text,
            parent=place,
            turn_key=None,
            params=SHORT,
        )
        texts.append((await read(events))[2].text)
    assert texts == [a1.text, branched[2].text, edited[2].text]


async def test_after_clients_left_at_random_moments_no_page_is_held_and_all_is_stored(
    ledger: Ledger, conversations: Conversations, client: EngineClient, directory: Path
) -> None:
    turns = turns_of(ledger, client, directory)
    chosen = random.Random(7)
    long = GenerationParams(sampling=GREEDY, new_tokens_max=200)

    async def one(number: int) -> None:
        opened = (await conversations.open(tenant=TENANT)).conversation_id
        events = send(turns, opened, f"Message {number}", params=long)
        seen = await read_until(events, chosen.randint(1, 12))
        await events.aclose()
        async with asyncio.timeout(30):
            while len(messages := await ledger.messages(TENANT, opened)) < 2:
                await asyncio.sleep(0.02)
        assert (messages[1].text, messages[1].finish_reason) == (storable(seen), "cancelled")

    await asyncio.gather(*(one(number) for number in range(16)))
    await turns.close()
    stats = await client.ask(check=True)
    assert stats.check_failure is None
    assert stats.values["pages_leased"] == 0


async def test_a_reply_that_would_forge_a_turn_ends_before_it(
    ledger: Ledger, conversations: Conversations, client: EngineClient, directory: Path
) -> None:
    turns = turns_of(ledger, client, directory)
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    forging = Sampling(temperature=1, seed=3, logit_bias={1: 100, 2: -100})
    params = GenerationParams(sampling=forging, new_tokens_max=6)
    _, deltas, done = await read(send(turns, opened, "go", params=params))
    assert (done.finish_reason, done.text, done.usage.new_tokens) == ("stop", "", 0)
    assert not deltas


async def test_the_index_covers_every_role_and_the_bug_of_users_messages_shows(
    ledger: Ledger,
    conversations: Conversations,
    client: EngineClient,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bug: what was computed for a user's message is not put into the index."""

    async def coverage(word: str) -> Mapping[Role, float]:
        turns = turns_of(ledger, client, directory)
        opened = (await conversations.open(tenant=TENANT, character="mara")).conversation_id
        for number in range(3):
            await read(send(turns, opened, f"{word} {number} " * 20, params=SHORT))
        return turns.coverage.shares

    # Of a reply that ends by its length, every token is cached.
    assert await coverage("say") == {"system": 1.0, "user": 1.0, "assistant": 1.0}
    commit = Sequence.commit
    monkeypatch.setattr(Sequence, "commit", lambda s, n: commit(s, min(n, s.stretches[0][1])))
    broken = await coverage("tell")
    assert broken["system"] == 1.0
    assert broken["user"] < 0.2
    assert broken["assistant"] == 0.0

"""Turns of stored conversations: what is delivered, stored and kept in the cache is the same text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID, uuid4

import pytest

from appliance.chat.conversations import Conversations
from appliance.chat.events import Event, TurnStarted
from appliance.chat.history import title_of
from appliance.chat.params import ChatLimits, GenerationParams
from appliance.chat.prompt_view import PromptView
from appliance.chat.running import RunningTurns
from appliance.chat.turn import Turns
from appliance.errors import (
    Conflict,
    ContextLengthExceeded,
    EngineUnavailable,
    GenerationFailed,
    InsufficientMemory,
    InvalidRequest,
    NotFound,
)
from appliance.prompt.chat_format.model_text import ModelText
from appliance.store.ledger import Ledger
from appliance.store.records import Message
from appliance.tokens import count
from appliance.wire.client import EngineClient
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary, catalog_of
from tests.unit.chat.driver import TENANT, read, read_until, send


@pytest.fixture
async def conversation(conversations: Conversations) -> UUID:
    return (await conversations.open(tenant=TENANT)).conversation_id


async def stored(ledger: Ledger, conversation: UUID) -> list[Message]:
    return list(await ledger.messages(TENANT, conversation))


async def wait_for_idle(turns: Turns) -> None:
    async with asyncio.timeout(60):
        while turns.running:
            await asyncio.sleep(0.01)


async def test_a_turn_is_stored_before_it_is_done_with_exactly_the_text_delivered(
    turns: Turns,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    model: ModelText,
) -> None:
    engine.script = vocabulary.script("one", " two", prefix_hit_tokens=3)
    started, _, done = await read(send(turns, conversation, "Count, please"))
    user, reply = await stored(ledger, conversation)
    assert (user.text, reply.text) == ("Count, please", "one two")
    assert (user.message_id, reply.message_id) == (
        started.user_message_id,
        started.assistant_message_id,
    )
    assert done.message == reply
    assert done.finish_reason == reply.finish_reason == "stop"
    assert started.prefix_hit_tokens == reply.prefix_hit_tokens == 3
    assert started.prompt_tokens == reply.prompt_tokens == count(engine.generated[0].token_ids)
    assert reply.token_ids is not None
    assert model.tokenizer.decode(reply.token_ids) == "one two"
    assert count(reply.token_ids) == done.usage.new_tokens == 2
    kept = await ledger.get(TENANT, conversation)
    assert kept.title == "Count, please"
    assert kept.head_id == reply.message_id


async def test_the_next_prompt_begins_with_the_last_prompt_its_reply_and_the_closing(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary, ledger: Ledger
) -> None:
    engine.script = vocabulary.script("one", " two", " three")
    for text in ("first", "second", "third"):
        await read(send(turns, conversation, text))
    replies = [m for m in await stored(ledger, conversation) if m.role == "assistant"]
    for before, after, reply in zip(
        engine.generated[:-1], engine.generated[1:], replies, strict=False
    ):
        assert reply.token_ids is not None
        assert after.token_ids.startswith(before.token_ids + reply.token_ids + before.closing)
        assert after.stretches[0] == before.stretches[0]
        assert after.stretches[0][0] == b"public"


async def test_stop_ends_the_reply_where_it_was_delivered(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary, ledger: Ledger
) -> None:
    engine.script = vocabulary.script("one", " two", " three", forever=True, token_s=0.02)
    events = send(turns, conversation, "go")
    text = await read_until(events, 2)
    assert turns.cancel(tenant=TENANT, conversation_id=conversation)
    rest = [event async for event in events]
    assert len(rest) == 1
    reply = (await stored(ledger, conversation))[-1]
    assert reply.text == text == "one two"
    assert reply.finish_reason == "cancelled"
    assert reply.token_ids is not None
    assert engine.cancelled == {str(reply.message_id): count(reply.token_ids)}


async def test_stop_before_the_first_word_keeps_the_message_and_an_empty_reply_stays_out_of_prompts(
    turns: Turns,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    model: ModelText,
) -> None:
    engine.script = vocabulary.script("one", prefill_s=5)
    events = send(turns, conversation, "go")
    assert isinstance(await anext(events), TurnStarted)
    assert turns.cancel(tenant=TENANT, conversation_id=conversation)
    await read_to_end(events)
    user, reply = await stored(ledger, conversation)
    assert (user.text, reply.text, reply.finish_reason) == ("go", "", "cancelled")
    engine.script = vocabulary.script("one")
    await read(send(turns, conversation, "still there?"))
    text = last_prompt(model, engine)
    assert text == "system\nBe brief.\nuser\ngo\nuser\nstill there?\nassistant\n"
    _, _, again = await read(
        turns.regenerate(
            tenant=TENANT,
            conversation_id=conversation,
            message_id=reply.message_id,
            params=GenerationParams(),
        )
    )
    assert again.text == "one"


def last_prompt(model: ModelText, engine: ScriptedEngine) -> str:
    """The last prompt as text, control tokens left out."""
    return model.tokenizer.decode(engine.generated[-1].token_ids)


async def test_a_client_that_leaves_frees_the_engine_and_what_it_saw_is_stored(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary, ledger: Ledger
) -> None:
    engine.script = vocabulary.script("one", " two", forever=True, token_s=0.01)
    events = send(turns, conversation, "go")
    text = await read_until(events, 2)
    await events.aclose()
    await wait_for_idle(turns)
    reply = (await stored(ledger, conversation))[-1]
    assert (reply.text, reply.finish_reason) == (text, "cancelled")
    assert engine.cancelled[str(reply.message_id)] == 2


async def test_a_request_that_is_cancelled_while_it_waits_is_stored_the_same_way(
    turns: Turns,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    client: EngineClient,
) -> None:
    engine.script = vocabulary.script("one", " two", token_s=30)
    seen = asyncio.Event()

    async def reader() -> None:
        async for event in send(turns, conversation, "go"):
            if not isinstance(event, TurnStarted):
                seen.set()

    task = asyncio.create_task(reader())
    await asyncio.wait_for(seen.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await wait_for_idle(turns)
    reply = (await stored(ledger, conversation))[-1]
    assert (reply.text, reply.finish_reason) == ("one", "cancelled")


async def test_a_failure_in_the_middle_stores_the_part_and_is_told_by_its_code(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary, ledger: Ledger
) -> None:
    for code, kind in (
        ("generation_failed", GenerationFailed),
        ("insufficient_memory", InsufficientMemory),
        ("no such code", GenerationFailed),
    ):
        engine.script = vocabulary.script("one", " two", fails=code)
        with pytest.raises(kind):
            await read(send(turns, conversation, "go"))
        reply = (await stored(ledger, conversation))[-1]
        assert (reply.text, reply.finish_reason) == ("one two", "failed")
    engine.script = vocabulary.script("one")
    assert (await read(send(turns, conversation, "again")))[2].text == "one"


async def test_an_engine_that_is_killed_in_the_middle_leaves_the_part_and_the_next_message_works(
    turns: Turns,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    client: EngineClient,
) -> None:
    engine.script = vocabulary.script("one", forever=True, token_s=0.05)
    events = send(turns, conversation, "go")
    text = await read_until(events, 1)
    await engine.stop()
    with pytest.raises(EngineUnavailable):
        text += await read_until(events, 1000)
    reply = (await stored(ledger, conversation))[-1]
    assert reply.finish_reason == "failed"
    assert reply.text.startswith("one")
    await engine.start()
    await client.wait_ready()
    engine.script = vocabulary.script(" two")
    assert (await read(send(turns, conversation, "again")))[2].text == " two"


async def test_a_message_that_never_reached_the_engine_is_not_stored(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, ledger: Ledger, client: EngineClient
) -> None:
    await engine.stop()
    async with asyncio.timeout(60):
        while client.ready:
            await asyncio.sleep(0.01)
    with pytest.raises(EngineUnavailable):
        await read(send(turns, conversation, "go"))
    assert await stored(ledger, conversation) == []
    assert turns.running == 0


async def test_a_second_turn_of_a_conversation_waits_for_one_that_ends_and_is_refused_otherwise(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary, ledger: Ledger
) -> None:
    engine.script = vocabulary.script("one", forever=True, token_s=0.02)
    events = send(turns, conversation, "go")
    await read_until(events, 1)
    with pytest.raises(Conflict):
        await read(send(turns, conversation, "me too"))
    turns.cancel(tenant=TENANT, conversation_id=conversation)
    first = asyncio.create_task(read_to_end(events))
    engine.script = vocabulary.script(" two")
    _, _, done = await read(send(turns, conversation, "now"))
    await first
    assert done.text == " two"
    path = await ledger.path(TENANT, conversation, done.message.message_id)  # type: ignore[union-attr]
    assert [m.text for m in path if m.role == "user"] == ["go", "now"]


async def read_to_end(events: AsyncGenerator[Event, None]) -> None:
    async for _ in events:
        pass


async def test_other_tenants_neither_see_nor_stop_a_conversation(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    engine.script = vocabulary.script("one", forever=True, token_s=0.02)
    events = send(turns, conversation, "go")
    await read_until(events, 1)
    assert not turns.cancel(tenant="bert", conversation_id=conversation)
    with pytest.raises(NotFound):
        await read(
            turns.send(
                tenant="bert",
                conversation_id=conversation,
                text="hi",
                parent=None,
                turn_key=None,
                params=GenerationParams(),
            )
        )
    await events.aclose()


async def test_a_send_with_the_same_key_gives_the_stored_turn_again(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary, ledger: Ledger
) -> None:
    engine.script = vocabulary.script("one", " two")
    key = uuid4()
    begun, _, first = await read(send(turns, conversation, "go", turn_key=key))
    begun_again, _, again = await read(send(turns, conversation, "go", turn_key=key))
    assert again.message == first.message
    assert begun_again == begun
    assert len(engine.generated) == 1
    assert len(await stored(ledger, conversation)) == 2


async def test_swipes_edits_and_branches_never_show_the_model_a_discarded_text(
    turns: Turns,
    conversations: Conversations,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    model: ModelText,
) -> None:
    engine.script = vocabulary.script("one", " two")
    _, _, a1 = await read(send(turns, conversation, "The cube is made of toothpaste."))
    prompts = [engine.generated[-1].token_ids]
    replies = [a1]
    for pieces in ((" three",), (" four", "K")):
        engine.script = vocabulary.script(*pieces)
        events = turns.regenerate(
            tenant=TENANT, conversation_id=conversation, message_id=None, params=GenerationParams()
        )
        replies.append((await read(events))[2])
        prompts.append(engine.generated[-1].token_ids)
    assert prompts[0] == prompts[1] == prompts[2]
    engine.script = vocabulary.script("J")
    replies.append((await read(send(turns, conversation, "It is made of wood.", parent=None)))[2])
    assert replies[0].message is not None
    branch = send(turns, conversation, "What?", parent=replies[0].message.message_id)
    replies.append((await read(branch))[2])
    texts = []
    for reply, sent in zip(replies, engine.generated, strict=True):
        assert reply.message is not None
        again = await PromptView(turns.prompts).prompt_of(
            tenant=TENANT, conversation_id=conversation, message_id=reply.message.message_id
        )
        assert again.token_ids == sent.token_ids
        assert list(again.stretches) == [tuple(stretch) for stretch in sent.stretches]
        texts.append(model.tokenizer.decode(sent.token_ids))
    assert "toothpaste" not in texts[3]
    assert texts[4].endswith("toothpaste.\nassistant\none two\nuser\nWhat?\nassistant\n")
    fresh = (await conversations.open(tenant=TENANT)).conversation_id
    await read(send(turns, fresh, "It is made of wood."))
    assert engine.generated[-1].token_ids == engine.generated[3].token_ids
    messages = await stored(ledger, conversation)
    assert [m.text for m in messages if m.parent_id == a1.message.parent_id] == [  # type: ignore[union-attr]
        "one two",
        " three",
        " fourK",
    ]
    assert replies[1].message is not None
    await ledger.delete_branch(TENANT, conversation, replies[1].message.message_id)
    head = (await ledger.get(TENANT, conversation)).head_id
    assert head == replies[4].message.message_id  # type: ignore[union-attr]


async def test_a_greeting_opens_a_conversation_and_is_part_of_the_prompt(
    turns: Turns,
    conversations: Conversations,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
) -> None:
    opened = await conversations.open(tenant=TENANT, character="mara", title="Light")
    engine.script = vocabulary.script("one")
    await read(send(turns, opened.conversation_id, "Hello Mara"))
    assert last_prompt(model, engine).startswith(
        "system\nYou are Mara.\nassistant\nYou made it!\nuser\nHello Mara"
    )
    # The operator's text is public up to the user's first word.
    front = model.tokenizer.decode(
        engine.generated[-1].token_ids[: 4 * engine.generated[-1].stretches[0][1]]
    )
    assert front.endswith("You made it!\nuser\n")
    with pytest.raises(InvalidRequest):
        await PromptView(turns.prompts).prompt_of(
            tenant=TENANT,
            conversation_id=opened.conversation_id,
            message_id=opened.head_id,  # type: ignore[arg-type]
        )
    with pytest.raises(NotFound):
        await conversations.open(tenant=TENANT, character="nobody")


async def test_a_long_conversation_is_cut_at_a_turn_and_says_how_much(
    turns: Turns,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    model: ModelText,
) -> None:
    engine.script = vocabulary.script("one")
    dropped: list[int] = []
    for number in range(8):
        said, key = f"{number} " + "x" * 300, uuid4()
        started, _, done = await read(send(turns, conversation, said, turn_key=key))
        dropped.append(started.messages_dropped)
        sent = engine.generated[-1]
        assert count(sent.token_ids) + sent.new_tokens_max <= 2048
        assert done.message is not None
        again = await PromptView(turns.prompts).prompt_of(
            tenant=TENANT, conversation_id=conversation, message_id=done.message.message_id
        )
        assert again.token_ids == sent.token_ids
    assert dropped == sorted(dropped)
    assert dropped[-1] > 0
    assert len(set(dropped)) <= 3
    assert "Be brief." in last_prompt(model, engine)
    kept = await ledger.get(TENANT, conversation)
    path = await ledger.path(TENANT, conversation, kept.head_id)  # type: ignore[arg-type]
    assert path[dropped[-1]].message_id == kept.anchor_id
    replayed, _, _ = await read(send(turns, conversation, said, turn_key=key))
    assert replayed.messages_dropped == dropped[-1]
    assert replayed.prompt_version == started.prompt_version


async def test_a_turn_that_cannot_be_stored_is_logged_with_the_ids_to_find_it(
    turns: Turns,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.script = vocabulary.script("one", forever=True, token_s=0.02)
    events = send(turns, conversation, "go")
    started = await anext(events)
    assert isinstance(started, TurnStarted)
    await ledger.delete(TENANT, conversation)
    turns.cancel(tenant=TENANT, conversation_id=conversation)
    with pytest.raises(NotFound):
        await read_to_end(events)
    (record,) = [record for record in caplog.records if record.message == "turn_not_stored"]
    fields = vars(record)
    assert fields["conversation_id"] == str(conversation)
    assert fields["turn_id"] == str(started.turn_id)
    assert fields["engine_request_id"] == engine.generated[-1].request_id
    assert turns.running == 0


async def test_deletions_at_once_each_end_and_a_turn_that_waited_finds_nothing(
    turns: Turns,
    conversations: Conversations,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
) -> None:
    engine.script = vocabulary.script("one", forever=True, token_s=0.02)
    events = send(turns, conversation, "go")
    await read_until(events, 1)
    reader = asyncio.create_task(read_to_end(events))
    deletion = conversations.delete(tenant=TENANT, conversation_id=conversation)
    first = asyncio.create_task(deletion)
    await asyncio.sleep(0)
    second = asyncio.create_task(conversations.delete(tenant=TENANT, conversation_id=conversation))
    late = asyncio.create_task(read_to_end(send(turns, conversation, "late")))
    ended = await asyncio.wait_for(
        asyncio.gather(reader, first, second, late, return_exceptions=True), 10
    )
    assert ended[0] is None
    assert sorted(str(type(end).__name__) for end in ended[1:3]) == ["NoneType", "NotFound"]
    assert isinstance(ended[3], NotFound)
    assert turns.running == 0


async def test_a_text_that_cannot_be_encoded_is_refused_by_its_field_and_stored_when_generated(
    ledger: Ledger,
    conversation: UUID,
    client: EngineClient,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    tildeless: ModelText,
) -> None:
    turns = Turns(
        ledger=ledger,
        running=RunningTurns(),
        engine=client,
        model=tildeless,
        catalog=catalog_of(ledger),
        limits=ChatLimits(),
    )
    with pytest.raises(InvalidRequest) as caught:
        await read(send(turns, conversation, "a~b"))
    assert caught.value.param == "text"
    engine.script = vocabulary.script("~\x00")
    _, _, done = await read(send(turns, conversation, "go"))
    assert done.message is not None
    assert (done.message.text, done.message.token_ids) == ("~\N{SYMBOL FOR NULL}", None)


async def test_closing_stops_running_turns_and_waits_until_they_are_stored(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary, ledger: Ledger
) -> None:
    engine.script = vocabulary.script("one", forever=True, token_s=0.02)
    events = send(turns, conversation, "go")
    text = await read_until(events, 2)
    reader = asyncio.create_task(read_to_end(events))
    await turns.close()
    assert turns.running == 0
    reply = (await stored(ledger, conversation))[-1]
    assert reply.finish_reason == "cancelled"
    assert reply.text.startswith(text)
    await reader


async def test_the_anchor_counts_no_empty_reply(
    turns: Turns, conversation: UUID, engine: ScriptedEngine, vocabulary: Vocabulary, ledger: Ledger
) -> None:
    engine.script = vocabulary.script()
    for number in range(8):
        started, _, _ = await read(send(turns, conversation, f"{number} " + "x" * 300))
    kept = await ledger.get(TENANT, conversation)
    assert kept.anchor_id is not None
    anchor = await ledger.message(TENANT, conversation, kept.anchor_id)
    assert anchor.text.startswith(f"{started.messages_dropped} ")


@pytest.mark.parametrize(
    ("text", "kind"),
    [(" \n", InvalidRequest), ("x" * 200_001, InvalidRequest), ("x" * 5000, ContextLengthExceeded)],
)
async def test_a_bad_message_is_refused_before_anything_happens(
    turns: Turns,
    conversation: UUID,
    engine: ScriptedEngine,
    ledger: Ledger,
    text: str,
    kind: type[Exception],
) -> None:
    with pytest.raises(kind):
        await read(send(turns, conversation, text))
    assert engine.generated == []
    assert await stored(ledger, conversation) == []
    assert turns.running == 0


async def test_a_character_that_text_columns_cannot_hold_does_not_part_text_and_ids(
    turns: Turns,
    conversation: UUID,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    ledger: Ledger,
    model: ModelText,
) -> None:
    engine.script = vocabulary.script("one", "\x00")
    await read(send(turns, conversation, "go\x00"))
    for message in await stored(ledger, conversation):
        assert message.token_ids is not None
        assert model.tokenizer.decode(message.token_ids) == message.text
        assert "\x00" not in message.text


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello there", "Hello there"),
        ("  one\ntwo  three ", "one two three"),
        ("a b c d e f g h i j", "a b c d e f g h…"),
        ("x" * 200, "x" * 59 + "…"),
    ],
)
def test_a_title_is_the_first_words(text: str, title: str) -> None:
    assert title_of(text) == title

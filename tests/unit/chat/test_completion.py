"""Stateless turns: how a reply ends, what a client may send, and what fits."""

from __future__ import annotations

import asyncio
import time

import pytest

from appliance.chat.completion import Completions
from appliance.chat.events import Delta, TurnDone, TurnStarted
from appliance.chat.params import ChatLimits, GenerationParams
from appliance.errors import ContextLengthExceeded, DeadlineExceeded, InvalidRequest
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.messages import ChatMessage, Role
from appliance.tokens import count
from appliance.wire.client import EngineClient
from appliance.wire.frames import Sampling
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import read


def messages(*turns: tuple[Role, str]) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(role=role, content=content) for role, content in turns)


ASK = messages(("user", "x"))


async def complete(
    completions: Completions,
    asked: tuple[ChatMessage, ...] = ASK,
    *,
    continue_final_message: bool = False,
    **params: object,
) -> tuple[TurnStarted, list[Delta], TurnDone]:
    return await read(
        completions.run(
            tenant="anna",
            messages=asked,
            params=GenerationParams(**params),  # type: ignore[arg-type]
            continue_final_message=continue_final_message,
        )
    )


async def test_characters_made_of_several_tokens_come_whole_and_tokens_are_counted(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    family = b"\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f"
    engine.script = vocabulary.script(
        "ok ", b"\xf0\x9f", b"\x98\x80", b"\xe4", b"\xbd\xa0", family, b"\x91\xa7"
    )
    _, deltas, done = await complete(completions)
    assert done.text == "ok 😀你👩\u200d👧"
    assert all("\ufffd" not in delta.text and delta.text for delta in deltas)
    assert done.usage.new_tokens == 7


@pytest.mark.parametrize(
    ("pieces", "limit", "reason", "text"),
    [
        (("one", " two"), None, "stop", "one two"),
        (("one", " two", " three", " four"), 2, "length", "one two"),
        (("one", " two"), 2, "length", "one two"),
        ((), None, "stop", ""),
    ],
)
async def test_a_reply_says_why_it_ended(
    completions: Completions,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    pieces: tuple[str, ...],
    limit: int | None,
    reason: str,
    text: str,
) -> None:
    engine.script = vocabulary.script(*pieces)
    _, _, done = await complete(completions, new_tokens_max=limit)
    assert (done.finish_reason, done.text) == (reason, text)


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "kept"),
    [
        (("ABC", "DEF", "G", "HI", "J", "K"), "DEFGHIJ", "ABC", 1),
        (("ABC", "DEF", "G", "HI"), "EFG", "ABCD", 1),
        (("ABC", b"\xf0\x9f", b"\x98\x80", "K"), "😀", "ABC", 1),
        (("one", " two", " three"), "zzz", "one two three", None),
    ],
)
async def test_a_stop_string_is_never_delivered_and_ends_generation(
    completions: Completions,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    pieces: tuple[str | bytes, ...],
    stop: str,
    text: str,
    kept: int | None,
) -> None:
    settings = {} if kept is None else {"forever": True, "token_s": 0.005}
    engine.script = vocabulary.script(*pieces, **settings)
    _, _, done = await complete(completions, stop=(stop,))
    assert (done.finish_reason, done.text) == ("stop", text)
    if kept is not None:
        assert await cancelled(engine) == [kept]


async def test_an_unfinished_character_at_the_end_becomes_a_replacement_character(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    engine.script = vocabulary.script("one", b"\xf0\x9f")
    _, _, done = await complete(completions)
    assert done.text == "one\ufffd"
    turns: list[tuple[Role, str]] = [("user", "x"), ("assistant", done.text), ("user", "y")]
    await complete(completions, messages(*turns))
    # What was seen is sent on; the half character is not, for other bytes could complete it.
    prompt = memoryview(engine.generated[-1].token_ids).cast("I")
    assert vocabulary.ids[b"\xf0\x9f"] not in prompt


async def test_a_client_that_sends_the_reply_back_gets_the_ids_that_were_generated(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    # " two" is one token for the engine; encoded from text it is four.
    engine.script = vocabulary.script("one", " two")
    await complete(completions)
    first = engine.generated[-1]
    turns: list[tuple[Role, str]] = [("user", "x"), ("assistant", "one two"), ("user", "y")]
    await complete(completions, messages(*turns))
    reply = vocabulary.script("one", " two").token_ids
    packed = b"".join(token_id.to_bytes(4, "little") for token_id in reply)
    assert engine.generated[-1].token_ids.startswith(first.token_ids + packed + first.closing)


async def test_the_last_reply_can_be_gone_on_with(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary, model: ModelText
) -> None:
    engine.script = vocabulary.script("one")
    begun = messages(("user", "Story please"), ("assistant", "Once upon a "))
    _, _, done = await complete(completions, begun, continue_final_message=True)
    assert done.text == "one"
    assert model.tokenizer.decode(engine.generated[-1].token_ids).endswith("\nOnce upon a ")
    _, _, done = await complete(completions, begun)
    assert model.tokenizer.decode(engine.generated[-1].token_ids).endswith("a \nassistant\n")
    with pytest.raises(InvalidRequest):
        await complete(completions, ASK, continue_final_message=True)


async def test_a_prompt_over_the_context_is_refused_with_the_numbers(
    completions: Completions, engine: ScriptedEngine
) -> None:
    for asked in (None, 100):
        with pytest.raises(ContextLengthExceeded) as caught:
            await complete(completions, messages(("user", "w" * 2040)), new_tokens_max=asked)
        said = caught.value.message
        assert "2048" in said
        assert ("100" in said) == (asked == 100)
    assert engine.generated == []


async def test_a_reply_longer_than_the_room_is_lowered_to_it(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    engine.script = vocabulary.script("one")
    await complete(completions, new_tokens_max=4096)
    sent = engine.generated[-1]
    assert count(sent.token_ids) + sent.new_tokens_max == 2048


async def test_sizes_are_checked_before_anything_is_tokenized(
    client: EngineClient, model: ModelText
) -> None:
    small = ChatLimits(prompt_chars_max=100, messages_max=3)
    completions = Completions(engine=client, model=model, limits=small)
    before = model.tokenizer.memo_stats()
    with pytest.raises(ContextLengthExceeded):
        await complete(completions, messages(("user", "w" * 101)))
    with pytest.raises(InvalidRequest):
        await complete(completions, ASK * 4)
    assert model.tokenizer.memo_stats() == before


async def test_a_content_that_cannot_be_encoded_is_refused_by_its_field(
    client: EngineClient, tildeless: ModelText
) -> None:
    completions = Completions(engine=client, model=tildeless, limits=ChatLimits())
    asked = messages(("user", "x"), ("assistant", "y"), ("user", "a~b"))
    with pytest.raises(InvalidRequest) as caught:
        await complete(completions, asked)
    assert caught.value.param == "messages[2].content"


async def test_no_messages_are_refused_and_empty_ones_are_empty(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary, model: ModelText
) -> None:
    engine.script = vocabulary.script("one")
    with pytest.raises(InvalidRequest):
        await complete(completions, ())
    await complete(completions, messages(("user", "hi"), ("assistant", ""), ("user", "there?")))
    text = model.tokenizer.decode(engine.generated[-1].token_ids)
    assert text == "user\nhi\nassistant\n\nuser\nthere?\nassistant\n"


async def test_log_probabilities_come_with_their_tokens(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    engine.script = vocabulary.script("one", b"\xf0\x9f", b"\x98\x80")
    _, deltas, done = await complete(completions, sampling=Sampling(logprobs=1))
    ids = [entry.token_id for delta in deltas for entry in delta.logprobs]
    assert ids == list(engine.script.token_ids)
    assert done.text == "one😀"


async def test_a_client_that_leaves_cancels_keeping_what_it_was_given(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    engine.script = vocabulary.script("one", forever=True, token_s=0.005)
    events = completions.run(tenant="anna", messages=ASK, params=GenerationParams())
    seen = 0
    async for event in events:
        seen += isinstance(event, Delta)
        if seen == 3:
            break
    await events.aclose()
    assert await cancelled(engine) == [3]


async def test_tokens_that_were_held_back_are_not_kept_when_the_client_leaves(
    completions: Completions, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    # The second token may begin the stop string: its text waits, and was never seen.
    engine.script = vocabulary.script("ABC", "DEF", "G", forever=False, token_s=0.1)
    events = completions.run(
        tenant="anna", messages=ASK, params=GenerationParams(stop=("DEFGHIJ",))
    )
    given: list[Delta] = []

    async def take() -> None:
        async for event in events:
            if isinstance(event, Delta):
                given.append(event)

    reader = asyncio.create_task(take())
    async with asyncio.timeout(30):
        while not given:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.15)
    reader.cancel()
    await asyncio.wait([reader])
    await events.aclose()
    assert [delta.text for delta in given] == ["ABC"]
    assert await cancelled(engine) == [1]


async def cancelled(engine: ScriptedEngine) -> list[int]:
    """How many tokens of the reply the engine was told to keep."""
    async with asyncio.timeout(30):
        while not engine.cancelled:
            await asyncio.sleep(0.01)
    return list(engine.cancelled.values())


async def test_a_deadline_that_is_over_before_the_engine_is_asked_costs_it_nothing(
    completions: Completions, engine: ScriptedEngine
) -> None:
    with pytest.raises(DeadlineExceeded):
        await complete(completions, deadline_at=time.perf_counter())
    assert engine.generated == []

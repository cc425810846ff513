"""What a turn leaves in the cache is what the next prompt begins with."""

from __future__ import annotations

from dataclasses import replace

from appliance.chat.left_behind import left_behind
from appliance.tokens import count, pack
from tests.unit.chat.explained_chat import ExplainedChat
from tests.unit.chat.test_turn_causes import mira


async def test_the_next_prompt_begins_with_prompt_reply_and_what_closes_it() -> None:
    chat = ExplainedChat(mira())
    first = await chat.say("One?")
    left = left_behind(first.prompt, first.reply, chat.model.tokenizer)
    second = await chat.say("Two?")
    assert second.prompt.token_ids.startswith(left.token_ids)
    closing = count(first.prompt.closing)
    assert closing > 0
    assert count(left.behind) == count(first.reply.token_ids or b"") + closing
    assert sum(tokens for _, tokens in left.stretches) == count(left.token_ids)
    assert sum(part.tokens for part in left.parts) == count(left.token_ids)


async def test_a_reply_without_a_word_leaves_its_prompt_alone() -> None:
    chat = ExplainedChat(mira())
    asked = await chat.say("One?", reply="")
    for reply in (None, asked.reply):
        left = left_behind(asked.prompt, reply, chat.model.tokenizer)
        assert (left.behind, left.token_ids) == (b"", asked.prompt.token_ids)
        assert left.parts == asked.prompt.parts


async def test_ids_of_another_tokenizer_are_not_taken_for_its_own() -> None:
    chat = ExplainedChat(mira())
    asked = await chat.say("One?")
    foreign = replace(asked.reply, token_ids=pack([7, 7, 7]), tokenizer="other")
    tokenizer = chat.model.tokenizer
    assert left_behind(asked.prompt, foreign, tokenizer) == replace(
        left_behind(asked.prompt, asked.reply, tokenizer), reply=foreign
    )

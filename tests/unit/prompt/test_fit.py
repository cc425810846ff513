"""Prompts of long conversations: what stays, what goes, and that the rest stays where it was."""

from __future__ import annotations

from itertools import pairwise

import pytest

from appliance.errors import ContextLengthExceeded
from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.continuation import tip_after
from appliance.prompt.fit import fit
from appliance.prompt.messages import PromptMessage
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.truncate import Window
from appliance.tokens import count, unpack
from tests.unit.prompt.formats import conversation, format_of, written
from tests.unit.prompt.templates import ALTERNATING, CHATML, LLAMA2, NO_SYSTEM, SMOLLM2

SPACE = Window(limit=600, reserve=100, step=150)


def system() -> PromptMessage:
    return conversation(("system", "You are the keeper of a light."), namespace=PUBLIC)[0]


@pytest.fixture(scope="module", params=[CHATML, SMOLLM2, NO_SYSTEM, ALTERNATING, LLAMA2])
def chat_format(request: pytest.FixtureRequest) -> ChatFormat:
    return format_of(request.param)


def test_a_long_chat_keeps_system_text_and_newest_message_within_the_room(
    chat_format: ChatFormat,
) -> None:
    history: list[PromptMessage] = []
    prompts = []
    for turn in range(40):
        history += conversation(("user", f"Question {turn}?" + "x" * (turn % 7)))
        fitted = fit(chat_format, [system()], history, SPACE)
        assert fitted.prompt.tokens <= SPACE.room
        text = written(chat_format, unpack(fitted.prompt.token_ids))
        assert "keeper of a light" in text
        assert f"Question {turn}?" in text
        assert history[fitted.messages_dropped].role == "user"
        prompts.append(fitted)
        history += conversation(("assistant", f"Answer {turn}." + "y" * (turn % 5)))
    assert prompts[-1].messages_dropped > 0
    moves = [(a, b) for a, b in pairwise(prompts) if a.messages_dropped != b.messages_dropped]
    assert 0 < len(moves) < 20
    for before, after in pairwise(prompts):
        if before.messages_dropped == after.messages_dropped:
            assert after.prompt.token_ids.startswith(before.prompt.token_ids)


def test_the_same_path_gives_the_same_prompt_again(chat_format: ChatFormat) -> None:
    turns = [("user", f"q{i}") if i % 2 == 0 else ("assistant", f"a{i}") for i in range(61)]
    history = conversation(*turns)  # type: ignore[arg-type]
    first = fit(chat_format, [system()], history, SPACE)
    assert first == fit(chat_format, [system()], list(history), SPACE)


def test_every_stored_conversation_can_go_on(chat_format: ChatFormat) -> None:
    for history in (
        conversation(("user", "a"), ("user", "b")),
        conversation(("assistant", "Greetings!"), ("user", "hi")),
        conversation(("user", "a"), ("assistant", "b"), ("assistant", "c"), ("user", "d")),
    ):
        text = written(
            chat_format, unpack(fit(chat_format, [system()], history, SPACE).prompt.token_ids)
        )
        assert all(message.content in text for message in history)
        assert "keeper" in text


def test_the_next_turn_knows_from_the_window_alone_whether_the_cut_moves(
    chat_format: ChatFormat,
) -> None:
    history = conversation(("user", "Question?"))
    before = fit(chat_format, [system()], history, SPACE)
    moves = 0
    for turn in range(40):
        new = conversation(("assistant", "a" * (turn % 9)), ("user", "q" * (turn % 11)))
        history += new
        now = fit(chat_format, [system()], history, SPACE)
        added = sum(
            count(chat_format.tokenizer.encode(message.content))
            + chat_format.overhead[message.role]
            for message in new
        )
        stays = before.window_tokens + added <= SPACE.room
        assert (now.messages_dropped == before.messages_dropped) is stays
        if stays:
            assert now.window_tokens == before.window_tokens + added
        moves += not stays
        before = now
    assert moves > 0


def test_a_message_that_does_not_fit_is_refused_with_names_and_numbers() -> None:
    chat_format = format_of(CHATML)
    with pytest.raises(ContextLengthExceeded) as caught:
        fit(chat_format, [system()], conversation(("user", "x" * 600)), SPACE)
    assert "messages[0] 39" in caught.value.message
    assert "new message" in caught.value.message
    assert "600" in caught.value.message


def test_a_text_after_the_newest_message_is_in_every_prompt_and_nothing_goes_on_from_it(
    chat_format: ChatFormat,
) -> None:
    after = conversation(("system", "Stay calm."))
    history: list[PromptMessage] = []
    for turn in range(20):
        history += conversation(("user", f"Question {turn}?"))
        fitted = fit(chat_format, [system()], history, SPACE, after=after)
        text = written(chat_format, unpack(fitted.prompt.token_ids))
        assert text.count("Stay calm.") == 1
        assert text.index(f"Question {turn}?") < text.index("Stay calm.")
        end = fitted.prompt.tokens + 4
        assert tip_after(chat_format, fitted, "yes", reply_tokens=4, end=end) is None
        history += conversation(("assistant", f"Answer {turn}."))
    assert fitted.messages_dropped > 0

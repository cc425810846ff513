"""A prompt that goes on from the turn before is the prompt of the whole path, token for token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.chat.history import with_lore
from appliance.errors import ContextLengthExceeded
from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.chat_format.contents import with_ids
from appliance.prompt.continuation import Tip, continued, tip_after
from appliance.prompt.fit import Fitted, fit
from appliance.prompt.messages import PromptMessage
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.truncate import Window
from appliance.store.records import FrozenText
from appliance.tokens import count, head
from tests.unit.prompt.formats import conversation, format_of
from tests.unit.prompt.templates import ALTERNATING, CHATML, LLAMA2, NO_SYSTEM, SMOLLM2

FORMATS = (CHATML, SMOLLM2, NO_SYSTEM, ALTERNATING, LLAMA2)
text = st.text(st.sampled_from("ab \n\té漢🙂<|"), min_size=1, max_size=40)
windows = st.builds(
    Window,
    limit=st.integers(250, 500),
    reserve=st.integers(0, 60),
    step=st.integers(0, 90),
    draft=st.integers(0, 60),
)


def message(role: str, content: str, chat_format: ChatFormat) -> PromptMessage:
    bare = conversation((role, content))[0]  # type: ignore[arg-type]
    return replace(bare, token_ids=chat_format.tokenizer.encode(content, bare.namespace))


def asked_with(lore: str | None, asked: str, chat_format: ChatFormat) -> list[PromptMessage]:
    """A user's message with lore before it, as a chat writes it."""
    texts = () if lore is None else (FrozenText(name="x", text=lore),)
    bare = message("user", asked, chat_format)
    said = with_lore(bare, texts, takes_leads=chat_format.takes_leads)
    return [with_ids(chat_format.tokenizer, one) for one in said]


def goes_on(
    chat_format: ChatFormat, tip: Tip, said: list[PromptMessage], space: Window
) -> Fitted | None:
    return continued(chat_format, tip, said[-1], space, leads=said[:-1])


def next_tip(
    chat_format: ChatFormat, fitted: Fitted, reply: PromptMessage, closed: int
) -> Tip | None:
    assert reply.token_ids is not None
    size = count(reply.token_ids)
    end = fitted.prompt.tokens + size + min(closed, count(chat_format.closing))
    return tip_after(chat_format, fitted, reply.content, reply_tokens=size, end=end)


@settings(max_examples=150, deadline=None)
@given(
    template=st.sampled_from(FORMATS),
    turns=st.lists(
        st.tuples(st.none() | text, text, text, st.integers(0, 9)), min_size=2, max_size=14
    ),
    greeting=st.none() | text,
    has_system=st.booleans(),
    space=windows,
)
def test_going_on_gives_the_tokens_the_stretches_and_the_cut_of_the_whole_path(
    template: str,
    turns: list[tuple[str | None, str, str, int]],
    greeting: str | None,
    has_system: bool,
    space: Window,
) -> None:
    chat_format = format_of(template)
    front = conversation(("system", "Be brief."), namespace=PUBLIC) if has_system else []
    history = [] if greeting is None else [message("assistant", greeting, chat_format)]
    tip: Tip | None = None
    engine = b""
    for lore, asked, answer, closed in turns:
        said = asked_with(lore, asked, chat_format)
        history += said
        try:
            whole = fit(chat_format, front, history, space)
        except ContextLengthExceeded:
            assert tip is None or goes_on(chat_format, tip, said, space) is None
            return
        onward = None if tip is None else goes_on(chat_format, tip, said, space)
        if onward is not None:
            assert head(engine, onward.prompt.known_tokens) + onward.prompt.token_ids == (
                whole.prompt.token_ids
            )
            assert onward.prompt.tokens == whole.prompt.tokens
            assert onward.prompt.stretches == whole.prompt.stretches
            assert onward.prompt.closing == whole.prompt.closing
            assert (onward.messages_dropped, onward.window_tokens) == (
                whole.messages_dropped,
                whole.window_tokens,
            )
            assert whole.is_plain
        history.append(message("assistant", answer, chat_format))
        ids = history[-1].token_ids
        assert ids is not None
        engine = whole.prompt.token_ids + ids + head(chat_format.closing, closed)
        tip = next_tip(chat_format, onward or whole, history[-1], closed)


@pytest.mark.parametrize("template", [CHATML, SMOLLM2, NO_SYSTEM])
def test_an_ordinary_chat_goes_on_in_every_turn_in_which_the_cut_does_not_move(
    template: str,
) -> None:
    chat_format = format_of(template)
    space = Window(limit=600, reserve=50, step=150)
    history: list[PromptMessage] = []
    tip: Tip | None = None
    went_on, moved, dropped = 0, 0, 0
    for turn in range(60):
        history.append(message("user", f"Question {turn}?", chat_format))
        whole = fit(chat_format, [], history, space)
        onward = None if tip is None else continued(chat_format, tip, history[-1], space)
        went_on += onward is not None
        moved += whole.messages_dropped != dropped
        assert (onward is None) == (turn == 0 or whole.messages_dropped != dropped)
        dropped = whole.messages_dropped
        history.append(message("assistant", f"Answer {turn}.", chat_format))
        tip = next_tip(chat_format, onward or whole, history[-1], 9)
    assert moved > 2
    assert went_on == 59 - moved

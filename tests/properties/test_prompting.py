"""Prompt assembly in Rust against its slow reference, on random conversations and formats."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance._core import ChatPieces, ContentRefused, Tokenizer, join_prompt
from appliance.errors import ContextLengthExceeded, InvalidRequest
from appliance.prompt.chat_format.chat_format import End
from appliance.prompt.chat_format.contents import Columns
from appliance.prompt.chat_format.render import render
from appliance.prompt.fit import fit
from appliance.prompt.messages import PromptMessage, Zone
from appliance.prompt.namespace import PUBLIC, tenant_namespace
from appliance.prompt.truncate import Window
from appliance.tokens import unpack
from tests.reference import prompting
from tests.small_tokenizers import tokenizer_json
from tests.unit.prompt.formats import TENANT, format_of, tokenizer
from tests.unit.prompt.templates import (
    ALTERNATING,
    CHATML,
    LAST_IS_SPECIAL,
    LLAMA2,
    NO_SYSTEM,
    SKIPS_EMPTY,
    SMOLLM2,
    WHITE_SPACE,
)

FORMATS = (
    CHATML,
    SMOLLM2,
    NO_SYSTEM,
    ALTERNATING,
    LLAMA2,
    WHITE_SPACE,
    SKIPS_EMPTY,
    LAST_IS_SPECIAL,
)

text = st.text(st.sampled_from("ab \n\t\x1c\x85é漢🙂<|"), max_size=24)
namespaces = st.sampled_from([PUBLIC, TENANT, TENANT, tenant_namespace("b")])
roles = st.sampled_from(["user", "assistant", "user", "assistant", "system"])


@st.composite
def messages(draw: st.DrawFn) -> list[PromptMessage]:
    """Mostly turns, some with stored ids, among them ids that no encoder would give."""
    drawn = []
    alternating = draw(st.booleans())
    for index in range(draw(st.integers(1, 24))):
        content = draw(text)
        stored = None
        if draw(st.booleans()):
            letters = [tokenizer().encode(character) for character in content]
            stored = b"".join(letters)
        drawn.append(
            PromptMessage(
                name=f"messages[{index}]",
                role=("user", "assistant")[index % 2] if alternating else draw(roles),  # type: ignore[arg-type]
                zone=Zone.HISTORY,
                content=content,
                namespace=draw(namespaces),
                token_ids=stored,
                block=draw(blocks),
            )
        )
    return drawn


windows = st.builds(
    Window,
    limit=st.integers(40, 300),
    reserve=st.integers(0, 60),
    step=st.integers(0, 90),
    draft=st.integers(0, 20),
)
blocks = st.sampled_from([None, None, "a", "b"])


@settings(max_examples=250, deadline=None)
@given(
    template=st.sampled_from(FORMATS),
    history=messages(),
    fronts=st.lists(st.tuples(text, namespaces, st.integers(0, 3), blocks), max_size=5),
    afters=st.lists(st.tuples(text, st.integers(0, 3)), max_size=2),
    history_priority=st.integers(1, 3),
    space=windows,
)
def test_a_fitted_prompt_is_that_of_the_slow_reference(
    template: str,
    history: list[PromptMessage],
    fronts: list[tuple[str, bytes, int, str | None]],
    afters: list[tuple[str, int]],
    history_priority: int,
    space: Window,
) -> None:
    chat_format = format_of(template)
    system = replace(history[0], name="system", role="system", token_ids=None, block=None)
    front = [
        replace(
            system,
            name=f"front {index}",
            content=text,
            namespace=owner,
            truncation_priority=priority,
            block=block,
        )
        for index, (text, owner, priority, block) in enumerate(fronts)
    ]
    after = [
        replace(system, name=f"after {index}", content=text, truncation_priority=priority)
        for index, (text, priority) in enumerate(afters)
    ]
    fitting = partial(
        fit, chat_format, front, history, space, after=after, history_priority=history_priority
    )
    try:
        expected = prompting.fitted(
            chat_format, front, history, space, after=after, history_priority=history_priority
        )
    except InvalidRequest as error:
        with pytest.raises(InvalidRequest, match=re.escape(error.message)):
            fitting()
        return
    if expected is None:
        with pytest.raises(ContextLengthExceeded):
            fitting()
        return
    found = fitting()
    assert list(unpack(found.prompt.token_ids)) == expected.ids
    assert list(found.prompt.stretches) == expected.stretches
    assert list(found.prompt.part_tokens) == expected.parts
    assert [part.tokens for part in found.prompt.parts] == expected.parts
    assert found.messages_dropped == expected.dropped
    assert tuple(part.name for part in found.left_out) == expected.left_out
    assert found.window_tokens == expected.window_tokens


@settings(max_examples=250, deadline=None)
@given(
    template=st.sampled_from(FORMATS),
    given_messages=messages(),
    end=st.sampled_from([End.REPLY, End.CONTINUE]),
)
def test_a_rendered_prompt_is_that_of_the_slow_reference(
    template: str, given_messages: list[PromptMessage], end: End
) -> None:
    chat_format = format_of(template)
    if end is End.CONTINUE:
        given_messages = [*given_messages, replace(given_messages[0], role="assistant")]
    try:
        ids, stretches, parts = prompting.assembled(chat_format, given_messages, end)
    except InvalidRequest as error:
        with pytest.raises(InvalidRequest, match=re.escape(error.message)):
            render(chat_format, given_messages, end)
        return
    prompt = render(chat_format, given_messages, end)
    assert list(unpack(prompt.token_ids)) == ids
    assert list(prompt.stretches) == stretches
    assert list(prompt.part_tokens) == parts


def test_contents_are_trimmed_of_what_python_calls_white_space() -> None:
    chat_format = format_of(NO_SYSTEM)
    base = PromptMessage(
        name="m", role="user", zone=Zone.HISTORY, content="", namespace=TENANT, token_ids=None
    )
    for code in [*range(0x300), *range(0x1600, 0x3100), 0xFEFF]:
        character = chr(code)
        content = f"{character}x{character}"
        prompt = render(chat_format, [replace(base, content=content)], End.REPLY)
        trimmed = replace(base, content=content.strip())
        assert prompt.token_ids == render(chat_format, [trimmed], End.REPLY).token_ids, hex(code)


def columns(*contents: str) -> Columns:
    count = len(contents)
    return ["user"] * count, list(contents), [None] * count, [b"n"] * count


def test_a_content_that_cannot_be_encoded_is_named() -> None:
    pieces = ChatPieces(
        small := Tokenizer(tokenizer_json("byte-level").encode(), memo_bytes_max=0),
        slots=[(None, "user", (b"", False, False)), ("user", "user", (b"", False, False))],
        ends=[("user", True, b"")],
        overhead=[],
    )
    long = "x" * ((8 << 20) + 1)
    with pytest.raises(ContentRefused) as caught:
        pieces.join(columns("a", long), public=b"", continues=False)
    assert caught.value.args[0] == 1
    slots = [(b"", False, False)] * 2
    with pytest.raises(ContentRefused):
        join_prompt(small, columns("a", long), public=b"", slots=slots, after=b"", continues=False)
    for name in ("message 1", "x"):
        refused = PromptMessage(
            name=name, role="user", zone=Zone.HISTORY, content="\ud800", namespace=TENANT
        )
        for attempt in (
            lambda m=refused: render(format_of(CHATML), [m], End.REPLY),
            lambda m=refused: render(format_of(LAST_IS_SPECIAL), [m], End.REPLY),
            lambda m=refused: fit(format_of(CHATML), [], [m], Window(limit=99, reserve=0, step=0)),
            lambda m=refused: fit(
                format_of(LAST_IS_SPECIAL), [], [m], Window(limit=99, reserve=0, step=0)
            ),
        ):
            with pytest.raises(InvalidRequest) as named:
                attempt()
            assert named.value.param == f"{name}.content"


def test_bad_input_is_a_value_error() -> None:
    small = Tokenizer(tokenizer_json("byte-level").encode(), memo_bytes_max=0)
    pieces = ChatPieces(small, slots=[], ends=[], overhead=[])
    roles_, texts, ids, names = columns("a")
    window = {
        "public": b"",
        "front": [],
        "after": [],
        "holds": [],
        "history_priority": 1,
        "window": (10, 0, 0, 0),
    }
    with pytest.raises(ValueError, match="no role is called"):
        pieces.join((["tool"], texts, ids, names), public=b"", continues=False)
    with pytest.raises(ValueError, match="whole number of u32"):
        pieces.join((roles_, texts, [b"abc"], names), public=b"", continues=False)
    with pytest.raises(ValueError, match="differ in length"):
        pieces.join((roles_, texts, ids, []), public=b"", continues=False)
    with pytest.raises(ValueError, match="named than there are"):
        pieces.fit(columns(), **{**window, "front": [("x", 0, None)]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too large"):
        pieces.fit(columns("a"), **{**window, "window": (1 << 40, 0, 0, 0)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a slot"):
        join_prompt(small, columns("a"), public=b"", slots=[], after=b"", continues=False)
    with pytest.raises(ValueError, match="no role is called"):
        ChatPieces(small, slots=[], ends=[("x", True, b"")], overhead=[])
    assert pieces.join(columns("a"), public=b"", continues=False) is None
    assert pieces.join(columns(), public=b"", continues=False) is None
    assert pieces.fit(columns(), **window) == ((0, [], 0), None)  # type: ignore[arg-type]

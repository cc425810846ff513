"""Places in the list of conversations, and turns out of messages."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import InvalidRequest
from appliance.store.records import Cursor, Message, stored_turn


@given(st.datetimes(timezones=st.just(UTC)), st.uuids())
def test_a_cursor_survives_its_text_to_the_microsecond(moment: datetime, name: UUID) -> None:
    cursor = Cursor(updated_at=moment, conversation_id=name)
    assert Cursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "1",
        "1.",
        "x.00000000-0000-0000-0000-000000000000",
        "1.not-a-uuid",
        f"{'9' * 40}.{UUID(int=1)}",
    ],
)
def test_a_text_that_is_no_cursor_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Cursor.parse(text)
    assert refused.value.param == "before"


@given(st.text(max_size=60))
def test_no_text_makes_parsing_a_cursor_fail_in_another_way(text: str) -> None:
    try:
        Cursor.parse(text)
    except InvalidRequest:
        return


def message(role: str) -> Message:
    return Message(
        message_id=uuid4(),
        parent_id=None,
        role=role,
        text="",
        token_ids=None,
        tokenizer=None,
        finish_reason=None,
        prompt_tokens=None,
        prefix_hit_tokens=None,
        created_at=datetime.now(UTC),
    )


def test_a_turn_is_a_reply_with_or_without_what_it_answers() -> None:
    user, reply = message("user"), message("assistant")
    key = uuid4()
    assert stored_turn(key, []) is None
    alone = stored_turn(key, [reply])
    assert alone is not None
    assert (alone.user, alone.assistant, alone.replayed) == (None, reply, True)
    both = stored_turn(key, [user, reply])
    assert both is not None
    assert (both.turn_key, both.user, both.assistant) == (key, user, reply)

"""Persona and author's note over HTTP: where they stand in prompts, what a change costs, their limits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.door import Door
from tests.unit.server.test_conversations import create, get, send

PERSONA = {"name": "Tom", "text": "A sailor of forty."}


async def patch(door: Door, conversation_id: str, fields: dict[str, Any]) -> tuple[int, Any]:
    url = f"{door.url}/api/conversations/{conversation_id}"
    async with door.session.patch(url, json=fields) as answer:
        return answer.status, await answer.json()


async def prompt_of(door: Door, conversation_id: str, text: str) -> tuple[str, list[str]]:
    """The prompt of the reply to a new message: its text, and the names of its parts."""
    door.say("one")
    streamed = await send(door, conversation_id, text)
    reply = streamed.chunks[-1]["message"]["id"]
    path = f"/api/conversations/{conversation_id}/messages/{reply}/prompt"
    prompt = await get(door, path)
    assert len(prompt["token_ids"]) == streamed.chunks[0]["prompt_tokens"]
    return prompt["text"], [part["name"] for part in prompt["parts"]]


async def test_a_persona_stands_before_the_history_and_says_what_a_change_costs(
    stored_door: Door,
) -> None:
    door = stored_door
    opened = await create(door, persona=PERSONA)
    text, parts = await prompt_of(door, opened, "Hello")
    assert text.index("The user's name is Tom.") < text.index("A sailor") < text.index("Hello")
    assert parts[:3] == ["system", "user", "persona"]
    stored = await get(door, f"/api/conversations/{opened}")
    assert stored["persona"] == PERSONA
    *_, reply = stored["messages"]
    status, told = await patch(door, opened, {"persona": {"name": "Ann"}})
    assert (status, told["persona"]) == (200, {"name": "Ann", "text": ""})
    one = 1
    assert told["recompute_tokens"] == reply["usage"]["prompt_tokens"] + one
    text, _ = await prompt_of(door, opened, "Who am I?")
    assert "The user's name is Ann." in text
    assert "Tom" not in text
    status, told = await patch(door, opened, {"title": "T"})
    assert "recompute_tokens" not in told
    await patch(door, opened, {"persona": None})
    text, parts = await prompt_of(door, opened, "And now?")
    assert "Ann" not in text
    assert "user" not in parts


@pytest.mark.parametrize(
    "fields", [{"persona": {"nam": "x"}}, {"prompt_versoin": "production"}, {"note": {"txt": "x"}}]
)
async def test_a_name_that_is_mistyped_takes_nothing_away(
    stored_door: Door, fields: dict[str, Any]
) -> None:
    opened = await create(stored_door, persona=PERSONA, note={"text": "Be grim."})
    before = await get(stored_door, f"/api/conversations/{opened}")
    status, told = await patch(stored_door, opened, fields)
    assert (status, told["error"]["code"]) == (400, "invalid_request")
    assert await get(stored_door, f"/api/conversations/{opened}") == before


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        ({"prompt_version": "nightly"}, 404),
        ({"head_id": "00000000-0000-4000-8000-000000000000"}, 404),
        ({"members": ["nobody", "assistant"]}, 404),
    ],
)
async def test_of_a_change_that_is_refused_in_part_nothing_is_stored(
    stored_door: Door, refused: dict[str, Any], status: int
) -> None:
    door = stored_door
    opened = await create(door, title="Before", persona=PERSONA)
    door.say("one")
    first = (await send(door, opened, "Hello")).chunks[-1]["message"]
    await send(door, opened, "Other", parent_id=None)
    before = await get(door, f"/api/conversations/{opened}")
    asked = {
        "title": "After",
        "head_id": first["id"],
        "persona": {"name": "Ann"},
        "note": {"text": "Be grim."},
        **refused,
    }
    found, told = await patch(door, opened, asked)
    assert (found, told["error"]["code"]) == (status, "not_found")
    assert await get(door, f"/api/conversations/{opened}") == before


async def test_a_note_stands_after_the_newest_message(stored_door: Door) -> None:
    door = stored_door
    opened = await create(door, note={"text": "Be grim."})
    for said in ("Hello", "Again"):
        text, _ = await prompt_of(door, opened, said)
        assert text.count("Be grim.") == 1
        assert text.index("Be grim.") > text.index(said)
    _, told = await patch(door, opened, {"note": None})
    assert (told["note"], "recompute_tokens" in told) == (None, False)
    text, _ = await prompt_of(door, opened, "Third")
    assert "Be grim." not in text


async def test_a_note_of_every_so_many_messages_stays_where_it_was_written(
    stored_door: Door,
) -> None:
    door = stored_door
    opened = await create(door, note={"text": "Be grim.", "every": 2})
    texts = [(await prompt_of(door, opened, f"Message {number}"))[0] for number in range(5)]
    assert [text.count("Be grim.") for text in texts] == [1, 1, 2, 2, 3]
    for number in range(4):
        assert texts[number + 1].startswith(texts[number])
    last = texts[-1]
    for number in (0, 2, 4):
        assert "Be grim." in last[: last.index(f"Message {number}")][-60:]
    stored = await get(door, f"/api/conversations/{opened}")
    assert [len(message["lore"]) for message in stored["messages"][::2]] == [1, 0, 1, 0, 1]
    assert stored["messages"][0]["lore"] == [{"name": "author's note", "text": "Be grim."}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"persona": {"name": "x" * 101}}, "persona.name"),
        ({"persona": {"text": "x" * 16_001}}, "persona.text"),
        ({"persona": 7}, "persona"),
        ({"note": {"text": ""}}, "note.text"),
        ({"note": {"text": "x", "every": 0}}, "note.every"),
        ({"note": {}}, "note.text"),
    ],
)
async def test_a_persona_or_note_that_is_no_such_thing_changes_nothing(
    stored_door: Door, fields: dict[str, Any], param: str
) -> None:
    door = stored_door
    opened = await create(door, persona=PERSONA)
    status, told = await patch(door, opened, fields)
    assert (status, told["error"]["param"]) == (400, param)
    assert (await get(door, f"/api/conversations/{opened}"))["persona"] == PERSONA

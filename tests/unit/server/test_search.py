"""Search over real HTTP: found, paged, refused by name, and never another tenant's."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.unit.server.door import Door
from tests.unit.server.test_conversations import create, get, send


async def test_a_word_of_a_turn_finds_its_conversation_with_the_place(stored_door: Door) -> None:
    door = stored_door
    first, other = await create(door), await create(door, title="Nothing")
    door.say("one", " two")
    await send(door, first, "Wo ist der löwe?")
    found = await get(door, "/api/conversations?search=" + quote("LÖWE"))
    assert [row["id"] for row in found["conversations"]] == [first]
    assert (found["next"], found["complete"]) == (None, True)
    match = found["conversations"][0]["match"]
    tree = await get(door, f"/api/conversations/{first}")
    assert match["message_id"] in {message["id"] for message in tree["messages"]}
    assert "löwe" in match["excerpt"].lower()
    by_title = await get(door, "/api/conversations?search=nothing")
    assert [(row["id"], row["match"]) for row in by_title["conversations"]] == [(other, None)]
    async with door.session.delete(f"{door.url}/api/conversations/{first}") as answer:
        assert answer.status == 204
    assert (await get(door, "/api/conversations?search=one%20two"))["conversations"] == []


async def test_pages_of_a_search_follow_each_other(stored_door: Door) -> None:
    door = stored_door
    ids = [await create(door, title=f"needle {number}") for number in range(5)]
    seen: list[str] = []
    path = "/api/conversations?search=needle&limit=2"
    page: Any = await get(door, path)
    while page["next"] is not None:
        seen += [row["id"] for row in page["conversations"]]
        page = await get(door, f"{path}&before={page['next']}")
    seen += [row["id"] for row in page["conversations"]]
    assert seen == ids[::-1]


@pytest.mark.parametrize("text", ["", "ab", "%00abc", "x" * 201, "%ff%fe%fd"])
async def test_a_text_that_cannot_be_searched_for_is_a_fault_of_the_field(
    stored_door: Door, text: str
) -> None:
    async with stored_door.session.get(
        f"{stored_door.url}/api/conversations?search={text}"
    ) as answer:
        told = await answer.json()
        if answer.status == 200:  # Bytes that are no UTF-8 are read as signs that stand for them.
            assert told["conversations"] == []
        else:
            assert (answer.status, told["error"]["param"]) == (400, "search")


async def test_a_reply_with_a_sign_that_the_database_cannot_hold_is_listed_read_and_found(
    stored_door: Door,
) -> None:
    door = stored_door
    conversation_id = await create(door)
    door.say("one", b"\x00", " two")
    assert (await send(door, conversation_id, "Say it")).chunks[-1]["persisted"] is True
    listed = await get(door, "/api/conversations")
    assert [row["id"] for row in listed["conversations"]] == [conversation_id]
    reply = (await get(door, f"/api/conversations/{conversation_id}"))["messages"][1]
    assert reply["text"] == "one\N{SYMBOL FOR NULL} two"
    found = await get(door, "/api/conversations?search=" + quote(reply["text"]))
    assert found["conversations"][0]["match"]["message_id"] == reply["id"]

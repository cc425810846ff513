"""Cards over HTTP: imported under ids of their own and exported again; bad ones import nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest

from appliance.chat.publishing import fill_empty
from appliance.config import ApiKey, ServerConfig
from appliance.prompt.cards.reading import CARD_BYTES_MAX
from appliance.server.main import PROMPTS_DIR
from tests.card_fixtures import (
    BOOK,
    JPEG,
    MAIN_ICON,
    charx,
    encoded,
    pixels,
    png,
    png_file,
    v2,
    v3,
)
from tests.unit.server.door import Door, open_door


@pytest.fixture
async def box(stored_door: Door) -> Door:
    """A server whose characters are in the database, as after a first start."""
    await fill_empty(stored_door.services.catalog.registry, PROMPTS_DIR)
    await stored_door.services.catalog.reload()
    return stored_door


async def bring(
    door: Door, data: bytes, *, query: str = "", content_type: str = "application/octet-stream"
) -> tuple[int, Any]:
    return await door.post(f"/v1/characters{query}", data, headers={"Content-Type": content_type})


async def get(door: Door, path: str, **options: Any) -> tuple[int, bytes, Mapping[str, str]]:
    async with door.session.get(door.url + path, **options) as answer:
        return answer.status, await answer.read(), answer.headers


async def listed(door: Door) -> list[dict[str, Any]]:
    status, body, _ = await get(door, "/v1/characters")
    assert status == 200
    return list(json.loads(body)["characters"])


async def chat_with(door: Door, character: str) -> tuple[list[str], str]:
    """(greetings, the prompt's text) of a conversation with one turn."""
    status, conversation = await door.post("/api/conversations", {"character": character})
    assert status == 201
    path = f"/api/conversations/{conversation['id']}"
    _, body, _ = await get(door, path)
    greetings = [message["text"] for message in json.loads(body)["messages"]]
    door.say("ok")
    streamed = await door.stream(f"{path}/messages", {"text": "Who are you?"})
    assert streamed.text == "ok"
    reply = streamed.chunks[-1]["message"]["id"]
    _, body, _ = await get(door, f"{path}/messages/{reply}/prompt")
    return greetings, json.loads(body)["text"]


async def test_the_same_card_is_the_same_character_and_another_of_the_name_is_its_own(
    box: Door,
) -> None:
    status, first = await bring(box, encoded(v2(name="Mira the Öwl")))
    assert (status, first["character"]["id"]) == (201, "mira-the-owl")
    status, again = await bring(box, encoded(v2(name="Mira the Öwl")))
    assert (status, again["created"], again["version"]) == (200, False, first["version"])
    status, other = await bring(box, encoded(v2(name="Mira the Öwl", scenario="Elsewhere.")))
    assert (status, other["character"]["id"]) == (201, "mira-the-owl-2")
    status, again = await bring(box, encoded(v2(name="Mira the Öwl", scenario="Elsewhere.")))
    assert (status, again["character"]["id"]) == (200, "mira-the-owl-2")
    found = [item["id"] for item in await listed(box)]
    assert found.count("mira-the-owl") == found.count("mira-the-owl-2") == 1


async def test_a_named_character_gets_a_new_version_and_its_conversations_keep_theirs(
    box: Door,
) -> None:
    await bring(box, encoded(v2(scenario="At sea.")), query="?id=mira")
    _, conversation = await box.post("/api/conversations", {"character": "mira"})
    status, told = await bring(box, encoded(v2(scenario="Ashore.")), query="?id=mira")
    assert (status, told["created"], told["character"]["id"]) == (201, True, "mira")
    box.say("ok")
    path = f"/api/conversations/{conversation['id']}"
    streamed = await box.stream(f"{path}/messages", {"text": "Where are we?"})
    reply = streamed.chunks[-1]["message"]["id"]
    _, body, _ = await get(box, f"{path}/messages/{reply}/prompt")
    assert "At sea." in json.loads(body)["text"]
    _, prompt = await chat_with(box, "mira")
    assert "Ashore." in prompt


async def test_two_imports_at_once_take_two_ids(box: Door) -> None:
    cards = [encoded(v2(scenario=f"Number {number}.")) for number in range(4)]
    answers = await asyncio.gather(*(bring(box, card) for card in cards))
    ids = [told["character"]["id"] for _, told in answers]
    assert sorted(ids) == ["mira", "mira-2", "mira-3", "mira-4"]


BAD = (
    (b"nothing", "", "invalid_card", "no PNG, CHARX or JSON file"),
    (encoded(v2(first_mes=7)), "", "invalid_card", "data.first_mes: expected text"),
    (png("chara", v2())[:-20], "", "invalid_card", "chunk 'IDAT': the file ends"),
    (encoded(v2()), "?id=No%20id", "invalid_bundle", "is not 1 to 64 of a-z"),
    (encoded(v2(description="{{char}}" * 30_000, name="x" * 100)), "", "invalid_card", "once"),
)
"""(file, query, code of the refusal, what it says)."""


async def test_an_import_says_which_lore_will_never_match(box: Door) -> None:
    entry = {"keys": ["/(?<=x)y/"], "use_regex": True, "content": "Y.", "name": "deep"}
    book = {"entries": [entry | {"enabled": True, "insertion_order": 0, "extensions": {}}]}
    status, told = await bring(box, encoded(v3(name="Sage", character_book=book)))
    assert status == 201
    assert any("entry 'deep' never matches" in warning for warning in told["warnings"])


async def test_a_refused_card_imports_nothing(box: Door) -> None:
    before = await listed(box)
    for data, query, code, said in BAD:
        status, told = await bring(box, data, query=query)
        assert (status, told["error"]["code"]) == (400, code)
        assert said in told["error"]["message"]
        assert told["error"]["param"]
        assert await listed(box) == before
    assert len(await box.services.catalog.registry.names()) == len(before)


async def test_a_file_that_is_too_large_or_of_another_type_is_refused_at_the_door(
    box: Door,
) -> None:
    status, told = await bring(box, b" " * (CARD_BYTES_MAX + 1))
    assert (status, told["error"]["code"]) == (413, "payload_too_large")
    status, told = await bring(box, encoded(v2()), content_type="text/html")
    assert (status, told["error"]["code"]) == (415, "unsupported_media_type")
    assert "image/png" in told["error"]["message"]


async def test_only_the_operators_key_may_import(database_url: str) -> None:
    keys = tuple(
        ApiKey(
            tenant=tenant,
            sha256=hashlib.sha256(tenant.encode()).hexdigest(),
            operator=tenant == "boss",
        )
        for tenant in ("boss", "guest")
    )
    async with open_door(ServerConfig(api_keys=keys), url=database_url) as door:
        await fill_empty(door.services.catalog.registry, PROMPTS_DIR)
        await door.services.catalog.reload()
        for tenant, status in (("guest", 403), ("boss", 201)):
            headers = {"Authorization": f"Bearer {tenant}"}
            async with door.session.post(
                door.url + "/v1/characters", json=v2(), headers=headers
            ) as answer:
                assert answer.status == status
                told = await answer.json()
            _, body, _ = await get(door, "/v1/characters", headers=headers)
            assert json.loads(body)["may_import"] == (tenant == "boss")
            if status == 403:
                assert told["error"]["code"] == "not_allowed"
        assert "mira" in [item["id"] for item in json.loads(body)["characters"]]
        status, _, _ = await get(door, "/v1/characters/mira/avatar")
        assert status == 401


async def test_a_portrait_is_served_as_the_image_it_is_and_as_nothing_else(box: Door) -> None:
    await bring(box, png("chara", v2()), query="?id=png")
    await bring(
        box, charx(v3(assets=[MAIN_ICON]), {"assets/icon/images/a.png": JPEG}), query="?id=jpeg"
    )
    svg = {
        "assets/icon/images/a.png": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
    }
    await bring(box, charx(v3(assets=[MAIN_ICON]), svg), query="?id=svg")
    await bring(box, encoded(v2()), query="?id=none")
    addresses = {item["id"]: item["avatar"] for item in await listed(box)}
    assert addresses["svg"] is addresses["none"] is addresses["assistant"] is None
    for name, kind in (("png", "image/png"), ("jpeg", "image/jpeg")):
        status, data, headers = await get(box, addresses[name])
        assert (status, headers["Content-Type"]) == (200, kind)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert data == (JPEG if name == "jpeg" else png_file(pixels()))
        asked = {"If-None-Match": headers["ETag"]}
        status, data, _ = await get(box, addresses[name], headers=asked)
        assert (status, data) == (304, b"")
    for path in ("svg/avatar", "assistant/avatar", "nobody/card"):
        status, _, _ = await get(box, f"/v1/characters/{path}")
        assert status == 404


async def test_an_export_says_what_it_cannot_carry(box: Door) -> None:
    await bring(box, png("ccv3", v3(nickname="Mi", assets=[MAIN_ICON])), query="?id=mi")
    path = "/v1/characters/mi/card"
    _, data, headers = await get(box, f"{path}?version=2")
    assert headers["X-Card-Not-Carried"] == "data.assets, data.nickname, image"
    assert headers["Content-Disposition"] == 'attachment; filename="mi.json"'
    assert json.loads(data)["spec"] == "chara_card_v2"
    for query, said in (("format=gif", "format: expected"), ("version=4", "version: expected")):
        status, body, _ = await get(box, f"{path}?{query}")
        assert status == 400
        assert said in json.loads(body)["error"]["message"]


async def test_greetings_are_swipes_and_what_is_said_after_one_stands_below_it(box: Door) -> None:
    card = v2(alternate_greetings=["Hey {{user}}.", "{{random:x,x}}!"], character_book=BOOK)
    await bring(box, encoded(card), query="?id=mira")
    _, conversation = await box.post("/api/conversations", {"character": "mira"})
    path = f"/api/conversations/{conversation['id']}"
    _, body, _ = await get(box, path)
    tree = json.loads(body)
    assert [message["text"] for message in tree["messages"]] == [
        "Come in, User.",
        "Hey User.",
        "x!",
    ]
    assert tree["head_id"] == tree["messages"][0]["id"]
    second = tree["messages"][1]["id"]
    box.say("ok")
    streamed = await box.stream(f"{path}/messages", {"text": "Hi", "parent_id": second})
    reply = streamed.chunks[-1]["message"]["id"]
    _, body, _ = await get(box, f"{path}/messages/{reply}/prompt")
    prompt = json.loads(body)
    assert "Hey User." in prompt["text"]
    assert "Come in" not in prompt["text"]
    names = [part["name"] for part in prompt["parts"]]
    assert names[:2] == ["system", "example 1"]
    assert {part["zone"] for part in prompt["parts"][:3]} == {"character"}

"""Characters that are replaced, removed, brought back and exported over HTTP: who may, and what stays."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from appliance.chat.publishing import fill_empty
from appliance.config import ApiKey, ServerConfig
from appliance.prompt.cards.reading import read_card
from appliance.server.main import PROMPTS_DIR
from tests.card_fixtures import encoded, v2, v3
from tests.characters import bundle_of, with_lore
from tests.unit.server.door import Door, open_door
from tests.unit.server.moved_catalog import move_all
from tests.unit.server.test_conversations import create, get, send

BOOK = {"spec": "lorebook_v3", "data": {"entries": [{"keys": ["owl"], "content": "Owls."}]}}


@pytest.fixture
async def door(stored_door: Door) -> Door:
    services = stored_door.services
    await fill_empty(services.catalog.registry, PROMPTS_DIR)
    await services.catalog.reload()
    return stored_door


async def bring(door: Door, card: Any, query: str = "") -> tuple[int, Any]:
    async with door.session.post(
        f"{door.url}/v1/characters{query}",
        data=io.BytesIO(encoded(card)),
        headers={"Content-Type": "application/json"},
    ) as answer:
        return answer.status, await answer.json()


async def remove(door: Door, character_id: str, query: str = "") -> tuple[int, Any]:
    async with door.session.delete(f"{door.url}/v1/characters/{character_id}{query}") as answer:
        return answer.status, None if answer.status == 204 else await answer.json()


async def listed(door: Door) -> list[str]:
    return [one["id"] for one in (await get(door, "/v1/characters"))["characters"]]


async def test_a_protected_character_is_not_published_over_unless_that_is_confirmed(
    door: Door,
) -> None:
    registry = door.services.catalog.registry
    before = await registry.versions("lighthouse")
    status, told = await bring(door, v2(name="Mara"), "?id=lighthouse")
    assert (status, told["error"]["code"]) == (409, "label_protected")
    assert told["error"]["param"] == "confirm"
    assert "confirm=production" in told["error"]["message"]
    assert await registry.versions("lighthouse") == before, "nothing was published"
    status, told = await bring(door, v2(name="Mara"), "?id=lighthouse&confirm=yes")
    assert (status, told["error"]["param"]) == (400, "confirm")
    status, told = await bring(door, v2(name="Mara"), "?id=lighthouse&confirm=production")
    assert (status, told["created"]) == (201, True)
    assert len(await registry.versions("lighthouse")) == len(before) + 1
    assert door.services.catalog.current.get("lighthouse").character.name == "Mara"


async def test_a_removed_character_is_listed_no_more_and_its_conversations_go_on(
    door: Door,
) -> None:
    status, told = await bring(door, v3(name="Mira", first_mes="Hello."))
    assert status == 201
    opened = await create(door, character="mira")
    assert await remove(door, "mira") == (204, None)
    assert "mira" not in await listed(door)
    status, told = await door.post("/api/conversations", {"character": "mira"})
    assert (status, told["error"]["param"]) == (404, "character")
    door.say("one")
    streamed = await send(door, opened, "Still there?")
    assert streamed.chunks[-1]["finish_reason"] == "stop"
    assert (await remove(door, "mira"))[0] == 404
    (newest, *_) = await door.services.catalog.registry.moves("mira")
    assert newest.message == "removed from the list"
    assert newest.from_version == newest.to_version
    # The very same card comes back under its id.
    status, told = await bring(door, v3(name="Mira", first_mes="Hello."))
    assert (status, told["character"]["id"]) == (201, "mira")
    assert "mira" in await listed(door)
    assert await remove(door, "mira") == (204, None)
    # Another one of the name does not take the id of those conversations.
    status, told = await bring(door, v3(name="Mira", first_mes="Goodbye."))
    assert told["character"]["id"] == "mira-2"


async def test_a_protected_character_is_removed_when_confirmed_and_the_default_one_never(
    door: Door,
) -> None:
    status, told = await remove(door, "gardener")
    assert (status, told["error"]["code"]) == (409, "label_protected")
    assert "gardener" in await listed(door)
    assert await remove(door, "gardener", "?confirm=production") == (204, None)
    assert "gardener" not in await listed(door)
    status, told = await remove(door, "assistant", "?confirm=production")
    assert (status, told["error"]["param"]) == (400, "id")
    assert (await listed(door))[0] == "assistant"


async def test_a_character_that_is_no_card_is_exported_as_one(door: Door) -> None:
    bundle = with_lore(
        bundle_of(
            "keeper",
            name="Kee",
            description="Keeps.",
            system="You keep {{things}}.",
            greeting="Come in!",
            post_history="Be short.",
            suggestions=["Who?"],
            sampling={"temperature": 1.2},
            lore_placement="as_written",
        ),
        BOOK,
    )
    await move_all(door.services, bundle)
    async with door.session.get(door.url + "/v1/characters/keeper/card") as answer:
        assert answer.status == 200
        left = answer.headers["X-Card-Not-Carried"]
        assert "braces" in left
        assert "suggestions: 1" in left
        assert "sampling: temperature" in left
        document = await answer.json()
    card = read_card(json.dumps(document).encode())
    assert document["spec"] == "chara_card_v3"
    assert (card.name, card.system_prompt, card.greeting) == (
        "Kee",
        "You keep {{things}}.",
        "Come in!",
    )
    assert card.post_history_instructions == "Be short."
    assert card.creator_notes == "Keeps."
    assert card.lore_placement == "as_written"
    assert [entry.content for entry in card.lorebooks[0].entries] == ["Owls."]
    assert not card.warnings
    async with door.session.get(door.url + "/v1/characters/keeper/card?format=png") as answer:
        assert read_card(await answer.read()).name == "Kee"
    status, told = await bring(door, document)
    assert (status, told["character"]["id"]) == (201, "kee")
    async with door.session.get(door.url + "/v1/characters/keeper/avatar") as answer:
        assert answer.status == 404


async def test_a_greeting_that_macros_make_too_large_leaves_no_conversation(door: Door) -> None:
    """A short name at the import, the longest one in a conversation."""
    greeting = "{{user}} " * 12_000
    status, told = await bring(door, v3(name="Echo", first_mes=greeting))
    assert status == 201
    status, told = await door.post(
        "/api/conversations", {"character": "echo", "persona": {"name": "x" * 100}}
    )
    assert (status, told["error"]["code"]) == (400, "invalid_card")
    assert "1048576" in told["error"]["message"]
    assert (await get(door, "/api/conversations"))["conversations"] == []
    await create(door, character="echo")


KEYS = {"anna": False, "boss": True}


@pytest.fixture
async def shared_door(database_url: str) -> AsyncIterator[Door]:
    keys = tuple(
        ApiKey(
            tenant=tenant,
            sha256=hashlib.sha256(tenant.encode()).hexdigest(),
            operator=is_operator,
        )
        for tenant, is_operator in KEYS.items()
    )
    async with open_door(ServerConfig(api_keys=keys), url=database_url) as opened:
        await fill_empty(opened.services.catalog.registry, PROMPTS_DIR)
        await opened.services.catalog.reload()
        yield opened


async def as_tenant(
    door: Door, tenant: str, method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {tenant}"}
    async with door.session.request(method, door.url + path, json=body, headers=headers) as answer:
        return answer.status, None if answer.status == 204 else await answer.json()


async def test_a_version_without_a_label_is_the_operators_alone(shared_door: Door) -> None:
    door = shared_door
    registry = door.services.catalog.registry
    draft = bundle_of("lighthouse", system="A draft.")
    await registry.publish("lighthouse", draft.version, draft.files, author="a", message="b")
    status, told = await as_tenant(
        door, "anna", "POST", "/api/conversations", {"character": "lighthouse"}
    )
    path = f"/api/conversations/{told['id']}"
    asked = {"prompt_version": draft.version[:12]}
    status, told = await as_tenant(door, "anna", "PATCH", path, asked)
    assert (status, told["error"]["param"]) == (404, "prompt_version")
    status, told = await as_tenant(
        door, "boss", "POST", "/api/conversations", {"character": "lighthouse"}
    )
    own = f"/api/conversations/{told['id']}"
    status, told = await as_tenant(door, "boss", "PATCH", own, asked)
    assert (status, told["prompt_version"]) == (200, draft.version)
    at = await registry.resolve("lighthouse", "production")
    await registry.move("lighthouse", "canary", draft.version, seen=None, author="a", message="b")
    status, told = await as_tenant(door, "anna", "PATCH", path, asked)
    assert (status, told["prompt_version"]) == (200, draft.version)
    # A version that it has had stays its own, when no label is there any more.
    await registry.move("lighthouse", "canary", at, seen=draft.version, author="a", message="b")
    for reference in (at[:12], draft.version[:12]):
        status, told = await as_tenant(door, "anna", "PATCH", path, {"prompt_version": reference})
        assert status == 200


async def test_nobody_but_the_operator_removes_a_character(shared_door: Door) -> None:
    status, told = await as_tenant(shared_door, "anna", "DELETE", "/v1/characters/lighthouse")
    assert (status, told["error"]["code"]) == (403, "not_allowed")
    status, _ = await as_tenant(
        shared_door, "boss", "DELETE", "/v1/characters/lighthouse?confirm=production"
    )
    assert status == 204

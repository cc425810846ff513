"""Imported cards over HTTP and a real engine: they chat, their text is shared, nobody else's is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from appliance.chat.publishing import fill_empty
from appliance.config import ApiKey, Config, DatabaseConfig, ModelSource, Paths, ServerConfig
from appliance.model.decoder import Decoder, load_model
from appliance.prompt.cards.reading import read_card
from appliance.prompt.chat_format.model_text import ModelText
from appliance.server.main import PROMPTS_DIR
from tests.card_fixtures import encoded, thirty_cards, v2
from tests.engine_fixtures import engine_in_thread
from tests.model_fixtures import tiny_model, write_directory
from tests.sse_parser import SseParser
from tests.unit.server.door import served

TYPES = {"json": "application/json", "png": "image/png", "charx": "application/zip"}
OPERATOR = "boss"
CONTEXT = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A server with two tenants, of which one is the operator."""

    url: str
    session: aiohttp.ClientSession

    async def call(
        self, method: str, path: str, data: bytes = b"", *, tenant: str, type_: str = TYPES["json"]
    ) -> tuple[bytes, aiohttp.ClientResponse]:
        headers = {"Authorization": f"Bearer {tenant}", "Content-Type": type_}
        async with self.session.request(
            method, self.url + path, data=data, headers=headers
        ) as answer:
            body = await answer.read()
            assert answer.status < 300, body
            return body, answer

    async def bring(self, data: bytes, *, type_: str = TYPES["json"], query: str = "") -> str:
        """Import a card; the character's id."""
        path = f"/v1/characters{query}"
        body, _ = await self.call("POST", path, data, tenant=OPERATOR, type_=type_)
        return str(json.loads(body)["character"]["id"])

    async def open(self, character: str, tenant: str) -> tuple[str, list[str]]:
        """(path, greetings) of a new conversation."""
        body, _ = await self.call(
            "POST", "/api/conversations", encoded({"character": character}), tenant=tenant
        )
        path = f"/api/conversations/{json.loads(body)['id']}"
        body, _ = await self.call("GET", path, tenant=tenant)
        return path, [message["text"] for message in json.loads(body)["messages"]]

    async def turn(self, path: str, text: str, tenant: str) -> dict[str, Any]:
        """The `done` event of a turn."""
        asked = encoded({"text": text, "max_tokens": 4, "temperature": 0})
        body, _ = await self.call("POST", f"{path}/messages", asked, tenant=tenant)
        events = SseParser().feed(body)
        assert events[-1].name == "done", events
        return dict(json.loads(events[-1].data))

    async def prompt(self, path: str, done: dict[str, Any], tenant: str) -> dict[str, Any]:
        """What the model read."""
        message = done["message"]["id"]
        body, _ = await self.call("GET", f"{path}/messages/{message}/prompt", tenant=tenant)
        return dict(json.loads(body))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model(max_position_embeddings=CONTEXT)
    return write_directory(tmp_path_factory.mktemp("tiny-for-cards"), model)


@pytest.fixture(scope="module")
def long_decoder(directory: Path) -> Decoder:
    return load_model(directory, "cpu", 1)


@pytest.fixture
async def box(
    directory: Path, long_decoder: Decoder, tmp_path: Path, database_url: str
) -> AsyncIterator[Box]:
    keys = tuple(
        ApiKey(
            tenant=tenant,
            sha256=hashlib.sha256(tenant.encode()).hexdigest(),
            operator=tenant == OPERATOR,
        )
        for tenant in (OPERATOR, "guest")
    )
    config = Config(
        model=ModelSource(path=directory, name="tiny"),
        paths=Paths(data_dir=tmp_path, run_dir=tmp_path),
        server=ServerConfig(api_keys=keys),
        database=DatabaseConfig(url=database_url),
    )
    text = ModelText.load(directory, now=datetime(2026, 1, 1, tzinfo=UTC))
    with engine_in_thread(long_decoder, config.paths.engine_socket, pages=512):
        async with served(config, text) as (port, services), aiohttp.ClientSession() as session:
            await fill_empty(services.catalog.registry, PROMPTS_DIR)
            await services.catalog.reload()
            yield Box(url=f"http://127.0.0.1:{port}", session=session)


async def test_thirty_cards_are_imported_chat_and_come_out_without_loss(box: Box) -> None:
    for made in thirty_cards():
        card = read_card(made.data)
        character = await box.bring(made.data, type_=TYPES[made.kind])
        path, greetings = await box.open(character, "guest")
        assert len(greetings) == len(card.greetings), made.name
        done = await box.turn(path, "Who are you?", "guest")
        prompt = (await box.prompt(path, done, "guest"))["text"]
        assert "DO-NOT-LEAK" not in prompt
        assert card.called in prompt, made.name
        data, answer = await box.call(
            "GET", f"/v1/characters/{character}/card?format={made.kind}", tenant="guest"
        )
        assert answer.headers["Content-Type"] == TYPES[made.kind]
        assert "X-Card-Not-Carried" not in answer.headers
        again = read_card(data)
        assert again.document() == made.document, made.name
        assert (again.image, again.files) == (card.image, card.files)


async def test_a_cards_text_is_computed_once_for_all_and_a_conversations_own_for_itself(
    box: Box,
) -> None:
    story = "The {{char}} of this story keeps a lighthouse and counts the ships. " * 4
    same = await box.bring(encoded(v2(description=story)), query="?id=same")
    own = await box.bring(encoded(v2(description=story + "{{roll:6}}")), query="?id=own")
    hits = {}
    for character in (same, own):
        for tenant in (OPERATOR, "guest"):
            path, _ = await box.open(character, tenant)
            done = await box.turn(path, "Hello", tenant)
            hits[character, tenant] = done["usage"]
    first, second = hits[same, OPERATOR], hits[same, "guest"]
    assert first["cached_tokens"] == 0
    # All but the user's own message and what the format puts around it.
    assert second["cached_tokens"] > 0.8 * second["prompt_tokens"]
    # Between two tenants, of a text that is the conversation's own there is nothing to be found.
    assert hits[own, OPERATOR]["cached_tokens"] < 0.2 * hits[own, OPERATOR]["prompt_tokens"]
    assert hits[own, "guest"]["cached_tokens"] < 0.2 * hits[own, "guest"]["prompt_tokens"]


async def test_what_a_card_wants_said_last_stands_between_the_newest_message_and_its_reply(
    box: Box,
) -> None:
    card = v2(post_history_instructions="Remember, {{char}}: two sentences.")
    path, _ = await box.open(await box.bring(encoded(card)), "guest")
    done = await box.turn(path, "Hello", "guest")
    prompt = await box.prompt(path, done, "guest")
    assert prompt["text"].index("Hello") < prompt["text"].index("Remember, Mira: two sentences.")
    assert "post-history instructions" in [part["name"] for part in prompt["parts"]]


async def test_draws_are_the_same_in_every_turn_so_that_the_prefix_is_found(box: Box) -> None:
    card = v2(description="{{random:a,b,c,d,e,f,g,h}} {{roll:1000}} " * 6)
    path, _ = await box.open(await box.bring(encoded(card)), "guest")
    first = await box.turn(path, "Hello", "guest")
    second = await box.turn(path, "And now?", "guest")
    assert second["usage"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


async def test_a_cut_drops_whole_example_dialogues(box: Box) -> None:
    dialogue = "<START>\n{{user}}: Which ship is it?\n{{char}}: The one with the red lamp.\n"
    card = v2(mes_example="".join(dialogue.replace("lamp", f"lamp {n}") for n in range(6)))
    path, _ = await box.open(await box.bring(encoded(card)), "guest")
    seen = set()
    for number in range(8):
        done = await box.turn(path, f"Turn {number}. " + "A long tale of the sea. " * 12, "guest")
        prompt = await box.prompt(path, done, "guest")
        examples = [part for part in prompt["parts"] if part["name"].startswith("example")]
        assert prompt["text"].count("Which ship is it?") == len(examples)
        assert prompt["text"].count("The one with the red lamp") == len(examples)
        assert "keeps the lighthouse" in prompt["text"]
        seen.add(len(examples))
    assert max(seen) == 6
    assert min(seen) < 6

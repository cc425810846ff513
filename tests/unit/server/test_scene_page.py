"""The page's panel of persona, note, pinned texts and members; names of strangers; the way back."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from appliance.chat.publishing import fill_empty
from appliance.server.main import PROMPTS_DIR
from tests.browser import CHROMIUM, Browser, browser
from tests.card_fixtures import encoded, v3
from tests.unit.server.door import Door
from tests.unit.server.test_page import reply_is, say

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")

TURNED = "Mi\u202era Vale"
"""What follows the mark is shown from right to left."""


@pytest.fixture
async def page(stored_door: Door, chromium: str) -> AsyncIterator[Browser]:
    services = stored_door.services
    await fill_empty(services.catalog.registry, PROMPTS_DIR)
    await services.catalog.reload()
    card = encoded(v3(name=TURNED, group_only_greetings=["Hello, both."]))
    async with stored_door.session.post(
        stored_door.url + "/v1/characters",
        data=io.BytesIO(card),
        headers={"Content-Type": "application/json"},
    ) as answer:
        assert answer.status == 201
    async with browser(chromium) as opened:
        await opened.show(width=1280, height=800)
        await opened.open(stored_door.url)
        await opened.wait_for("document.querySelector('#picker-grid .character')")
        yield opened
        assert opened.problems == []


async def fill(page: Browser, fields: dict[str, str]) -> None:
    for selector, text in fields.items():
        await page.value(
            f"(() => {{ const field = document.querySelector({selector!r});"
            f"field.value = {json.dumps(text)};"
            "field.dispatchEvent(new Event('input', { bubbles: true })); })()"
        )


async def text_of(page: Browser, selector: str) -> str:
    return str(await page.value(f"document.querySelector({selector!r}).textContent"))


async def newest(door: Door) -> Any:
    async with door.session.get(door.url + "/api/conversations?limit=1") as answer:
        (found,) = (await answer.json())["conversations"]
        return found


async def save(page: Browser) -> None:
    await page.click("#scene-form .primary")
    await page.wait_for("!document.querySelector('#scene-dialog').open")


async def test_what_the_reader_sets_is_said_to_cost_and_is_kept(
    stored_door: Door, page: Browser
) -> None:
    door = stored_door
    door.say("one", " two")
    await page.click("#open-scene")
    await fill(page, {"#scene-name": "Tom", "#scene-persona": "A sailor of forty."})
    await page.click("#scene-add-pin")
    await fill(page, {"#scene-pins textarea": "The key is under the mat."})
    assert await text_of(page, "#scene-cost") == "This costs nothing."
    await save(page)
    held = await newest(door)
    assert held["persona"] == {"name": "Tom", "text": "A sailor of forty."}
    assert held["pinned"] == ["The key is under the mat."]
    await say(page, "Hello")
    await reply_is(page, "one two")
    await page.wait_for("document.querySelector('.tools .meter')")

    await page.click("#open-scene")
    assert await page.value("document.querySelector('#scene-name').value") == "Tom"
    await fill(page, {"#scene-note": "Be grim."})
    assert "every turn computes it" in await text_of(page, "#scene-cost")
    await fill(page, {"#scene-every": "6"})
    assert "costs its own tokens" in await text_of(page, "#scene-cost")
    await page.click("#scene-pins button")
    cost = await text_of(page, "#scene-cost")
    tokens = int(
        "".join(c for c in cost.partition("at most ")[2].partition(" tokens")[0] if c.isdigit())
    )
    await save(page)
    held = await newest(door)
    assert (held["note"], held["pinned"]) == ({"text": "Be grim.", "every": 6}, [])
    stored = held["head_id"]
    path = f"{door.url}/api/conversations/{held['id']}/messages/{stored}"
    async with door.session.get(path) as answer:
        assert (await answer.json())["usage"]["prompt_tokens"] == tokens

    await page.click("#open-scene")
    await fill(page, {"#scene-name": "", "#scene-persona": "", "#scene-note": ""})
    await save(page)
    held = await newest(door)
    assert (held["persona"], held["note"]) == (None, None)


async def test_who_is_here_and_who_answers_next_is_chosen_and_shown(
    stored_door: Door, page: Browser
) -> None:
    door = stored_door
    door.say("one")
    await say(page, "Hello")
    await reply_is(page, "one")
    assert await page.value("document.querySelector('#next-speaker').hidden")
    await page.click("#open-scene")
    assert await page.value("document.querySelector('#scene-members [value=assistant]').disabled")
    await page.click("#scene-members [value='gardener']")
    await page.value(
        "document.querySelector('#scene-members [value=gardener]')"
        ".dispatchEvent(new Event('input', { bubbles: true }))"
    )
    assert "computes the whole conversation again" in await text_of(page, "#scene-cost")
    await save(page)
    assert (await newest(door))["members"] == ["assistant", "gardener"]
    await page.wait_for("!document.querySelector('#next-speaker').hidden")
    door.say(" two")
    await page.value("document.querySelector('#next-speaker-choice').value = 'gardener'")
    await say(page, "And you?")
    await reply_is(page, "two")
    names = "[...document.querySelectorAll('.message .who')].map(line => line.textContent)"
    known = door.services.catalog.current
    # What was said before there were several is the character's whose conversation it is.
    expected = "|".join(known.get(name).character.name for name in (None, "gardener"))
    await page.wait_for(f"{names}.join('|') === {expected!r}")


async def test_a_name_that_turns_the_direction_of_text_is_shown_without_that(
    stored_door: Door, page: Browser
) -> None:
    shown = TURNED.replace("\u202e", "")
    names = await page.value(
        "[...document.querySelectorAll('.character-name')].map(name => name.textContent)"
    )
    assert shown in names
    await page.click("#open-picker")
    await page.click("[data-id='mira-vale']")
    await page.wait_for(f"document.querySelector('#title').textContent === {shown!r}")
    isolated = "getComputedStyle(document.querySelector('#title')).unicodeBidi"
    assert await page.value(isolated) == "isolate"
    everything = await page.value("document.documentElement.textContent")
    assert "\u202e" not in everything
    assert (await newest(stored_door))["character"] == "mira-vale"


async def test_back_and_forward_show_the_conversations_that_were_shown(
    stored_door: Door, page: Browser
) -> None:
    door = stored_door
    door.say("one")
    for text in ("First chat", "Second chat"):
        await page.click("#new-chat")
        await say(page, text)
        await reply_is(page, "one")
    await page.wait_for("document.querySelectorAll('.row-open').length === 2")
    title = "document.querySelector('#title').textContent"
    await page.click(".row:nth-child(2) .row-open")
    await page.wait_for(f"{title} === 'First chat'")
    await page.value("history.back()")
    await page.wait_for(f"{title} === 'Second chat'")
    assert "Second chat" in await text_of(page, ".message.user .body")
    await page.value("history.forward()")
    await page.wait_for(f"{title} === 'First chat'")
    await page.click("#new-chat")
    await page.wait_for("document.querySelector('.empty')")
    await page.value("history.back()")
    await page.wait_for(f"{title} === 'First chat' && document.querySelectorAll('.message')[1]")


async def test_a_character_is_saved_as_a_card_and_taken_from_the_list(
    stored_door: Door, page: Browser
) -> None:
    page.expect_problem("409")
    await page.click("#open-picker")
    shown = "[...document.querySelectorAll('.picker .character')].length"
    before = await page.value(shown)
    tools = "[data-id='lighthouse'] + .character-tools"
    await page.click(f"{tools} button:first-child")
    await page.wait_for(
        "document.querySelector('#picker-notice').textContent.includes('saved as lighthouse.json')"
    )
    await page.click(f"{tools} button:last-child")
    for title in ("from the list?", "is protected"):
        await page.wait_for(
            f"document.querySelector('.confirm[open]')?.textContent.includes('{title}')"
        )
        await page.click(".confirm[open] [value=yes]")
    await page.wait_for(f"{shown} === {before - 1}")
    # The keyboard goes on beside what is gone.
    await page.wait_for("document.activeElement.matches('.character')")
    assert not await page.value("Boolean(document.querySelector(\"[data-id='lighthouse']\"))")
    assert (
        await page.value(
            "document.querySelectorAll(\"[data-id='assistant'] + .character-tools button\").length"
        )
        == 1
    )

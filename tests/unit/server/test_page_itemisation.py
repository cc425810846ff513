"""The panel of a prompt's parts and the line where the context begins, in a real browser."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from appliance.chat.params import GenerationParams
from appliance.chat.plan import Place
from appliance.server.auth import LOCAL_TENANT
from tests.browser import CHROMIUM, Browser, browser
from tests.characters import bundle_of
from tests.unit.server.door import Door, open_door
from tests.unit.server.moved_catalog import move_all

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")

SHOTS = os.environ.get("APPLIANCE_TEST_SHOTS")
"""A folder for what the browser showed, for a person to look at."""

_TEMPLATE = """\
name: mira
inputs:
  character: {type: map, scope: character}
---
- {name: house rules, zone: static, role: system, content: Stay kind. Never give addresses.}
- {name: system, zone: character, role: system, content: "{{ character.system }}"}
- {name: mood, zone: persona, role: system, content: "Her mood is {{ pick(['calm', 'curious']) }}."}
- name: example
  zone: pinned
  role: system
  truncation_priority: 2
  content: "Mira: Ahoy, mind the rope."
- {name: history, zone: history}
- {name: length, zone: volatile, role: system, content: Answer in at most three sentences.}
"""
MIRA = (
    "You are Mira, a cheerful ferry captain on a wide river. You know every island and every song."
)
SAID = (
    "Where does the last ferry of the evening go, and what will I hear on the way?",
    "Tell me about the island with the lighthouse; my grandmother kept the lamp there.",
    "And the herons? I was told that you do not like them at all, and I wonder why.",
)


@pytest.fixture
async def chat(database_url: str) -> AsyncIterator[tuple[Door, str]]:
    """A server, and the address of a chat whose oldest messages were cut."""
    async with open_door(url=database_url, context_tokens=1280) as door:
        bundle = bundle_of(
            "assistant", name="Mira", system=MIRA, template="mira", templates={"mira": _TEMPLATE}
        )
        await move_all(door.services, bundle)
        opened = await door.services.conversations.open(
            tenant=LOCAL_TENANT, character=None, title="The last ferry"
        )
        door.say("one", " two", " three", " four", " two")
        for number in range(9):
            events = door.services.turns.send(
                tenant=LOCAL_TENANT,
                conversation_id=opened.conversation_id,
                text=SAID[number % len(SAID)],
                parent=Place.HEAD,
                turn_key=None,
                params=GenerationParams(),
            )
            async for _ in events:
                pass
        yield door, f"{door.url}/#{opened.conversation_id}"


@pytest.fixture
async def page(chat: tuple[Door, str], chromium: str) -> AsyncIterator[Browser]:
    async with browser(chromium) as opened:
        await opened.show(width=1280, height=800)
        await opened.open(chat[1])
        yield opened
        assert opened.problems == []


async def shot(page: Browser, name: str) -> None:
    if SHOTS is not None:
        await page.screenshot(Path(SHOTS) / f"{name}.png")


async def test_a_reply_shows_its_parts_and_the_chat_where_its_context_begins(
    page: Browser,
) -> None:
    explained = (
        "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/explain')).length"
    )
    await page.wait_for("document.querySelector('.context-offer')")
    assert await page.value(explained) == 0, "nothing is explained before somebody asks"
    await shot(page, "offer-1280")
    await page.click(".context-offer button")
    await page.wait_for("document.querySelector('.context-line')")
    assert await page.value(explained) == 1
    line = await page.value("document.querySelector('.context-line').textContent")
    assert line.startswith("Context begins here · ")
    above = "document.querySelectorAll('.message').length"
    assert await page.value(f"{above} === 18")
    position = await page.value(
        "[...document.querySelector('#transcript').children].findIndex(c => c.matches('.context-line'))"
    )
    assert line == f"Context begins here · {position} messages above are left out"
    await page.value("document.querySelector('.context-line').scrollIntoView({block: 'center'})")
    await shot(page, "line-1280")

    await page.click(".message:last-child [aria-label='What the model read for this reply']")
    await page.wait_for("document.querySelector('.itemisation[open] table')")
    names = await page.value(
        "[...document.querySelectorAll('.parts tbody th .part-name')].map(name => name.textContent)"
    )
    assert names[:3] == ["house rules", "system", "mood"]
    assert names[-2:] == ["length", "reply header"]
    assert f"message {position + 1}" in names
    assert f"message {position}" not in names
    told = await page.value("document.querySelector('.itemisation').textContent")
    assert "“example”" in told
    legend = await page.value(
        "[...document.querySelectorAll('.zone-legend li')].map(item => item.textContent)"
    )
    sizes = {
        name: int(tokens.replace(",", ""))
        for name, _, tokens in (item.rpartition(" ") for item in legend)
    }
    zones = ["static", "character", "persona", "history", "volatile"]
    assert list(sizes) == [*zones, "free", "for the reply"]
    # The sentence above and the bar count alike.
    said = await page.value("document.querySelector('.itemisation > p').textContent")
    used, room = [
        int(word.strip(".,").replace(",", "")) for word in said.split() if word[0].isdigit()
    ][:2]
    assert sum(sizes[zone] for zone in zones) == used
    assert sizes["free"] == room - used
    await shot(page, "panel-1280")

    await page.click(".parts tbody tr:nth-child(2) .part-name")
    await page.wait_for(
        "document.querySelector('.part-text pre').textContent.includes('ferry captain')"
    )
    await shot(page, "panel-text-1280")
    await page.click(".parts tbody tr:nth-child(2) .part-name")
    assert await page.value("!document.querySelector('.part-text')")

    # Where the column of zones has no room, they stand with what a part is: colours alone say nothing.
    zones_shown = (
        "[...document.querySelectorAll('.parts tbody tr:first-child :is(small, td:nth-child(2))')]"
        ".filter(place => place.checkVisibility()).map(place => place.innerText).join('|')"
    )
    assert await page.value(zones_shown) == "system|static"
    await page.show(width=390, height=844)
    assert await page.value(zones_shown) == "system · static"
    await shot(page, "panel-390")
    fits = "document.querySelector('.itemisation').scrollWidth <= innerWidth"
    assert await page.value(fits)
    await page.press("Escape")
    await page.wait_for("!document.querySelector('.itemisation[open]')")
    await page.value("document.querySelector('.context-line').scrollIntoView({block: 'center'})")
    await shot(page, "line-390")
    await page.show(width=1280, height=800, scheme="dark")
    await page.click(".message:last-child [aria-label='What the model read for this reply']")
    await shot(page, "panel-dark")

"""The chat page while the server is frozen: it says so after some seconds, and offers to try again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.browser import CHROMIUM, Browser, browser
from tests.unit.server.door import MODEL, Door
from tests.unit.server.test_conversations import create, send

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")

HASTEN = "const wait = setTimeout; window.setTimeout = (deed, ms) => wait(deed, Math.min(ms, 400));"
FREEZE = """
window.real = window.real ?? fetch;
window.fetch = (path, { signal }) =>
  new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
"""
THAW = "window.fetch = window.real; undefined"
NOTICE = "document.querySelector('#notice')"
SAYS_SO = f"!{NOTICE}.hidden && {NOTICE}.textContent.startsWith('The server does not answer.')"
AGAIN = "#notice button"
MESSAGES = "[...document.querySelectorAll('.message .body')].map(body => body.textContent.trim())"
FIELD = "document.querySelector('#composer-text').value"


@pytest.fixture
async def page(stored_door: Door, chromium: str) -> AsyncIterator[Browser]:
    stored_door.say("one", " two")
    conversation = await create(stored_door, title="The frozen lake")
    await send(stored_door, conversation, "Hello")
    async with browser(chromium) as opened:
        await opened.show(width=1280, height=800)
        await opened.open(stored_door.url)
        await opened.wait_for(f"document.querySelector('#engine-text').textContent === {MODEL!r}")
        await opened.value(f"(() => {{ {HASTEN} {FREEZE} }})()")
        yield opened
        assert opened.problems == []


async def test_what_was_asked_for_comes_when_it_is_tried_again(page: Browser) -> None:
    await page.click(".row-open")
    await page.wait_for(f"{SAYS_SO} && document.querySelector({AGAIN!r})")
    await page.click(AGAIN)
    assert await page.value(f"{NOTICE}.hidden")
    await page.wait_for(SAYS_SO)
    await page.value(THAW)
    await page.click(AGAIN)
    await page.wait_for(f'JSON.stringify({MESSAGES}) === \'["Hello","one two"]\'')
    assert await page.value(f"{NOTICE}.hidden")


async def test_what_waits_goes_on_by_itself_when_the_server_is_back(page: Browser) -> None:
    await page.click(".row-open")
    await page.wait_for(SAYS_SO)
    # The sign at the top has its own time.
    await page.wait_for(
        "document.querySelector('#engine-text').textContent === 'The server does not answer'"
    )
    await page.value(THAW)
    await page.wait_for(f"{NOTICE}.hidden && {MESSAGES}.length === 2")


async def test_a_message_that_was_not_taken_is_in_the_field_again(
    stored_door: Door, page: Browser
) -> None:
    await page.value(THAW)
    await page.click(".row-open")
    await page.wait_for(f"{MESSAGES}.length === 2")
    await page.value(FREEZE + "undefined")
    await page.value("document.querySelector('#composer-text').focus()")
    await page.type("Are you there?")
    await page.press("Enter")
    await page.wait_for(SAYS_SO)
    await page.value(THAW)
    await page.wait_for(f"{FIELD} === 'Are you there?' && {NOTICE}.hidden")
    stored_door.say(" three")
    await page.press("Enter")
    await page.wait_for(f"{MESSAGES}.length === 4 && {FIELD} === ''")


async def test_an_import_says_so_where_the_card_was_dropped(page: Browser) -> None:
    await page.click("#open-picker")
    await page.value(
        "(() => { const transfer = new DataTransfer(); transfer.items.add(new File(['{}'], 'mira.json'));"
        "document.querySelector('#picker').dispatchEvent(new DragEvent('drop',"
        " {dataTransfer: transfer, bubbles: true, cancelable: true})); })()"
    )
    said = "document.querySelector('#picker-notice').textContent"
    await page.wait_for(f"{said} === 'Importing mira.json …'")
    await page.wait_for(
        f"{said} === 'mira.json was not imported: The server does not answer. Try again in a moment.'"
    )
    await page.value(THAW)

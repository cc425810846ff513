"""The chat page in a real browser: sends, stops, regenerates, edits, and shows text as text."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from appliance.config import ApiKey, ServerConfig
from appliance.maintenance import maintenance
from appliance.tokens import unpack
from tests.browser import CHROMIUM, Browser, browser
from tests.scripted_engine import Script
from tests.unit.server.door import MODEL, Door, open_door
from tests.unit.server.test_conversations import create, get

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")

LAST_REPLY = "document.querySelector('.message.assistant:last-of-type .body')?.textContent"
IDLE = "document.querySelector('#stop').hidden"


@pytest.fixture
async def page(stored_door: Door, chromium: str) -> AsyncIterator[Browser]:
    async with browser(chromium) as opened:
        await opened.show(width=1280, height=800)
        await opened.open(stored_door.url)
        # What it reads at first is there: no later answer makes anew what a test looks at.
        await opened.wait_for(f"document.querySelector('#engine-text').textContent === {MODEL!r}")
        yield opened
        assert opened.problems == []


async def say(page: Browser, text: str) -> None:
    await page.value("document.querySelector('#composer-text').focus()")
    await page.type(text)
    await page.press("Enter")


async def reply_is(page: Browser, text: str) -> None:
    await page.wait_for(f"{IDLE} && {LAST_REPLY}?.trim() === {text!r}")


async def texts(page: Browser) -> list[str]:
    found = await page.value(
        "[...document.querySelectorAll('.message .body')].map(body => body.textContent.trim())"
    )
    return list(found)


async def test_a_conversation_from_the_first_word_to_a_reload(
    stored_door: Door, page: Browser
) -> None:
    door = stored_door
    door.say("one", " two", prefix_hit_tokens=30)
    await say(page, "Hello <b>there</b>")
    await reply_is(page, "one two")
    assert await texts(page) == ["Hello <b>there</b>", "one two"]
    meter = await page.value("document.querySelector('.tools .meter').textContent")
    assert "% from cache · 30 of " in meter
    await page.wait_for(
        "document.querySelector('.row.current .row-open').textContent.includes('Hello')"
    )

    door.say(" three")
    await page.click("[aria-label='Regenerate this reply']")
    await reply_is(page, "three")
    await page.wait_for("document.querySelector('.swipes').textContent === '2/2'")
    await page.click("[aria-label='Previous version']")
    await reply_is(page, "one two")

    door.say(" four")
    await page.click("[aria-label='Edit this message']")
    await page.value("document.querySelector('.editor textarea').value = 'Changed'")
    await page.click(".editor .primary")
    await reply_is(page, "four")
    assert await texts(page) == ["Changed", "four"]
    await page.reload()
    await page.wait_for("document.querySelectorAll('.message').length === 2")
    assert await texts(page) == ["Changed", "four"]


async def test_an_empty_conversation_offers_the_first_messages_of_the_default_character(
    stored_door: Door, page: Browser
) -> None:
    stored_door.say("one")
    await page.wait_for("document.querySelector('.suggestions button')")
    (suggestion, *_) = stored_door.services.catalog.current.get(None).character.suggestions
    await page.click(".suggestions button")
    await page.wait_for(
        f"document.querySelector('.message.assistant .body')?.textContent && {IDLE}"
    )
    assert await texts(page) == [suggestion, "one"]


async def test_escape_stops_and_keeps_what_was_shown(stored_door: Door, page: Browser) -> None:
    stored_door.say("tok ", forever=True, token_s=0.02)
    await say(page, "Count")
    await page.wait_for(f"{LAST_REPLY}.length > 20")
    await page.press("Escape")
    await page.wait_for(f"{IDLE} && document.querySelector('.ending')")
    shown = (await texts(page))[1]
    assert shown.startswith("tok tok")
    await page.reload()
    await page.wait_for("document.querySelectorAll('.message').length === 2")
    assert (await texts(page))[1] == shown


async def test_a_reload_in_the_middle_shows_what_was_stored(
    stored_door: Door, page: Browser
) -> None:
    stored_door.say("tok ", forever=True, token_s=0.02)
    await say(page, "Count")
    await page.wait_for(f"{LAST_REPLY}.length > 20")
    await page.reload()
    # The new page may ask before the server has noticed that the old one's reader is gone.
    path = f"/api/conversations/{await page.value('location.hash.slice(1)')}"
    async with asyncio.timeout(60):
        while len((await get(stored_door, path))["messages"]) < 2:
            await asyncio.sleep(0.05)
    await page.reload()
    await page.wait_for("document.querySelectorAll('.message').length === 2")
    assert (await texts(page))[1].startswith("tok tok")


async def test_what_the_model_writes_is_text_and_never_markup(
    stored_door: Door, page: Browser
) -> None:
    door = stored_door
    evil = "<img src=x onerror=alert(1)>\n\n**bold** `code`\n\n- <script>1</script>"
    door.engine.script = Script(token_ids=tuple(unpack(door.services.tokenizer.encode(evil))))
    await say(page, "x")
    await page.wait_for(f"{IDLE} && document.querySelector('.message.assistant strong')")
    assert (
        await page.value("document.querySelectorAll('.message img, .message script').length") == 0
    )
    assert "<script>1</script>" in await page.value(LAST_REPLY)
    assert (
        await page.value("document.querySelector('.message.assistant code').textContent") == "code"
    )


async def test_failures_are_sentences_and_the_text_is_kept(
    stored_door: Door, page: Browser
) -> None:
    door = stored_door
    page.expect_problem("503")
    await page.wait_for("document.querySelector('#engine-text').textContent")
    await door.engine.stop()
    await door.eventually(lambda: not door.services.engine.ready)
    await say(page, "Are you there?")
    await page.wait_for("!document.querySelector('#notice').hidden")
    await page.wait_for("document.querySelector('#composer-text').value === 'Are you there?'")
    await door.engine.start()


async def test_the_reader_who_scrolls_up_is_left_alone(stored_door: Door, page: Browser) -> None:
    stored_door.say("fine\n", forever=True, token_s=0.005)
    await say(page, "Count")
    scroller = "document.querySelector('#scroller')"
    height = f"{scroller}.scrollHeight"
    await page.wait_for(f"{height} > 1.8 * {scroller}.clientHeight")
    await page.value(f"{scroller}.scrollTop = 0")
    grown = await page.value(height) + 100
    await page.wait_for(f"{height} > {grown}")
    assert await page.value(f"{scroller}.scrollTop") == 0
    await page.click("#to-latest")
    far = f"{height} - {scroller}.scrollTop - {scroller}.clientHeight"
    await page.wait_for(f"{far} < 60")
    grown = await page.value(height) + 100
    await page.wait_for(f"{height} > {grown} && {far} < 60")
    await page.press("Escape")
    await page.wait_for(IDLE)


async def test_the_page_asks_for_a_key_when_there_is_one(database_url: str, chromium: str) -> None:
    entry = ApiKey(tenant="alice", sha256=hashlib.sha256(b"sesame").hexdigest())
    server = ServerConfig(api_keys=(entry,))
    async with open_door(server, url=database_url) as door, browser(chromium) as page:
        await page.show(width=390, height=844)
        await page.open(door.url)
        asked = "document.querySelector('.key[open]')"
        for key in ("open!", "sesame"):
            # One that is refused is asked for again, and said to be refused.
            is_first = str(key == "open!").lower()
            await page.wait_for(f"{asked}?.querySelector('.refused').hidden === {is_first}")
            await page.type(key)
            await page.press("Enter")
        await page.wait_for(f"!{asked}")
        door.say("one")
        await say(page, "Hello")
        await reply_is(page, "one")


async def test_a_page_that_came_too_early_fills_itself_once_the_server_is_ready(
    stored_door: Door, page: Browser
) -> None:
    page.expect_problem("503")
    notice = "document.querySelector('#notice')"
    stored_door.services.readiness.schema_ready = False
    await page.reload()
    await page.wait_for(f"{notice}.textContent.includes('not ready yet')")
    await page.wait_for("document.querySelector('#engine.away')")
    stored_door.services.readiness.schema_ready = True
    await page.wait_for("document.querySelector('.suggestions button')")
    await page.wait_for(f"{notice}.hidden && !document.querySelector('#engine.away')")


async def test_what_is_kept_in_the_journal_is_said_until_it_is_stored(
    stored_door: Door, page: Browser
) -> None:
    told = "document.querySelector('#engine-text').textContent"
    stored_door.say("one", " two")
    with maintenance(stored_door.services.config.paths.data_dir):
        await say(page, "Hello")
        await reply_is(page, "one two")
        await page.wait_for(f"{told}.includes('stored when the database is back')")
    await page.wait_for(f"!{told}.includes('database')")


async def test_the_keyboard_keeps_its_place_among_buttons_that_are_made_anew(
    stored_door: Door, page: Browser
) -> None:
    focused = "document.activeElement.title"
    stored_door.say("one")
    await say(page, "Hello")
    await reply_is(page, "one")
    stored_door.say(" two")
    await page.value("document.querySelector('.message.assistant .tool').focus()")
    await page.press("Enter")
    await reply_is(page, "two")
    await page.wait_for(f"{focused} === 'Regenerate this reply'")
    await page.value("document.querySelector('[title=\"Previous version\"]').focus()")
    await page.press("Enter")
    await reply_is(page, "one")
    # The first version has none before it: its neighbour takes the place.
    await page.wait_for(f"{focused} === 'Next version'")
    await page.value("document.querySelector('[title=\"Edit this message\"]').focus()")
    await page.press("Enter")
    await page.wait_for("document.activeElement.matches('.editor textarea')")
    await page.press("Escape")
    await page.wait_for(f"{focused} === 'Edit this message'")


async def test_the_list_keeps_the_keyboard_while_titles_change_and_rows_go(
    stored_door: Door, page: Browser
) -> None:
    for title in ("Oldest", "Middle", "Newest"):
        await create(stored_door, title=title)
    await page.reload()
    titles = f"{ROWS}.map(row => row.textContent).join()"
    await page.wait_for(f"{titles} === 'Newest,Middle,Oldest'")
    await page.value("document.querySelector('[title=\"Rename “Middle”\"]').focus()")
    await page.press("Enter")
    await page.wait_for("document.activeElement.matches('.row-input')")
    await page.type("Better")
    # Another title has been changed meanwhile: what is being written stays.
    await page.value("document.querySelector('#search-text').dispatchEvent(new Event('input'))")
    await page.wait_for("document.activeElement.value === 'Better'")
    await page.press("Enter")
    await page.wait_for(f"{titles}.includes('Better')")
    await page.wait_for("document.activeElement.textContent === 'Better'")
    for answer, left in (("no", 3), ("yes", 2)):
        await page.value("document.querySelector('[title=\"Delete “Better”\"]').focus()")
        await page.press("Enter")
        await page.click(f".confirm[open] [value={answer}]")
        await page.wait_for(f"{ROWS}.length === {left} && !document.querySelector('.confirm')")
        await page.wait_for("document.activeElement.closest('.row')")


ROWS = "[...document.querySelectorAll('.row-open')]"


async def test_conversations_are_found_by_what_was_said_and_listed_to_the_oldest(
    stored_door: Door, page: Browser
) -> None:
    page.expect_problem("400")
    for number in range(101):
        await create(stored_door, title=f"Chat {number}")
    stored_door.say("one")
    await say(page, "Where, on an island without a single tree, do herons sleep?")
    await reply_is(page, "one")
    await page.wait_for(f"{ROWS}.length === 100")
    await page.click("#older")
    await page.wait_for(f"{ROWS}.length === 102 && document.querySelector('#older').hidden")
    for text, foot, rows in (
        ("he", "needs 3 characters", 102),
        ("herons", "", 1),
        ("cormorants", "Nothing holds “cormorants”.", 0),
    ):
        await page.value("document.querySelector('#search-text').select()")
        await page.type(text)
        await page.press("Enter")
        told = "document.querySelector('#sidebar-foot').textContent"
        await page.wait_for(f"{told}.includes({foot!r}) && {ROWS}.length === {rows}")
        if rows == 1:
            match = await page.value("document.querySelector('.row-match').textContent")
            assert match.startswith("… tree, do herons sleep?"), match
    await page.value("document.querySelector('#search-text').select()")
    await page.press("Delete")
    await page.wait_for(f"{ROWS}.length === 100")
    await page.value("document.querySelector('#search-text').focus()")
    await page.type("herons")
    await page.press("Enter")
    await page.wait_for(f"{ROWS}.length === 1")
    # What begins is to be seen among the others.
    await page.click("#new-chat")
    await page.wait_for(f"{ROWS}.length === 100 && !document.querySelector('#search-text').value")


async def test_a_text_is_copied_where_the_browser_gives_no_clipboard(
    stored_door: Door, page: Browser
) -> None:
    stored_door.say("one")
    await say(page, "Hello <b>there</b>")
    await reply_is(page, "one")
    await page.value(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
        "addEventListener('copy', () => { window.copied = document.activeElement.value; })"
    )
    await page.value("document.querySelector('.user [title=\"Copy the text\"]').focus()")
    await page.press("Enter")
    await page.wait_for("window.copied === 'Hello <b>there</b>'")
    assert await page.value("document.activeElement.title") == "Copy the text"


TWO_QUESTIONS = """
(async () => {
  const { confirmed } = await import('/page/questions.js');
  const ask = (title) => confirmed({ title, text: 'Sure?', deed: 'Do it' });
  const press = (answer) => document.querySelector(`.confirm[open] [value=${answer}]`).click();
  const first = ask('one');
  press('no');
  const second = ask('two');
  const later = first.then(() => new Promise((resolve) => setTimeout(() => resolve('not yet'), 0)));
  const early = await Promise.race([second, later]);
  press('yes');
  return [await first, early, await second, document.querySelectorAll('.confirm').length];
})()
"""


async def test_a_question_is_never_answered_by_the_end_of_the_one_before(page: Browser) -> None:
    assert await page.value(TWO_QUESTIONS) == [False, "not yet", True, 0]

"""The character picker in a real browser: cards come in by button and by drop, greetings are swiped."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.chat.params import CONVERSATION_SAMPLING
from appliance.chat.publishing import fill_empty, publish
from appliance.prompt.cards.reading import CARD_BYTES_MAX
from appliance.server.main import PROMPTS_DIR
from appliance.store.prompt_records import PRODUCTION
from tests.browser import CHROMIUM, Browser, browser
from tests.card_fixtures import encoded, png, v2
from tests.characters import bundle_of
from tests.unit.server.door import Door

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")

OPEN = "document.querySelector('#picker').open"
NAMES = "[...document.querySelectorAll('.character-name')].map(name => name.textContent)"
DONE = "document.querySelector('#stop').hidden && document.querySelector('.meter')"
NOTICE = "document.querySelector('#picker-notice').textContent"
FIRST_TEXT = "document.querySelector('.message .body')?.textContent.trim()"
DROP = """
(() => {
  const bytes = Uint8Array.from(atob(%r), (character) => character.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], %r));
  const target = document.querySelector('#picker');
  for (const kind of ['dragover', 'drop']) {
    target.dispatchEvent(new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true}));
  }
})()
"""


@pytest.fixture
async def page(stored_door: Door, chromium: str) -> AsyncIterator[Browser]:
    await fill_empty(stored_door.services.catalog.registry, PROMPTS_DIR)
    await stored_door.services.catalog.reload()
    async with browser(chromium) as opened:
        await opened.show(width=1280, height=800)
        await opened.open(stored_door.url)
        await opened.wait_for("document.querySelector('.suggestions button')")
        yield opened
        assert opened.problems == []


async def drop(page: Browser, data: bytes, name: str) -> None:
    await page.value(DROP % (base64.b64encode(data).decode(), name))


async def choose(page: Browser, name: str) -> None:
    await page.value(
        f"[...document.querySelectorAll('.character')].find(item => "
        f"item.querySelector('.character-name').textContent === {name!r}).click()"
    )


async def test_a_dropped_card_is_there_and_its_greetings_are_swiped(
    stored_door: Door, page: Browser
) -> None:
    card = v2(alternate_greetings=["Hey {{user}}.", "Who is there?"])
    await page.click("#open-picker")
    await page.wait_for(OPEN)
    await page.wait_for("document.querySelector('#picker-hint.alone')")
    await drop(page, png("chara", card), "mira.png")
    await page.wait_for(f"{NOTICE} === 'Mira is here.'")
    assert "Mira" in await page.value(NAMES)
    await page.wait_for("document.querySelector('.character .portrait img')?.naturalWidth === 32")
    await page.wait_for("document.activeElement.dataset.id === 'mira'")
    await choose(page, "Mira")
    await page.wait_for(f"!{OPEN} && {FIRST_TEXT} === 'Come in, User.'")
    await page.wait_for("document.querySelector('#speaker img')?.naturalWidth === 32")
    assert await page.value("document.querySelectorAll(\"[aria-label^='Regenerate']\").length") == 0
    await page.click("[aria-label='Next version']")
    await page.wait_for(f"{FIRST_TEXT} === 'Hey User.'")
    await page.click("[aria-label='Next version']")
    await page.wait_for(f"{FIRST_TEXT} === 'Who is there?'")
    assert await page.value("document.querySelector('.swipes').textContent") == "3/3"
    stored_door.say("one")
    await page.value("document.querySelector('#composer-text').focus()")
    await page.type("Me.")
    await page.press("Enter")
    await page.wait_for(DONE)
    await page.reload()
    await page.wait_for("document.querySelectorAll('.message').length === 3")
    assert await page.value(FIRST_TEXT) == "Who is there?"


async def test_a_refused_card_is_a_sentence_and_the_others_come_in(
    page: Browser, tmp_path: Path
) -> None:
    page.expect_problem("400")
    files = {
        "bad.png": png("chara", v2())[:-20],
        "good.json": encoded(v2(name="Bo")),
        "none.json": b'{"name": "<img src=x onerror=alert(1)>"}',
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    await page.click("#open-picker")
    document = await page.call("DOM.getDocument")
    found = await page.call(
        "DOM.querySelector", nodeId=document["root"]["nodeId"], selector="#picker-input"
    )
    paths = [str(tmp_path / name) for name in files]
    await page.call("DOM.setFileInputFiles", nodeId=found["nodeId"], files=paths)
    await page.wait_for(f"{NOTICE}.includes('Bo is here.')")
    said = await page.value(NOTICE)
    assert "bad.png was not imported: chunk 'IDAT': the file ends in the middle of it" in said
    assert "none.json was not imported: card: no character card" in said
    assert await page.value("document.querySelector('#picker-notice').classList.contains('bad')")
    assert (await page.value(NAMES)).count("Bo") == 1
    await page.value("document.querySelector('#picker-notice').textContent = ''")
    await drop(page, files["good.json"], "good.json")
    await page.wait_for(f"{NOTICE} === 'Bo was here already.'")


async def test_a_file_that_is_too_large_is_refused_before_it_is_sent(page: Browser) -> None:
    await page.click("#open-picker")
    await page.value(
        "(() => { const transfer = new DataTransfer();"
        f"transfer.items.add(new File([new Uint8Array({CARD_BYTES_MAX + 1})], 'huge.png'));"
        "document.querySelector('#picker').dispatchEvent(new DragEvent('drop',"
        " {dataTransfer: transfer, bubbles: true, cancelable: true})); })()"
    )
    await page.wait_for(f"{NOTICE}.startsWith('huge.png was not imported: it has 16.1 MiB')")
    assert (await page.value(NOTICE)).endswith("a card may have 16 MiB.")


async def test_characters_of_one_name_are_told_apart_by_their_ids(page: Browser) -> None:
    marks = "[...document.querySelectorAll('.character-mark')].map(mark => mark.textContent)"
    await page.click("#open-picker")
    await drop(page, encoded(v2(name="Bo", description="One.")), "bo.json")
    await page.wait_for(f"{NOTICE} === 'Bo is here.'")
    assert await page.value(marks) == []
    await drop(page, encoded(v2(name="Bo", description="Two.")), "bo.json")
    await page.wait_for(f"{marks}.length === 2")
    assert await page.value(marks) == ["bo", "bo-2"]
    names = await page.value(
        "[...document.querySelectorAll('.row-tool')].map(tool => tool.getAttribute('aria-label'))"
    )
    assert {"Take Bo (bo) from the list", "Save Bo (bo-2) as a card"} <= set(names)
    assert len(names) == len(set(names))


async def test_a_character_s_sampling_holds_for_what_the_page_sends(
    stored_door: Door, page: Browser
) -> None:
    catalog = stored_door.services.catalog
    who: dict[str, Any] = {"author": "ana", "message": "why not"}
    bundle = bundle_of("wild", sampling={"temperature": 1.5, "top_k": 7})
    version, _ = await publish(catalog.registry, bundle, **who)
    await catalog.registry.move("wild", PRODUCTION, version, seen=None, **who)
    await catalog.reload()
    await page.reload()
    await page.wait_for("document.querySelector('.suggestions button')")
    await page.click("#open-picker")
    await page.wait_for(f"{OPEN} && {NAMES}.includes('Wild')")
    await choose(page, "Wild")
    await page.wait_for(f"!{OPEN} && document.querySelector('#speaker').title === 'Wild'")
    stored_door.say("one")
    await page.value("document.querySelector('#composer-text').focus()")
    await page.type("Me.")
    await page.press("Enter")
    await page.wait_for(DONE)
    await page.click("[aria-label^='Regenerate']")
    await stored_door.eventually(lambda: len(stored_door.engine.generated) == 2)
    await page.wait_for(DONE)
    for request in stored_door.engine.generated:
        assert request.sampling == msgspec.structs.replace(
            CONVERSATION_SAMPLING, temperature=1.5, top_k=7
        )


async def test_a_protected_character_is_asked_about_once_more(page: Browser) -> None:
    page.expect_problem("409")

    async def answered(answers: tuple[str, ...]) -> None:
        name = "Tom the gardener"
        await page.value(
            f"document.querySelector('[aria-label=\"Take {name} from the list\"]').click()"
        )
        titles = (f"Take {name} from the list?", f"{name} is protected")
        for title, answer in zip(titles, answers, strict=True):
            await page.wait_for(
                f"document.querySelector('.confirm[open]')?.textContent.includes('{title}')"
            )
            await page.click(f".confirm[open] [value={answer}]")
        await page.wait_for("!document.querySelector('.confirm[open]')")

    await page.click("#open-picker")
    await page.wait_for(OPEN)
    await answered(("yes", "no"))
    assert "Tom the gardener" in await page.value(NAMES)
    await answered(("yes", "yes"))
    await page.wait_for(f"!{NAMES}.includes('Tom the gardener')")


async def test_the_picker_is_used_with_the_keyboard_alone(page: Browser) -> None:
    await page.value("document.querySelector('#open-picker').focus()")
    await page.press("Enter")
    await page.wait_for(f"{OPEN} && document.activeElement.dataset.id === 'assistant'")
    await page.press("ArrowRight")
    second = await page.value("document.activeElement.dataset.id")
    assert second not in ("assistant", None)
    await page.press("ArrowLeft")
    assert await page.value("document.activeElement.dataset.id") == "assistant"
    await page.press("ArrowLeft")
    assert await page.value("document.activeElement.dataset.id") == "assistant"
    await page.press("Escape")
    await page.wait_for(f"!{OPEN}")
    assert await page.value("document.activeElement.id") == "open-picker"
    await page.press("Enter")
    await page.wait_for(OPEN)
    await page.press("End")
    await page.press("Enter")
    await page.wait_for(f"!{OPEN} && document.querySelector('.message.assistant')")


async def test_what_a_card_says_is_text_in_the_picker_and_never_markup(page: Browser) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    await page.click("#open-picker")
    await drop(page, encoded(v2(name="E<b>v</b>il", creator_notes=evil)), "evil.json")
    await page.wait_for(f"{NOTICE} === 'E<b>v</b>il is here.'")
    assert (
        await page.value("document.querySelectorAll('#picker script, #picker-grid img').length")
        == 0
    )
    texts = await page.value(
        "[...document.querySelectorAll('.character-text')].map(text => text.textContent)"
    )
    assert evil in texts

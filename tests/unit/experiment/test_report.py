"""The report: it answers on its first screen, needs nothing else, and shows every metric and doubt."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from appliance.experiment.analysis import analyse
from appliance.experiment.findings import Analysis, Effect
from appliance.experiment.report.document import report_document, report_text
from appliance.experiment.report.interval_plot import axis_end, interval_plot
from appliance.experiment.report.list_page import Listed, list_page
from appliance.experiment.report.markup import tag
from appliance.experiment.report.numbers import amount, change, hours, span
from appliance.experiment.report.page import report_page
from tests.browser import CHROMIUM, Browser, browser
from tests.unit.experiment.measurements import PLAN, measured, subject
from tests.unit.experiment.test_analysis import without_users

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")


@pytest.fixture(scope="module")
def helps() -> Analysis:
    return analyse(measured(messages=0.12, users=12_000), PLAN)


@pytest.fixture(scope="module")
def harms() -> Analysis:
    return analyse(measured(hits=-0.35, ttft=0.3, users=800, hours=20), PLAN)


def plain(text: str) -> str:
    """With the signs and spaces of a keyboard."""
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-")


class Text(HTMLParser):
    """The texts of a page, and that its elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_answers_first_and_shows_every_metric_and_doubt(helps: Analysis) -> None:
    shipping = (("warmer", "Shipping computes 412 tokens once."),)
    page = report_page(subject(shipping=shipping, notes=("Arm x was paused.",)), helps)
    texts = plain(" ".join(Text(page).texts))
    places = [
        texts.index(part)
        for part in (
            "Arm x was paused.",
            "Did it help? Yes Messages sent: +12 %",
            "How sure are we? Very sure",
            "What does it cost? No change seen",
            "Shipping computes 412 tokens once.",
            "Every metric",
            "Guardrails",
            "What this rests on",
        )
    ]
    assert places == sorted(places)
    for item in helps.results[0].findings:
        assert item.metric.title in texts
    for doubt in ("3, left out of every figure", "first 10 minutes", "warmer 31.0 %", "CUPED"):
        assert doubt in texts


def test_the_page_needs_nothing_from_anywhere(helps: Analysis) -> None:
    page = report_page(subject(), helps)
    assert not re.search(r"(\bsrc=|href=|url\(|@import|https?:|<script)", page)
    assert "default-src 'none'" in unescape(page)
    assert len(page) < 60_000


def test_names_and_hypotheses_are_texts_and_never_markup(helps: Analysis) -> None:
    evil = "<script>alert(1)</script>\"'&"
    page = report_page(subject(name=evil, hypothesis=evil, notes=(evil,)), helps)
    assert "<script" not in page
    assert "".join(Text(page).texts).count(evil) >= 3
    assert str(tag("p", "a", title='"<')) == '<p title="&quot;&lt;">a</p>'


def test_a_harm_is_told_first_with_what_is_allowed(harms: Analysis) -> None:
    told = plain(report_text(subject(), harms))
    assert re.search(
        r"Did it help\? No, it harms\.\n +Prompt tokens found in the cache: -3\d % .*; "
        r"a fall of up to 5 % is allowed\.",
        told,
    )
    assert "What does it cost? More, slower." in told


def test_every_state_of_an_experiment_has_words() -> None:
    found = measured(users=900)
    both = measured(messages=0.3, hits=-0.35, users=3_000)
    few = measured(users=60)
    wrong = measured(users=3_000, shares=(0.6, 0.4))
    states = {
        "Yes, but it harms": both,
        "Too early to say": few,
        "Not known yet": found,
        "It cannot be said": replace(wrong, users=replace(wrong.users, shares=(0.5, 0.5))),
        "No difference seen": replace(found, hours=PLAN.hours),
        "Nobody has been exposed yet": without_users(without_users(few, 0), 1),
    }
    for words, one in states.items():
        told = analyse(one, PLAN)
        assert words in report_text(subject(), told), words
        assert words in " ".join(Text(report_page(subject(), told)).texts), words


def test_json_has_the_figures_of_the_page(helps: Analysis) -> None:
    told = json.loads(json.dumps(report_document(subject(), helps)))
    assert told["answers"]["warmer"]["did_it_help"]["short"] == "Yes"
    result = told["analysis"]["results"][0]
    assert result["verdict"] == "helps"
    sent = result["findings"][0]
    assert sent["metric"]["name"] == "messages_sent"
    assert sent["relative"]["low"] > 0
    assert told["analysis"]["sample_ratio"]["p_value"] > 0.001


def test_the_list_shows_what_runs_with_its_guardrails(helps: Analysis, harms: Analysis) -> None:
    listed = (
        Listed(subject=subject(), analysis=helps, address="warmer-greeting.html"),
        Listed(subject=subject(name="clock-first"), analysis=harms),
        Listed(subject=subject(name="later", state="draft", started_at=None), lacks="Not started."),
    )
    texts = plain(" ".join(Text(list_page(listed)).texts))
    assert "Guardrails. Safe: Messages sent; Regenerations a message; " in texts
    assert "None in either arm: Replies that failed." in texts
    assert "better. Cost: No change seen . Guardrails. " in " ".join(texts.split())
    assert "Prompt tokens found in the cache: breached, -3" in texts
    assert "later draft" in texts
    assert "Not started." in texts
    assert "There are none yet" in list_page(())


def test_numbers_are_short_and_never_lose_their_sign() -> None:
    told = [
        change(0.1234),
        change(-0.0042),
        change(0.000001),
        change(2.5),
        span(-0.1, 0.021),
        span(-0.203, -0.197),
    ]
    assert [plain(text) for text in told] == [
        "+12 %",
        "-0.42 %",
        "0 %",
        "+250 %",
        "-10 to +2.1 %",
        "-20.3 to -19.7 %",
    ]
    amounts = [
        amount(1234.5, "tokens"),
        amount(0.0607, "share"),
        amount(1834, "ms"),
        amount(0, "x"),
    ]
    assert [plain(text) for text in amounts] == [
        "1,234",
        "6.07 %",
        "1.83 s",
        "0",
    ]
    assert [hours(0.5), hours(30), hours(72), hours(60)] == [
        "30 minutes",
        "30 hours",
        "3 days",
        "2.5 days",
    ]


def test_an_interval_beyond_the_axis_has_a_tip_and_no_point() -> None:
    far = Effect(change=3.0, low=-0.1, high=6.0)
    near = Effect(change=0.01, low=-0.02, high=0.04)
    end = axis_end([near, near, near, far])
    assert end == 0.05
    assert "<circle" in interval_plot(near, end, "good")
    assert "<path" not in interval_plot(near, end, "good")
    drawn = interval_plot(far, end, "bad", margin=0.2)
    assert drawn.count("<path") == 2
    assert "<circle" not in drawn
    assert 'class="limit"' not in drawn
    assert axis_end([]) == 0.01
    # A large effect that stands alone is shown whole.
    assert axis_end([Effect(change=6.5, low=3.7, high=10.4)]) == 20.0


@pytest.fixture
async def page(chromium: str) -> AsyncIterator[Browser]:
    async with browser(chromium) as opened:
        yield opened
        assert opened.problems == []


@needs_chromium
async def test_the_first_screen_holds_the_three_answers(
    page: Browser, helps: Analysis, harms: Analysis, tmp_path: Path
) -> None:
    for name, told in (("helps", helps), ("harms", harms)):
        file = tmp_path / f"{name}.html"
        noted = subject(notes=("Arm warmer was paused: it emptied the cache of what is computed.",))
        file.write_text(report_page(noted, told), encoding="utf-8")
        for width, height in ((1280, 800), (390, 844)):
            await page.show(width=width, height=height)
            await page.open(file.as_uri())
            wide = await page.value("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} at {width}"
            last = "[...document.querySelectorAll('.answer .short')].at(-1).getBoundingClientRect()"
            assert await page.value(f"{last}.bottom") <= height, f"{name} at {width}"
            # The style is let in by its hash: were it refused, nothing would be a column.
            assert (
                await page.value("getComputedStyle(document.querySelector('dl')).display") == "grid"
            )

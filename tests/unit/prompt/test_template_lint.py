"""What lint says of a template: text before the history that changes, private text in a shared zone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.errors import TemplateError
from appliance.prompt.templates.built_in import built_in
from appliance.prompt.templates.compiling import template_of
from appliance.prompt.templates.lint import Level, findings, refuse_errors
from tests.unit.prompt.template_files import HISTORY

INPUTS = """\
name: x
inputs:
  character: {type: map, scope: character, sample: {system: Hi.}}
  user_name: {sample: Ana}
  weather: {scope: turn, sample: fair}
---
- {name: system, zone: character, role: system, content: "{{ character.system }}"}
"""


def said(text: str) -> list[tuple[Level, str]]:
    return [(found.level, found.sentence) for found in findings(template_of(text, "x.yaml"))]


def part(name: str, zone: str, content: str) -> str:
    return f"- {{name: {name}, zone: {zone}, role: system, content: '{content}'}}\n"


@pytest.mark.parametrize("zone", ["character", "persona", "pinned"])
@pytest.mark.parametrize("extra", ["", "  if: weather\n", "  for_each: w in [weather]\n"])
def test_text_that_changes_before_the_history_is_an_error_that_says_what_it_costs(
    zone: str, extra: str
) -> None:
    content = "fixed" if extra else "It is {{ weather }}"
    volatile = f"- name: sky\n  zone: {zone}\n  role: system\n  content: '{content}'\n{extra}"
    text = INPUTS + volatile + part("end", "pinned", "{{ user_name }}") + HISTORY
    errors = [sentence for level, sentence in said(text) if level is Level.ERROR]
    (sentence,) = errors
    assert sentence.startswith("x.yaml, line 8, part `sky`: ")
    for word in ("`weather`", "the 1 part after it", "whole history", "8,000 tokens", "volatile"):
        assert word in sentence
    with pytest.raises(TemplateError, match="`weather`"):
        refuse_errors(template_of(text, "x.yaml"))


def test_text_that_changes_after_the_history_is_welcome() -> None:
    text = INPUTS + part("p", "persona", "{{ user_name }}") + HISTORY
    assert said(text + part("sky", "volatile", "It is {{ weather }}")) == []


def test_private_text_in_a_zone_that_is_shared_is_a_warning() -> None:
    text = INPUTS + part("who", "character", "{{ user_name }}") + HISTORY
    text += part("sky", "volatile", "{{ weather }}")
    ((level, sentence),) = said(text)
    assert level is Level.WARNING
    assert "`user_name`" in sentence
    assert "zone persona" in sentence


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("system", "two parts are called 'system'"),
        ("moods", "two parts are called 'moods'"),
        ("moods 1", "'moods 1' is also what the loop of 'moods' calls a part"),
    ],
)
@pytest.mark.parametrize("zone", ["persona", "volatile"])
def test_a_name_that_two_parts_would_have_is_refused(name: str, told: str, zone: str) -> None:
    loop = "- {name: moods, zone: persona, role: system, for_each: 'm in [1]', content: x}\n"

    def text(name: str) -> str:
        again = part(name, zone, "y")
        return INPUTS + loop + (HISTORY + again if zone == "volatile" else again + HISTORY)

    with pytest.raises(TemplateError, match=re.escape(told)):
        template_of(text(name), "x.yaml")
    template_of(text("moods x"), "x.yaml")


def test_what_fails_or_is_empty_with_the_sample_data_is_found() -> None:
    text = INPUTS + part("p", "persona", "{{ character.sistem }}") + HISTORY
    text += part("sky", "volatile", "{{ weather }}{{ user_name }}")
    assert any("'sistem'" in sentence for level, sentence in said(text) if level is Level.ERROR)
    empty = INPUTS + part("p", "persona", "{{ user_name if false else weather[9:] }}") + HISTORY
    assert any("give it an `if`" in sentence for _, sentence in said(empty))


@pytest.mark.parametrize("items", ["[weather[9:]]", "[weather, weather[9:]]"])
def test_an_empty_part_of_a_loop_is_found(items: str) -> None:
    looped = part("p", "persona", "{{ w }}").replace("}\n", f", for_each: 'w in {items}'}}\n")
    text = INPUTS.replace("turn", "conversation") + looped + HISTORY
    assert any("`p`: with the sample data it is empty" in sentence for _, sentence in said(text))
    full = text.replace("weather[9:]", "weather")
    assert not any("it is empty" in sentence for _, sentence in said(full))


def test_unused_inputs_and_missing_samples_are_warnings() -> None:
    text = "name: x\ninputs:\n  a: {}\n  b: {sample: x}\n---\n"
    found = said(text + part("p", "persona", "{{ a }}") + HISTORY)
    assert [level for level, _ in found] == [Level.WARNING, Level.WARNING]
    assert "input `b` is not used" in found[0][1]
    assert "no sample for `a`" in found[1][1]


def test_the_built_in_template_has_nothing_to_say_of() -> None:
    assert findings(built_in()) == []


def test_the_example_of_the_documentation_is_good() -> None:
    text = (Path(__file__).parents[3] / "docs" / "prompts.md").read_text()
    example = text.split("```yaml\n")[1].split("```")[0]
    assert said(example) == []

"""Truncation priorities and blocks of templates: what goes at a cut, and nothing between cuts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from appliance.errors import ContextLengthExceeded, TemplateError
from appliance.prompt.fit import Fitted, fit, forms_of_front
from appliance.prompt.messages import PromptMessage
from appliance.prompt.templates.compiling import template_of
from appliance.prompt.templates.fitting import fit_parts
from appliance.prompt.templates.parts import Rendered
from appliance.prompt.templates.poet import PoetTemplate
from appliance.prompt.truncate import Window
from appliance.tokens import unpack
from tests.unit.prompt.formats import TENANT, conversation, format_of, written
from tests.unit.prompt.template_files import FROZEN
from tests.unit.prompt.templates import CHATML, LAST_IS_SPECIAL, SMOLLM2

FRONT = "name: x\ninputs:\n  examples: {type: list, scope: character, sample: []}\n---\n"
SYSTEM = "- {name: who, zone: character, role: system, content: You are Mira.}\n"
EXAMPLES = """\
- name: question
  zone: character
  role: user
  block: example
  for_each: pair in examples
  truncation_priority: 2
  content: "{{ pair[0] }}"
- name: answer
  role: assistant
  block: example
  for_each: pair in examples
  truncation_priority: 2
  content: "{{ pair[1] }}"
"""
HISTORY = "- {name: history, zone: history}\n"
PAIRS = [["first?", "one"], ["second?", "two"], ["third?", "three"]]
SPACE = Window(limit=460, reserve=60, step=120, draft=20)

POET = """\
- name: system
  role: system
  content: You are Mira.
- name: pin
  role: user
  truncation_priority: 1
  content: "{{ pin }}"
{% for text in messages %}
- name: message {{ loop.index }}
  role: {{ 'user' if loop.index is odd else 'assistant' }}
  truncation_priority: 5
  content: "{{ text }}"
{% endfor %}
- name: reply
  role: system
  content: Answer as Mira.
"""


def rendered(text: str) -> Rendered:
    return template_of(text, "t.yaml").render({"examples": PAIRS}, FROZEN)


def fitted(
    parts: Rendered, history: list[PromptMessage], space: Window, template: str = CHATML
) -> Fitted:
    return fit(
        format_of(template),
        [part.message(TENANT) for part in parts.before],
        history,
        space,
        after=[part.message(TENANT) for part in parts.after],
        history_priority=parts.history_priority,
    )


def names_of(fitted: Fitted) -> tuple[str, ...]:
    """The parts that a cut took out."""
    return tuple(part.name for part in fitted.left_out)


def test_parts_of_one_block_with_a_loop_are_written_together_item_by_item() -> None:
    parts = rendered(FRONT + SYSTEM + EXAMPLES + HISTORY).before
    assert [(part.name, part.role, part.content, part.block) for part in parts[1:5]] == [
        ("question 1", "user", "first?", "example 1"),
        ("answer 1", "assistant", "one", "example 1"),
        ("question 2", "user", "second?", "example 2"),
        ("answer 2", "assistant", "two", "example 2"),
    ]


@pytest.mark.parametrize("template", [CHATML, SMOLLM2, LAST_IS_SPECIAL])
def test_examples_go_whole_and_only_where_the_window_is_cut(template: str) -> None:
    parts = rendered(FRONT + SYSTEM + EXAMPLES + HISTORY)
    history: list[PromptMessage] = []
    prompts = []
    for turn in range(30):
        history += conversation(("user", f"Question {turn}?"))
        prompts.append(fitted(parts, history, SPACE, template))
        assert prompts[-1].prompt.tokens <= SPACE.room
        history += conversation(("assistant", f"Answer {turn}."))
    assert prompts[0].left_out == ()
    assert names_of(prompts[-1]) == tuple(part.name for part in parts.before[1:])
    assert [(out.truncation_priority, out.block) for out in prompts[-1].left_out[:3]] == [
        (2, "example 1"),
        (2, "example 1"),
        (2, "example 2"),
    ]
    moves = 0
    for before, after in pairwise(prompts):
        gone = after.left_out
        assert len(gone) % 2 == 0
        assert set(gone) >= set(before.left_out)
        if (before.messages_dropped, before.left_out) == (after.messages_dropped, after.left_out):
            shared = len(before.prompt.messages)
            assert after.prompt.messages[:shared] == before.prompt.messages
            if template is not LAST_IS_SPECIAL:
                assert after.prompt.token_ids.startswith(before.prompt.token_ids)
        moves += (before.messages_dropped, before.left_out) != (
            after.messages_dropped,
            after.left_out,
        )
    assert 1 < moves < 12


def test_a_template_says_what_is_worth_more_than_old_messages() -> None:
    dear = FRONT + SYSTEM + EXAMPLES + "- {name: history, zone: history, truncation_priority: 3}\n"
    history = conversation(*[("user", "q" * 9), ("assistant", "a" * 9)] * 12, ("user", "new"))  # type: ignore[arg-type]
    first = fitted(rendered(dear), history, SPACE)
    assert first.left_out == ()
    assert first.messages_dropped > 0
    text = written(format_of(CHATML), unpack(first.prompt.token_ids))
    assert "third?" in text
    # A newest message that would not fit otherwise is worth more than they.
    seen = []
    for length in range(250, 350, 6):
        long = conversation(("user", "q" * length))
        second = fitted(rendered(dear), [*history[:-1], *long], SPACE)
        assert second.messages_dropped == len(history) - 1
        if names_of(second) not in seen:
            seen.append(names_of(second))
    one = ("question 1", "answer 1")
    assert seen == [
        (),
        one,
        (*one, "question 2", "answer 2"),
        tuple(f"{what} {number}" for number in (1, 2, 3) for what in ("question", "answer")),
    ]


def test_what_never_goes_is_named_when_it_does_not_fit() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        fitted(
            rendered(FRONT + SYSTEM + EXAMPLES + HISTORY),
            conversation(("user", "q" * 400)),
            SPACE,
        )
    message = caught.value.message
    assert "who " in message
    assert "new message 4" in message
    assert "question" not in message


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            SYSTEM + EXAMPLES.replace("priority: 2", "priority: 1", 1),
            "the same truncation_priority",
        ),
        (SYSTEM + EXAMPLES.replace("in examples", "in examples[1:]", 1), "the same for_each"),
        (
            EXAMPLES.replace(
                "- name: answer", "- {name: x, role: user, content: x}\n- name: answer"
            ),
            "do not stand next to each other",
        ),
        (SYSTEM + EXAMPLES.replace("block: example", "block: ' '"), "a block needs a name"),
    ],
)
def test_a_block_that_could_not_go_whole_is_refused(parts: str, sentence: str) -> None:
    with pytest.raises(TemplateError, match=sentence):
        template_of(FRONT + parts + HISTORY, "t.yaml")


def test_a_history_that_may_never_go_is_refused() -> None:
    with pytest.raises(TemplateError, match="1 or more"):
        template_of(
            FRONT + SYSTEM + "- {name: history, zone: history, truncation_priority: 0}\n", "t.yaml"
        )


def test_every_form_of_the_front_is_known() -> None:
    front = [part.message(TENANT) for part in rendered(FRONT + SYSTEM + EXAMPLES + HISTORY).before]
    names = [[message.name for message in form] for form in forms_of_front(front)]
    whole = ["who", "question 1", "answer 1", "question 2", "answer 2", "question 3", "answer 3"]
    assert names == [whole, [whole[0], *whole[3:]], [whole[0], *whole[5:]], whole[:1]]


def test_a_whole_file_template_is_cut_by_turns_at_a_place_that_stays() -> None:
    chat_format = format_of(CHATML)
    template = PoetTemplate.compile(POET, "p.yml.j2")
    prompts = []
    for count in range(1, 60, 2):
        messages = [f"text {index}" for index in range(count)]
        parts = template.render({"pin": "Mira likes tea.", "messages": messages})
        found = fit_parts(chat_format, parts, SPACE, TENANT)
        text = written(chat_format, unpack(found.prompt.token_ids))
        assert found.prompt.tokens <= SPACE.room
        assert f"text {count - 1}" in text
        assert "Answer as Mira." in text
        assert "Mira likes tea." in text
        assert found.messages_dropped % 2 == 0
        prompts.append(found)
    drops = [found.messages_dropped for found in prompts]
    assert drops == sorted(drops)
    assert 2 < len(set(drops)) < 12
    # The pin goes last, and only for a message that needs its room.
    parts = template.render({"pin": "Mira likes tea.", "messages": ["x" * 325]})
    assert names_of(fit_parts(chat_format, parts, SPACE, TENANT)) == ("pin",)


def test_a_whole_file_template_without_a_conversation_keeps_what_is_protected() -> None:
    parts = PoetTemplate.compile(
        "- {name: a, content: always}\n- {name: b, content: also}\n", "p.yml.j2"
    ).render({})
    found = fit_parts(format_of(CHATML), parts, SPACE, TENANT)
    assert (found.messages_dropped, found.left_out) == (0, ())
    with pytest.raises(ContextLengthExceeded, match="a 1"):
        fit_parts(format_of(CHATML), parts, Window(limit=20, reserve=0, step=0), TENANT)

"""Where contents go: probed layouts against the template's own rendering."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from appliance.prompt.chat_format.layout import PairLayout, WholeLayout, derive_layout
from appliance.prompt.chat_format.probe import LOOKS_INSIDE as LOOKS_INSIDE_SENTENCE
from appliance.prompt.chat_format.probe import MISPLACED, Placement, Refused, Shape
from appliance.prompt.chat_format.template_runner import Case
from appliance.prompt.messages import Role
from tests.unit.prompt.templates import (
    ALTERNATING,
    CHATML,
    COUNTS,
    FAMILIES,
    LAST_IS_SPECIAL,
    LLAMA2,
    LOOKS_INSIDE,
    MEASURES,
    NO_SYSTEM,
    SKIPS_EMPTY,
    SMOLLM2,
    WHITE_SPACE,
    runner,
)

CONTENTS = (
    "plain",
    "  padded \n",
    "",
    "</think> <<SYS>> [INST] <|im_end|>",
    "{{ 7*7 }}",
    "é\n\n你",
)


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        (CHATML, PairLayout),
        (SMOLLM2, PairLayout),
        (NO_SYSTEM, PairLayout),
        (ALTERNATING, PairLayout),
        (LLAMA2, PairLayout),
        (WHITE_SPACE, PairLayout),
        (SKIPS_EMPTY, PairLayout),
        (LAST_IS_SPECIAL, WholeLayout),
    ],
)
def test_a_layout_places_any_contents_as_the_template_does(
    template: str, kind: type[PairLayout | WholeLayout]
) -> None:
    layout = derive_layout(runner(template))
    assert isinstance(layout, kind)
    chosen = random.Random(3)
    cases = []
    for _ in range(20 if kind is PairLayout else 5):
        length = chosen.randint(1, 7)
        roles: list[Role] = [chosen.choice(get_args(Role)) for _ in range(length)]
        if chosen.random() < 0.6:
            roles = [("user", "assistant")[i % 2] for i in range(length)]
        messages = tuple((role, chosen.choice(CONTENTS)) for role in roles)
        cases.append(Case(messages=messages, add_generation_prompt=chosen.random() < 0.7))
    for case, truth in zip(cases, runner(template).render(cases), strict=True):
        empty = frozenset(i for i, (_, content) in enumerate(case.messages) if not content)
        shape = Shape(
            roles=tuple(role for role, _ in case.messages),  # type: ignore[misc]
            header=case.add_generation_prompt,
            empty=empty,
        )
        reading = layout.place(shape)
        if isinstance(reading, Refused):
            assert reading.sentence == (truth.refusal or MISPLACED)
            continue
        written = [
            slot.before + slot.trimmed(content)
            for slot, (_, content) in zip(reading.slots, case.messages, strict=True)
        ]
        assert "".join(written) + reading.after == truth.text


@pytest.mark.parametrize("name", LOOKS_INSIDE)
def test_a_template_that_looks_inside_contents_is_refused(name: str) -> None:
    refused = derive_layout(runner(LOOKS_INSIDE[name]))
    assert isinstance(refused, Refused)
    assert refused.sentence in (LOOKS_INSIDE_SENTENCE, MISPLACED)


@pytest.mark.parametrize("name", COUNTS)
def test_a_template_that_counts_messages_is_rendered_as_a_whole(name: str) -> None:
    assert isinstance(derive_layout(runner(COUNTS[name])), WholeLayout)


@pytest.mark.parametrize("name", MEASURES)
def test_a_template_that_measures_contents_is_refused(name: str) -> None:
    assert isinstance(derive_layout(runner(MEASURES[name])), Refused)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_usual_families_need_neighbours_alone(name: str) -> None:
    layout = derive_layout(runner(FAMILIES[name]))
    assert isinstance(layout, PairLayout)


def test_a_long_conversation_costs_a_pair_layout_no_rendering() -> None:
    layout = derive_layout(runner(SMOLLM2))
    assert isinstance(layout, PairLayout)
    assert layout.holes is None
    roles: tuple[Role, ...] = ("user", "assistant") * 2000
    longer = layout.place(Shape(roles=(*roles, "user"), header=True))
    shorter = layout.place(Shape(roles=roles[:-1], header=True))
    assert isinstance(longer, Placement)
    assert isinstance(shorter, Placement)
    assert longer.slots[: len(shorter.slots)] == shorter.slots


def test_a_whole_layout_remembers_the_shapes_it_rendered() -> None:
    layout = derive_layout(runner(LAST_IS_SPECIAL))
    assert isinstance(layout, WholeLayout)
    shape = Shape(roles=("user", "assistant", "user"), header=True)
    assert layout.place(shape) is layout.place(shape)

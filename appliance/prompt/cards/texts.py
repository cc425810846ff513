"""What a card says in one conversation: system text, example dialogues, greetings, without macros.

Creator's notes, tags, creator and version are not among them: the formats keep them out of prompts.
Never: where in a prompt a text stands, or who may share it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from appliance.prompt.cards.card import Card
from appliance.prompt.cards.macros import DEFAULT_USER, Expanded, Macros
from appliance.prompt.templates.frozen_macros import Beginning

SYSTEM_PROMPT = "You are {{char}}. Stay in character, and answer {{user}} in {{char}}'s voice."
"""For a card without its own, and what {{original}} stands for."""

SUMMARY_CHARS_MAX = 400
_START = re.compile(r"<START>", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTexts:
    """The texts of a card with the conversation's names and draws in them.

    `examples` are whole dialogues, one a `<START>`. `is_same_for_all` says whether `system` and
    `examples` are the same in every conversation, so that what is shared may be shared.
    """

    system: str
    examples: tuple[str, ...]
    greetings: tuple[Expanded, ...]
    post_history_instructions: Expanded
    is_same_for_all: bool


def card_texts(card: Card, macros: Macros) -> CardTexts:
    """The texts; raises InvalidCard for one that its macros make too large."""
    system = _system(card, macros)
    examples = [
        macros.expand(block, f"mes_example[{index}]")
        for index, block in enumerate(example_blocks(card.examples))
    ]
    return CardTexts(
        system="\n\n".join(expanded.text for expanded in system if expanded.text.strip()),
        examples=tuple(expanded.text for expanded in examples),
        greetings=tuple(
            macros.expand(text, f"greeting[{index}]") for index, text in enumerate(card.greetings)
        ),
        post_history_instructions=macros.expand(
            card.post_history_instructions, "post_history_instructions"
        ),
        is_same_for_all=all(expanded.is_same_for_all for expanded in (*system, *examples)),
    )


def macros_of(card: Card, frozen: Beginning, *, user: str = DEFAULT_USER) -> Macros:
    """What a card's macros stand for in the conversation that `frozen` is of."""
    return Macros(char=card.called, user=user, frozen=frozen)


def summary(card: Card, frozen: Beginning) -> str:
    """What a reader who chooses is shown: the first paragraph of the creator's notes, else of the card.

    V2: at least one paragraph of the notes should be displayed. Never a part of a prompt.
    """
    for text in (card.creator_notes, card.description, card.personality, card.scenario):
        paragraph = " ".join(text.strip().partition("\n\n")[0].split())
        if paragraph:
            told = macros_of(card, frozen).expand(paragraph, "summary").text
            return told if len(told) <= SUMMARY_CHARS_MAX else told[: SUMMARY_CHARS_MAX - 1] + "…"
    return ""


def example_blocks(examples: str) -> tuple[str, ...]:
    """The dialogues between the marks, those that say nothing left out."""
    blocks = (block.strip("\r\n") for block in _START.split(examples))
    return tuple(block for block in blocks if block.strip())


def _system(card: Card, macros: Macros) -> tuple[Expanded, ...]:
    """An empty system prompt falls back to the default (V2: it must)."""
    default = macros.expand(SYSTEM_PROMPT, "original")
    own = default
    if card.system_prompt.strip():
        own = replace(macros, original=default).expand(card.system_prompt, "system_prompt")
    parts = [own, macros.expand(card.description, "description")]
    if card.personality.strip():
        told = macros.expand(card.personality, "personality")
        parts.append(replace(told, text=f"{card.called}'s personality: {told.text}"))
    if card.scenario.strip():
        told = macros.expand(card.scenario, "scenario")
        parts.append(replace(told, text=f"Scenario: {told.text}"))
    return tuple(parts)

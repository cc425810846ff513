"""A character card as one value, whatever file it came in. Reads no bytes and decides no prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from appliance.prompt.cards.image import Image
from appliance.prompt.lore.lorebook import Lorebook
from appliance.prompt.lore.placement import DEFAULT_PLACEMENT, Placement


class Version(Enum):
    """The format's version: the shape of the JSON document."""

    V1 = "1"
    V2 = "2"
    V3 = "3"

    @property
    def spec(self) -> str:
        """The field `spec`; V1 has none."""
        return "" if self is Version.V1 else f"chara_card_v{self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card. `text` is its JSON as it came, and the truth: the other fields are what is used of it.

    Texts hold macros as they were written. `greeting` and `examples` are the formats' `first_mes` and
    `mes_example`. `lorebooks` holds its `character_book`, if there is one. `files` are the other files
    of a CHARX by path; `image` is the portrait, which is one of these or, `from_png`, the PNG itself.
    `lore_placement` is what the card asks of this program in its `extensions`. `warnings` are sentences
    for the reader who imports it.
    """

    version: Version
    text: str
    name: str
    nickname: str
    description: str
    personality: str
    scenario: str
    greeting: str
    alternate_greetings: tuple[str, ...]
    group_only_greetings: tuple[str, ...]
    examples: str
    system_prompt: str
    post_history_instructions: str
    lorebooks: tuple[Lorebook, ...]
    creator: str
    creator_notes: str
    character_version: str
    tags: tuple[str, ...]
    lore_placement: Placement = DEFAULT_PLACEMENT
    image: Image | None = None
    from_png: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """What {{char}} stands for: the nickname, else the name."""
        return self.nickname or self.name

    @property
    def greetings(self) -> tuple[str, ...]:
        """The openings a reader may swipe between, those that say nothing left out."""
        return tuple(text for text in (self.greeting, *self.alternate_greetings) if text.strip())

    @property
    def said(self) -> tuple[str | tuple[str, ...], ...]:
        """All of its texts that may come into a prompt, its lorebooks apart."""
        return (
            self.name,
            self.nickname,
            self.description,
            self.personality,
            self.scenario,
            self.greeting,
            self.alternate_greetings,
            self.group_only_greetings,
            self.examples,
            self.system_prompt,
            self.post_history_instructions,
        )

    def document(self) -> dict[str, Any]:
        """The JSON document; changing it changes no card."""
        document = json.loads(self.text)
        assert isinstance(document, dict)
        return document

"""Who answers in a conversation, whether that is one character or several. Never: an implementation.

`CharacterVersion` is one, `Group` several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from appliance.prompt.cards.macros import Expanded, Macros
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.lore.books import Lore
from appliance.prompt.settings import SamplingSettings, TruncationSettings
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.prompt.templates.parts import Rendered


class Cast(Protocol):
    """Who answers. One character has no `members`, and none of its replies names a speaker."""

    @property
    def members(self) -> tuple[CharacterVersion, ...]:
        """The characters of a group in the order of their texts."""

    @property
    def lore(self) -> Lore:
        """The books of all."""

    @property
    def owners(self) -> Mapping[str, CharacterVersion]:
        """The member whose an entry of lore is, by the entry's digest."""

    @property
    def sampling(self) -> SamplingSettings:
        """What is settled of replies; a group, of several versions, settles nothing."""

    @property
    def truncation(self) -> TruncationSettings:
        """What is settled of cuts; a group settles nothing."""

    @property
    def text_chars(self) -> int:
        """Characters of the cards that a rendering reads."""

    def says_last(self, speaker: str | None) -> bool:
        """Whether something of the speaker's own stands behind the newest message."""

    def render(
        self,
        beginning: Beginning,
        *,
        user: str = ...,
        inputs: Mapping[str, Any] = ...,
        speaker: str | None = ...,
    ) -> Rendered:
        """The parts around the history, for a reply of `speaker`. Raises TemplateError."""

    def openings(
        self, beginning: Beginning, *, user: str = ...
    ) -> tuple[tuple[str | None, Expanded], ...]:
        """(speaker, text) of what a conversation may open with, the first of which is shown."""

    def macros(self, beginning: Beginning, *, user: str = ...) -> Macros:
        """What macros in its lore stand for."""

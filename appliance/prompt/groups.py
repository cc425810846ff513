"""Several characters in one conversation: all of their texts first, once, whoever speaks.

What only concerns the member who speaks next stands behind the newest message, so that a prompt begins as
the one before it. Never: whose turn it is, or what was said (`chat.speakers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from appliance.prompt.cards.macros import DEFAULT_USER, Expanded, Macros
from appliance.prompt.cards.texts import card_texts, macros_of
from appliance.prompt.characters import NO_INPUTS, CharacterVersion
from appliance.prompt.lore.books import Lore
from appliance.prompt.settings import (
    NO_SAMPLING,
    NO_TRUNCATION,
    SamplingSettings,
    TruncationSettings,
)
from appliance.prompt.templates.built_in import of_groups
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.prompt.templates.parts import Rendered

MEMBERS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Its members in the order of their texts, 2 to MEMBERS_MAX of different ids.

    `lore` are the books of all, frozen into the history wherever a card would have them; `owners` leads
    from the digest of an entry to the member whose it is.
    """

    members: tuple[CharacterVersion, ...]
    lore: Lore
    owners: Mapping[str, CharacterVersion]

    @classmethod
    def of(cls, members: Sequence[CharacterVersion]) -> Group:
        """The group of these members. Their books are compiled already."""
        assert 2 <= len(members) <= MEMBERS_MAX
        assert len({member.character.id for member in members}) == len(members)
        owners: dict[str, CharacterVersion] = {}
        for member in members:
            for book in member.lore.books:
                for entry in book.book.entries:
                    owners.setdefault(entry.digest, member)
        return cls(
            members=tuple(members),
            lore=Lore.together([member.lore for member in members]),
            owners=MappingProxyType(owners),
        )

    @property
    def text_chars(self) -> int:
        """Characters of the cards that a rendering reads."""
        return sum(member.text_chars for member in self.members)

    @property
    def sampling(self) -> SamplingSettings:
        """Nothing is settled: its members are of several versions."""
        return NO_SAMPLING

    @property
    def truncation(self) -> TruncationSettings:
        """Nothing is settled."""
        return NO_TRUNCATION

    def member(self, character_id: str | None) -> CharacterVersion | None:
        """The member of this id."""
        return next((m for m in self.members if m.character.id == character_id), None)

    def says_last(self, speaker: str | None) -> bool:
        """Whether something of the speaker's own stands behind the newest message."""
        member = self.member(speaker)
        if member is None:
            return False
        if member.card is None:
            return bool(member.character.post_history)
        return bool(member.card.post_history_instructions)

    def render(
        self,
        beginning: Beginning,
        *,
        user: str = DEFAULT_USER,
        inputs: Mapping[str, Any] = NO_INPUTS,
        speaker: str | None = None,
    ) -> Rendered:
        """The parts around the history, those behind it for a reply of `speaker`. Raises TemplateError.

        Before the history they are the same whoever speaks, and public unless a card says something of
        its own in each conversation.
        """
        told = [_told(member, beginning, user) for member in self.members]
        speaking = self.member(speaker)
        last = Expanded(text="", is_same_for_all=True)
        if speaking is not None:
            last = told[self.members.index(speaking)].last
        shown = {
            "names": [member.called for member in self.members],
            "members": [
                {"name": member.called, "system": one.system}
                for member, one in zip(self.members, told, strict=True)
            ],
            "examples": [
                {"name": member.called, "text": example}
                for member, one in zip(self.members, told, strict=True)
                for example in one.examples
            ],
            "post_history": last.text,
        }
        rendered = of_groups().render({**inputs, "character": shown}, beginning)
        if not all(one.is_same_for_all for one in told):
            return rendered.private()
        return (
            rendered if last.is_same_for_all else replace(rendered, after=rendered.private().after)
        )

    def openings(
        self, beginning: Beginning, *, user: str = DEFAULT_USER
    ) -> tuple[tuple[str | None, Expanded], ...]:
        """(member's id, text) of the messages that the conversation may open with: those that cards have
        for groups alone, else the greetings of the first member."""
        found = [
            (member.character.id, opening)
            for member in self.members
            for opening in _of_groups_alone(member, beginning, user)
        ]
        if found:
            return tuple(found)
        first = self.members[0]
        return tuple((first.character.id, text) for text in first.greetings(beginning, user=user))

    def macros(self, beginning: Beginning, *, user: str = DEFAULT_USER) -> Macros:
        """What macros stand for outside of any member's text."""
        return Macros(char=self.members[0].called, user=user, frozen=beginning)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a member's texts are in one conversation."""

    system: str
    examples: tuple[str, ...]
    last: Expanded
    is_same_for_all: bool


def _told(member: CharacterVersion, beginning: Beginning, user: str) -> _Told:
    if member.card is None:
        said = member.character
        return _Told(
            system=said.system,
            examples=(),
            last=Expanded(text=said.post_history, is_same_for_all=True),
            is_same_for_all=True,
        )
    texts = card_texts(member.card, macros_of(member.card, _own(member, beginning), user=user))
    return _Told(
        system=texts.system,
        examples=texts.examples,
        last=texts.post_history_instructions,
        is_same_for_all=texts.is_same_for_all,
    )


def _own(member: CharacterVersion, beginning: Beginning) -> Beginning:
    """Members draw apart, also where their cards say the same."""
    return replace(beginning, seed=beginning.seed + member.character.id.encode())


def _of_groups_alone(
    member: CharacterVersion, beginning: Beginning, user: str
) -> tuple[Expanded, ...]:
    if member.card is None:
        return ()
    macros = macros_of(member.card, _own(member, beginning), user=user)
    return tuple(
        macros.expand(text, f"group_only_greetings[{index}]")
        for index, text in enumerate(member.card.group_only_greetings)
        if text.strip()
    )

"""Another version of a character in place of the one that conversations hold, published or not.

Never: moves a conversation, or stores anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import msgspec

from appliance.chat.catalog import Catalog
from appliance.chat.hearing import Hearing
from appliance.chat.prompt_builder import PromptBuilder
from appliance.errors import InvalidRequest
from appliance.prompt.bundle import Bundle
from appliance.prompt.characters import Characters, CharacterVersion
from appliance.store.records import Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherVersion:
    """A version, and a builder of prompts that knows it."""

    version: CharacterVersion
    builder: PromptBuilder

    @classmethod
    def of(
        cls,
        version: CharacterVersion,
        builder: PromptBuilder,
        *,
        beside: Sequence[CharacterVersion] = (),
    ) -> OtherVersion:
        """Its builder also knows those `beside`, of other characters."""
        catalog = Catalog(builder.catalog.registry, current=Characters.of((*beside, version)))
        return cls(version=version, builder=replace(builder, catalog=catalog))

    @property
    def hearing(self) -> Hearing:
        """How it hears messages; none of them is ever stored."""
        return Hearing(builder=self.builder, new_id=uuid4)

    def holding(self, conversation: Conversation) -> Conversation:
        """A conversation as if it held this version; a group, as if its member did."""
        own, members = self.version, conversation.scene.members
        moved = tuple(
            msgspec.structs.replace(member, version=own.version)
            if member.id == own.character.id
            else member
            for member in members
        )
        scene = msgspec.structs.replace(conversation.scene, members=moved)
        return replace(conversation, prompt_version=own.version, scene=scene)


def same_character(before: Bundle, after: Bundle) -> None:
    """Raise InvalidRequest when two bundles are of two characters."""
    if before.name != after.name:
        raise InvalidRequest(
            f"A is a version of {before.name}, B one of {after.name}: name two of one character"
        )

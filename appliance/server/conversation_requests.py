"""The bodies of the native conversation API as typed values.

Unknown fields of a message are ignored, as in /v1; of what is kept they are refused, for a name that is
mistyped would else take away what stood there.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from appliance.prompt.groups import MEMBERS_MAX
from appliance.server.sampling_fields import SamplingFields
from appliance.store.records import TITLE_CHARACTERS_MAX, USER_CHARACTERS_MAX, Note, Persona

_Title = Annotated[str, Meta(max_length=TITLE_CHARACTERS_MAX)]


class PersonaFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who the user is: a name that {{user}} stands for, and a text."""

    name: Annotated[str, Meta(max_length=100)] = ""
    text: Annotated[str, Meta(max_length=16_000)] = ""


class NoteFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An author's note: after the newest message of each prompt, or before every so many messages."""

    text: Annotated[str, Meta(min_length=1, max_length=8_000)]
    every: Annotated[int, Meta(ge=1, le=1_000)] | None = None


_Members = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=MEMBERS_MAX)
]
_Pinned = Annotated[list[Annotated[str, Meta(min_length=1, max_length=2_000)]], Meta(max_length=32)]
_Speaker = Annotated[str, Meta(min_length=1, max_length=64)]


class CreateConversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/conversations. `user` is who talks, as the tenant tells its users apart."""

    title: _Title | None = None
    user: Annotated[str, Meta(min_length=1, max_length=USER_CHARACTERS_MAX)] | None = None
    character: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    persona: PersonaFields | None = None
    note: NoteFields | None = None
    pinned: _Pinned | None = None
    members: _Members | None = None


class ChangeConversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PATCH /api/conversations/{id}; what is absent stays.

    `prompt_version` is a label of the conversation's character, or the beginning of a version. A null
    `persona`, `note`, `pinned` or `members` is taken away.
    """

    title: _Title | None = None
    head_id: UUID | None = None
    prompt_version: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    persona: PersonaFields | UnsetType | None = UNSET
    note: NoteFields | UnsetType | None = UNSET
    pinned: _Pinned | UnsetType | None = UNSET
    members: _Members | UnsetType | None = UNSET


class SendMessage(SamplingFields, frozen=True, kw_only=True):
    """POST /api/conversations/{id}/messages.

    `parent_id` absent: below the head; null: a new first message. The same `turn_key` again below the
    same parent, or below the head while its own reply is there, is the same send, not a second one.
    `speaker` is the member of a group who answers.
    """

    text: Annotated[str, Meta(min_length=1)]
    parent_id: UUID | UnsetType | None = UNSET
    turn_key: UUID | None = None
    speaker: _Speaker | None = None


class Regenerate(SamplingFields, frozen=True, kw_only=True):
    """POST /api/conversations/{id}/regenerate; absent `message_id`: the head; `speaker`: the same."""

    message_id: UUID | None = None
    speaker: _Speaker | None = None


def persona_of(fields: PersonaFields | None) -> Persona | None:
    """The persona that the fields say."""
    if fields is None or fields == PersonaFields():
        return None
    return Persona(name=fields.name, text=fields.text)


def note_of(fields: NoteFields | None) -> Note | None:
    """The note that the fields say."""
    return None if fields is None else Note(text=fields.text, every=fields.every)


CREATE_CONVERSATION = msgspec.json.Decoder(CreateConversation)
CHANGE_CONVERSATION = msgspec.json.Decoder(ChangeConversation)
SEND_MESSAGE = msgspec.json.Decoder(SendMessage)
REGENERATE = msgspec.json.Decoder(Regenerate)

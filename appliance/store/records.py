"""What the ledger stores and returns. Values only; owns no connection."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from appliance.errors import InvalidRequest
from appliance.tokens import TokenIds

TITLE_CHARACTERS_MAX = 200
"""The schema's check; `Ledger.rename` and `Ledger.open` refuse more, `Ledger.append_turn` cuts."""

USER_CHARACTERS_MAX = 128
"""Of the name that a tenant has for a user; the schema's check is in bytes."""

NOTE_DIGEST = 8
"""Where in `Scene.digest` the bytes of its note begin."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Persona(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who the user is in a conversation."""

    name: str = ""
    text: str = ""


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An author's note: after the newest message of every prompt, or (`every` so many messages of the
    user) frozen before one."""

    text: str
    every: int | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A character of a group, and the version of it that the group's prompts are made with."""

    id: str
    version: str


class Scene(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user has set for a conversation; private.

    `members` are the characters of a group, in the order of their texts; none where the conversation is
    with one. `pinned` are texts that stand before the history in every prompt.
    """

    persona: Persona | None = None
    note: Note | None = None
    members: tuple[Member, ...] = ()
    pinned: tuple[str, ...] = ()

    @property
    def digest(self) -> bytes:
        """16 bytes that tell it from every other: 8 of all but the note, from `NOTE_DIGEST` on those of
        the note, so that it is known which was changed. What is not set has no part in them."""
        around = msgspec.structs.replace(self, note=None)
        return b"".join(
            hashlib.blake2b(msgspec.json.encode(part), digest_size=NOTE_DIGEST).digest()
            for part in (around, self.note)
        )


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment that a conversation was opened in, and its arm there."""

    experiment: str
    arm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A tree of messages; `head_id` is the leaf that is shown, `anchor_id` the first message still sent.

    Both are None until a turn sets them, as is `prompt_version`, the version of the character that the
    prompts are made with. `title` is empty until one is given. `trial` never changes. Times are UTC.
    """

    tenant: str
    conversation_id: UUID
    title: str
    character: str | None
    head_id: UUID | None
    anchor_id: UUID | None
    prompt_version: str | None
    created_at: datetime
    updated_at: datetime
    scene: Scene = field(default_factory=Scene)
    trial: Trial | None = None

    @property
    def cursor(self) -> Cursor:
        """The place of this conversation in the list, newest first."""
        return Cursor(updated_at=self.updated_at, conversation_id=self.conversation_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationChange:
    """What to change of a conversation; None leaves a thing as it is. A scene holds `storable` texts."""

    head_id: UUID | None = None
    title: str | None = None
    scene: Scene | None = None
    prompt_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a conversation's prompts were made with before: versions it was asked to leave, scenes
    (without their notes) that were replaced, both without duplicates.

    `is_untraceable`: there were prompts that these and the messages do not tell of.
    """

    versions: tuple[str, ...] = ()
    scenes: tuple[Scene, ...] = ()
    is_untraceable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in the list of conversations: the next page holds what is older."""

    updated_at: datetime
    conversation_id: UUID

    def __str__(self) -> str:
        """Text for a URL: microseconds since 1970 and the conversation's id."""
        return f"{(self.updated_at - _EPOCH) // timedelta(microseconds=1)}.{self.conversation_id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor whose `str` this is; raises InvalidRequest."""
        microseconds, _, conversation_id = text.partition(".")
        try:
            return cls(
                updated_at=_EPOCH + timedelta(microseconds=int(microseconds)),
                conversation_id=UUID(conversation_id),
            )
        except (ValueError, OverflowError) as error:
            raise InvalidRequest("not a place in this list", param="before") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChats:
    """Conversations of a character with recent activity that hold one version, None: no version yet.

    `tokens` is the sum of the newest prompts and replies.
    """

    version: str | None
    conversations: int
    tokens: int


class FrozenText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text that stands in prompts right before a user's message, from its turn on for ever.

    `name` is what explanations call it; `entry` the digest of the lorebook entry it was written for.
    """

    name: str
    text: str
    entry: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message; never changed once written.

    `token_ids` are those of the text alone under `tokenizer` (a fingerprint), None when unknown. The
    two counts belong to replies: the prompt's tokens and how many of them the cache held. So do the
    version of the character and the digest of the scene that the prompt was made with, None where
    that was not written down; and `anchor_id`, the first message that was in the prompt where older
    ones were cut. `lore` stands before a user's message; `speaker` is the member of a group whose
    message it is.
    """

    message_id: UUID
    parent_id: UUID | None
    role: str
    text: str
    token_ids: TokenIds | None
    tokenizer: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    prefix_hit_tokens: int | None
    created_at: datetime
    lore: tuple[FrozenText, ...] = ()
    prompt_version: str | None = None
    scene_digest: bytes | None = None
    anchor_id: UUID | None = None
    speaker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to be appended; its id is chosen by the caller, so that a stream can name it early.

    Of a reply, `ttft_ms` and `reply_ms` are how long its first text and its end took from the request on.
    """

    message_id: UUID
    role: str
    text: str
    token_ids: TokenIds | None = None
    tokenizer: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    lore: tuple[FrozenText, ...] = ()
    ttft_ms: int | None = None
    reply_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGreeting:
    """An opening of a conversation: a message of the character's before anybody has said anything; in a
    group, of the member who is its `speaker`."""

    message_id: UUID
    turn_key: UUID
    text: str
    speaker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConversation:
    """A conversation to be opened, with its greetings as siblings, the first of them shown.

    `prompt_version` is that of the character whose greetings they are, or of the arm of its `trial`; None
    without either. `user` is who talks, None: the tenant. `exposes`: the greetings are others than in the
    other arms of its `trial`. The id and the time (UTC) are chosen by the caller: opening the same one
    again changes nothing.
    """

    tenant: str
    conversation_id: UUID
    created_at: datetime
    title: str = ""
    character: str | None = None
    scene: Scene = field(default_factory=Scene)
    greetings: tuple[NewGreeting, ...] = ()
    prompt_version: str | None = None
    user: str | None = None
    trial: Trial | None = None
    exposes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTurn:
    """One turn, complete: a user's message and its reply, or a reply alone (a swipe, a greeting).

    `parent_id` is the message it continues, None for a new root. `turn_key` names the send: the same
    key under the same parent is stored once, however often it is appended. `title` is used when the
    conversation has none yet. `anchor_id` is the reply's and moves the conversation's, which None leaves;
    `speaker` is the member of a group who replies.
    `prompt_version` and `scene_digest` are what the prompt was made with: the reply keeps them, and a
    conversation without a version is pinned to this one. `exposes`: the prompt is another than in the
    other arms of the conversation's experiment.
    """

    turn_key: UUID
    tenant: str
    conversation_id: UUID
    parent_id: UUID | None
    user: NewMessage | None
    assistant: NewMessage
    title: str | None = None
    anchor_id: UUID | None = None
    prompt_version: str | None = None
    scene_digest: bytes | None = None
    speaker: str | None = None
    exposes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A turn as it stands in the database; `replayed` when an earlier append had already stored it.

    The messages of a replayed turn are those stored first: their ids may differ from the ids offered.
    """

    turn_key: UUID
    user: Message | None
    assistant: Message
    replayed: bool


def stored_turn(turn_key: UUID, messages: Sequence[Message]) -> StoredTurn | None:
    """The turn of this key whose messages these are, the user's first; None of none."""
    if not messages:
        return None
    user = messages[0] if len(messages) == 2 else None
    return StoredTurn(turn_key=turn_key, user=user, assistant=messages[-1], replayed=True)

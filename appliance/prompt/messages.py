"""Values of the prompt layer: messages that go in, the prompt that comes out. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from appliance.prompt.sources import LEADS, REPLY_HEADER, Source
from appliance.tokens import TokenIds, count

Role: TypeAlias = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")


class Zone(Enum):
    """Where in the prompt a part lies; zones come in this order."""

    STATIC = "static"
    CHARACTER = "character"
    PERSONA = "persona"
    PINNED = "pinned"
    HISTORY = "history"
    VOLATILE = "volatile"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message as a caller gives it."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMessage:
    """One message on its way into a prompt.

    `token_ids` are stored ids of exactly `content` by this tokenizer, or None. `namespace` says who may
    share its cached tokens. `name` is what errors and explanations call it, `sources` say what it
    is made of. Of messages around the history, those of `truncation_priority` 0 are in every
    prompt; of the others the highest number goes first. Messages of one `block` stay or go
    together, in the history those next to each other.
    """

    name: str
    role: Role
    zone: Zone
    content: str
    namespace: bytes
    token_ids: TokenIds | None = None
    truncation_priority: int = 0
    block: str | None = None
    sources: tuple[Source, ...] = ()

    @property
    def is_lead(self) -> bool:
        """Whether it only stands before a message of the conversation, as lore does."""
        return bool(self.sources) and all(source.kind in LEADS for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A named stretch of the prompt: a message with the format's text in front of it."""

    name: str
    zone: Zone
    role: Role
    tokens: int
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model reads.

    An engine has the first `known_tokens` of it, `token_ids` follow: those of `messages`, and at the
    end the header of the reply when it has any. `part_tokens` are their sizes. `stretches` cover all of
    the prompt from the front, parts cover `token_ids`, both without gaps. `closing` are the ids that
    the format puts after the reply in every longer prompt.
    """

    token_ids: TokenIds
    stretches: tuple[tuple[bytes, int], ...]
    messages: tuple[PromptMessage, ...]
    part_tokens: tuple[int, ...]
    closing: TokenIds
    known_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Length in tokens."""
        return self.known_tokens + count(self.token_ids)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The messages and the header of the reply, by name. Made when it is asked for: a turn of a long
        conversation does not pay for it."""
        parts = [
            Part(
                name=message.name,
                zone=message.zone,
                role=message.role,
                tokens=tokens,
                sources=message.sources,
            )
            for message, tokens in zip(self.messages, self.part_tokens, strict=False)
        ]
        for tokens in self.part_tokens[len(self.messages) :]:
            parts.append(
                Part(
                    name=REPLY_HEADER.id,
                    zone=Zone.VOLATILE,
                    role="assistant",
                    tokens=tokens,
                    sources=(REPLY_HEADER,),
                )
            )
        return tuple(parts)

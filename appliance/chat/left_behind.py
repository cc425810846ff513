"""What a turn leaves in the cache: prompt, reply as later prompts have it, what closes it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from appliance._core import Tokenizer
from appliance.prompt.messages import Part, Prompt, Zone
from appliance.prompt.sources import Source, SourceKind
from appliance.store.records import Message
from appliance.tokens import TokenIds, count

REPLY = "reply"
"""The name of the part that is the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A prompt and the reply to it. `behind` are the ids of reply and closing, none without a word."""

    prompt: Prompt
    reply: Message | None
    behind: TokenIds

    @property
    def token_ids(self) -> TokenIds:
        """All of it."""
        return self.prompt.token_ids + self.behind

    @property
    def stretches(self) -> list[tuple[bytes, int]]:
        """Whose tokens they are: the reply is its asker's."""
        *before, (namespace, tokens) = self.prompt.stretches
        return [*before, (namespace, tokens + count(self.behind))]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the prompt, and the reply."""
        if self.reply is None or not self.behind:
            return self.prompt.parts
        said = Part(
            name=REPLY,
            zone=Zone.HISTORY,
            role="assistant",
            tokens=count(self.behind),
            sources=(Source(kind=SourceKind.MESSAGE, id=str(self.reply.message_id)),),
        )
        return (*self.prompt.parts, said)


def left_behind(prompt: Prompt, reply: Message | None, tokenizer: Tokenizer) -> LeftBehind:
    """What is left when `reply` (None: none was given) has answered a whole prompt."""
    assert prompt.known_tokens == 0
    spoken = b"" if reply is None else _ids_of(reply, tokenizer)
    return LeftBehind(prompt=prompt, reply=reply, behind=spoken + prompt.closing if spoken else b"")


def _ids_of(reply: Message, tokenizer: Tokenizer) -> TokenIds:
    if not reply.text:
        return b""
    if reply.token_ids is not None and reply.tokenizer == tokenizer.fingerprint:
        return reply.token_ids
    return tokenizer.encode(reply.text)

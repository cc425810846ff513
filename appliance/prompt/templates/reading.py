"""Rendered parts as a prompt to read: string, messages, tokens and parts, as Prompt Poet's `Prompt`.

What is read cannot be changed. Tokens are those that the model gets, with its chat format around each
part. Never: a conversation's own prompt (`fit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.prompt.chat_format import roles
from appliance.prompt.chat_format.chat_format import ChatFormat, End
from appliance.prompt.chat_format.contents import encode_content
from appliance.prompt.chat_format.render import render
from appliance.prompt.templates.parts import RenderedPart
from appliance.tokens import count, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Parts in a model's chat format."""

    parts: tuple[RenderedPart, ...]
    chat_format: ChatFormat

    @property
    def string(self) -> str:
        """The contents, nothing between them."""
        return "".join(part.content for part in self.parts)

    @property
    def messages(self) -> list[dict[str, str]]:
        """Role and content of each part."""
        return [{"role": part.role, "content": part.content} for part in self.parts]

    @property
    def tokens(self) -> Sequence[int]:
        """The token ids of these parts and the header of a reply to them.

        A format that is strict about roles gets them adapted. Raises InvalidRequest without parts.
        """
        messages = [part.message(b"") for part in self.parts]
        taken = roles.adapted(messages, self.chat_format.accepts)
        return unpack(render(self.chat_format, taken, End.REPLY).token_ids)


def part_tokens(part: RenderedPart, chat_format: ChatFormat) -> int:
    """Tokens of one part, as the window counts them: its content, and what the format puts before."""
    content = encode_content(chat_format.tokenizer, part.content, b"", param=part.name)
    return count(content) + chat_format.overhead[part.role]

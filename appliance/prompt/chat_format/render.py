"""From messages to a prompt: contents encoded alone, placed between the format's own ids.

The work is one call into Rust. Never: which messages (`fit`), or what the format is (`chat_format`).
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance._core import Assembled, join_prompt
from appliance.errors import InvalidRequest
from appliance.prompt.chat_format.chat_format import ChatFormat, End
from appliance.prompt.chat_format.contents import columns, naming_the_refused
from appliance.prompt.messages import Prompt, PromptMessage
from appliance.prompt.namespace import PUBLIC


def render(chat_format: ChatFormat, messages: Sequence[PromptMessage], end: End) -> Prompt:
    """The prompt of these messages.

    Whose tokens they are, `_core.Assembled.stretches` says. Raises InvalidRequest when there are no
    messages, the format refuses their roles, a content cannot be encoded, or the last is no reply
    that could be continued.
    """
    if not messages:
        raise InvalidRequest("a prompt needs at least one message", param="messages")
    if end is End.CONTINUE and messages[-1].role != "assistant":
        raise InvalidRequest(
            "only a last message of role assistant can be continued",
            param=f"messages[{len(messages) - 1}].role",
        )
    with naming_the_refused(messages):
        assembled = None
        pieces = chat_format.pieces_for(messages)
        if pieces is not None:
            assembled = pieces.join(columns(messages), public=PUBLIC, continues=end is End.CONTINUE)
        if assembled is None:
            assembled = _placed_by_hand(chat_format, messages, end)
    return prompt_of(chat_format, messages, assembled)


def prompt_of(
    chat_format: ChatFormat, messages: Sequence[PromptMessage], assembled: Assembled
) -> Prompt:
    """The prompt that these messages were assembled to."""
    return Prompt(
        token_ids=assembled.token_ids,
        stretches=assembled.stretches,
        messages=tuple(messages),
        part_tokens=assembled.part_tokens,
        closing=chat_format.closing,
    )


def _placed_by_hand(
    chat_format: ChatFormat, messages: Sequence[PromptMessage], end: End
) -> Assembled:
    """For formats that look further than at neighbours, and to hear why a format refuses."""
    empty = frozenset(index for index, message in enumerate(messages) if not message.content)
    placement = chat_format.place([message.role for message in messages], empty, end)
    return join_prompt(
        chat_format.tokenizer,
        columns(messages),
        public=PUBLIC,
        slots=[
            (chat_format.ids(slot.before), slot.trim_left, slot.trim_right)
            for slot in placement.slots
        ],
        after=chat_format.ids(placement.after),
        continues=end is End.CONTINUE,
    )

"""From messages to a prompt: contents encoded alone, placed between the format's own ids.

Never: which messages (`truncate`), or what the format is (`chat_format`).
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import InvalidRequest
from appliance.prompt.chat_format import ChatFormat, End
from appliance.prompt.contents import encode_contents
from appliance.prompt.messages import Part, Prompt, PromptMessage, Zone
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.probe import Placement
from appliance.tokens import TokenIds, count


def render(chat_format: ChatFormat, messages: Sequence[PromptMessage], end: End) -> Prompt:
    """The prompt of these messages.

    The format's text in front of a public first message (a character) is public too; from the first
    private message on, every token belongs to the namespace of the latest private one. A prompt that
    begins with private text is private from its first token: even the format's own words would tell
    one tenant, by a hit, that another was here. Raises InvalidRequest when there are no
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
    empty = frozenset(index for index, message in enumerate(messages) if not message.content)
    placement = chat_format.place([message.role for message in messages], empty, end)
    contents = encoded(chat_format, messages, placement, end)
    chunks: list[TokenIds] = []
    parts: list[Part] = []
    stretches: list[tuple[bytes, int]] = []
    namespace = messages[0].namespace
    for message, slot, content in zip(messages, placement.slots, contents, strict=True):
        before = chat_format.ids(slot.before)
        _extend(stretches, namespace, count(before))
        if message.namespace != PUBLIC:
            namespace = message.namespace
        _extend(stretches, namespace, count(content))
        chunks += [before, content]
        tokens = count(before) + count(content)
        parts.append(Part(name=message.name, zone=message.zone, role=message.role, tokens=tokens))
    after = chat_format.ids(placement.after)
    if after:
        _extend(stretches, namespace, count(after))
        chunks.append(after)
        parts.append(
            Part(name="reply header", zone=Zone.TAIL, role="assistant", tokens=count(after))
        )
    return Prompt(
        token_ids=b"".join(chunks),
        stretches=tuple(stretches),
        parts=tuple(parts),
        closing=chat_format.closing,
    )


def encoded(
    chat_format: ChatFormat, messages: Sequence[PromptMessage], placement: Placement, end: End
) -> list[TokenIds]:
    """Ids of each content as the format places it: stored ids where they fit, else encoded alone."""
    contents: list[TokenIds | None] = []
    missing: dict[bytes, list[tuple[int, str]]] = {}
    for index, (message, slot) in enumerate(zip(messages, placement.slots, strict=True)):
        # A reply to be continued keeps its end: its last space belongs to the next word.
        goes_on = end is End.CONTINUE and index == len(messages) - 1
        text = message.content if goes_on else slot.trimmed(message.content)
        stored = message.token_ids if text == message.content else None
        contents.append(stored)
        if stored is None:
            missing.setdefault(message.namespace, []).append((index, text))
    for namespace, texts in missing.items():
        named = [(messages[index].name, text) for index, text in texts]
        found = encode_contents(chat_format.tokenizer, named, namespace)
        for (index, _), token_ids in zip(texts, found, strict=True):
            contents[index] = token_ids
    assert all(content is not None for content in contents)
    return [content for content in contents if content is not None]


def _extend(stretches: list[tuple[bytes, int]], namespace: bytes, tokens: int) -> None:
    if tokens == 0:
        return
    if stretches and stretches[-1][0] == namespace:
        tokens += stretches.pop()[1]
    stretches.append((namespace, tokens))

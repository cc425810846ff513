"""The native conversation API's shapes: conversations, messages, prompts, events as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields as fields_of
from typing import Any
from uuid import UUID

from appliance._core import Tokenizer
from appliance.chat.cache_explanation import CacheExplanation
from appliance.chat.events import Delta, Event, TurnStarted, Usage
from appliance.chat.prompt_explanation import PromptExplanation
from appliance.prompt.messages import Prompt
from appliance.server.sse import event_bytes
from appliance.store.records import Conversation, Message
from appliance.store.search import SearchPage
from appliance.tokens import head, tail, unpack


def conversation_fields(conversation: Conversation) -> dict[str, Any]:
    """One conversation without its messages; `is_cut` once a prompt of it had to leave some out."""
    persona, note = conversation.scene.persona, conversation.scene.note
    return {
        "id": conversation.conversation_id,
        "title": conversation.title,
        "character": conversation.character,
        "persona": persona and {"name": persona.name, "text": persona.text},
        "note": note and {"text": note.text, "every": note.every},
        "pinned": conversation.scene.pinned,
        "members": [member.id for member in conversation.scene.members],
        "head_id": conversation.head_id,
        "is_cut": conversation.anchor_id is not None,
        "prompt_version": conversation.prompt_version,
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
    }


def search_fields(page: SearchPage, *, is_full: bool) -> dict[str, Any]:
    """Conversations found; `complete` is false while messages are left that no search has looked at."""
    listed = [
        {
            **conversation_fields(found.conversation),
            "match": found.match
            and {
                "message_id": found.match.message_id,
                "role": found.match.role,
                "excerpt": found.match.excerpt,
            },
        }
        for found in page.found
    ]
    following = str(page.found[-1].conversation.cursor) if is_full else None
    return {"conversations": listed, "next": following, "complete": page.is_complete}


def tree_fields(conversation: Conversation, messages: Sequence[Message]) -> dict[str, Any]:
    """One conversation with all its messages, those up to the head marked."""
    shown = _path_ids(messages, conversation.head_id)
    return {
        **conversation_fields(conversation),
        "messages": [
            {**message_fields(message), "on_head_path": message.message_id in shown}
            for message in messages
        ],
    }


def message_fields(message: Message) -> dict[str, Any]:
    """One message; `usage` says how much of a reply's prompt came from the cache, `lore` is what stands
    before a user's message in prompts."""
    usage = None
    if message.prompt_tokens is not None:
        usage = {
            "prompt_tokens": message.prompt_tokens,
            "cached_tokens": message.prefix_hit_tokens or 0,
        }
    return {
        "id": message.message_id,
        "parent_id": message.parent_id,
        "role": message.role,
        "speaker": message.speaker,
        "text": message.text,
        "finish_reason": message.finish_reason,
        "usage": usage,
        "lore": [{"name": one.name, "text": one.text} for one in message.lore],
        "created_at": message.created_at,
    }


def prompt_fields(prompt: Prompt, tokenizer: Tokenizer) -> dict[str, Any]:
    """What the model read, exactly; a part's text is with what the chat format puts before it."""
    parts, start = [], 0
    for part in prompt.parts:
        token_ids = head(tail(prompt.token_ids, start), part.tokens)
        start += part.tokens
        parts.append(
            {
                "name": part.name,
                "zone": part.zone.value,
                "role": part.role,
                "tokens": part.tokens,
                "text": tokenizer.decode(token_ids),
            }
        )
    return {
        "token_ids": list(unpack(prompt.token_ids)),
        "text": tokenizer.decode(prompt.token_ids),
        "parts": parts,
    }


def explanation_fields(explanation: PromptExplanation | CacheExplanation) -> dict[str, Any]:
    """What a prompt was made of, or what is cached: `tokens`, `cached_tokens`, `parts`, `cause`, `why`,
    `detail` and `first_difference` mean the same in both."""
    cause = explanation.cause
    fields = {field.name: getattr(explanation, field.name) for field in fields_of(explanation)}
    return {**fields, "cause": cause.name, "why": cause.why, "detail": cause.detail}


def turn_events(event: Event) -> Iterator[bytes]:
    """One event of a turn, as server-sent events `turn`, `delta` and `done`."""
    if isinstance(event, TurnStarted):
        started = {
            "turn_id": event.turn_id,
            "user_message_id": event.user_message_id,
            "assistant_message_id": event.assistant_message_id,
            "prompt_tokens": event.prompt_tokens,
            "prefix_hit_tokens": event.prefix_hit_tokens,
            "messages_dropped": event.messages_dropped,
            "prompt_version": event.prompt_version,
            "speaker": event.speaker,
        }
        yield event_bytes(started, event="turn")
    elif isinstance(event, Delta):
        if event.text:
            yield event_bytes({"text": event.text}, event="delta")
    else:
        assert event.message is not None
        done = {
            "finish_reason": event.finish_reason,
            "message": message_fields(event.message),
            "usage": _usage_fields(event.usage),
            "persisted": True,
        }
        yield event_bytes(done, event="done")


def _usage_fields(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.prefix_hit_tokens,
        "new_tokens": usage.new_tokens,
    }


def _path_ids(messages: Sequence[Message], head_id: UUID | None) -> set[UUID]:
    parents = {message.message_id: message.parent_id for message in messages}
    path: set[UUID] = set()
    while head_id in parents and head_id not in path:
        assert head_id is not None
        path.add(head_id)
        head_id = parents[head_id]
    return path

"""Short ways to say turns and conversations in tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from appliance.store.ledger import Ledger
from appliance.store.records import Conversation, FinishedTurn, NewConversation, NewMessage
from appliance.tokens import pack

TENANT = "acme"


def opening(tenant: str = TENANT, **fields: Any) -> NewConversation:
    """A conversation to be opened now, with a random id."""
    given = {"conversation_id": uuid4(), "created_at": datetime.now(UTC), **fields}
    return NewConversation(tenant=tenant, **given)


async def new_conversation(ledger: Ledger, tenant: str = TENANT, **fields: Any) -> Conversation:
    """A conversation with a random id."""
    return await ledger.open(opening(tenant, **fields))


def user_message(text: str, **fields: Any) -> NewMessage:
    """A user's message with its token ids."""
    given = {"token_ids": pack([1, 2, 3]), "tokenizer": "t1", **fields}
    return NewMessage(message_id=uuid4(), role="user", text=text, **given)


def reply(text: str, **fields: Any) -> NewMessage:
    """A finished reply."""
    given = {
        "token_ids": pack([4, 5]),
        "tokenizer": "t1",
        "finish_reason": "stop",
        "prompt_tokens": 20,
        "prefix_hit_tokens": 12,
        **fields,
    }
    return NewMessage(message_id=uuid4(), role="assistant", text=text, **given)


def turn(
    conversation: Conversation, parent_id: UUID | None, said: str, answered: str, **fields: Any
) -> FinishedTurn:
    """A user's message under a parent, and its reply."""
    return FinishedTurn(
        turn_key=fields.pop("turn_key", None) or uuid4(),
        tenant=conversation.tenant,
        conversation_id=conversation.conversation_id,
        parent_id=parent_id,
        user=user_message(said),
        assistant=reply(answered),
        **fields,
    )


def swipe(conversation: Conversation, parent_id: UUID | None, answered: str) -> FinishedTurn:
    """Another reply under a user's message, or a greeting."""
    return FinishedTurn(
        turn_key=uuid4(),
        tenant=conversation.tenant,
        conversation_id=conversation.conversation_id,
        parent_id=parent_id,
        user=None,
        assistant=reply(answered),
    )


async def talk(ledger: Ledger, conversation: Conversation, turns: int) -> list[UUID]:
    """Append turns one below the other; returns the replies' ids."""
    parent_id: UUID | None = None
    ids: list[UUID] = []
    for number in range(turns):
        stored = await ledger.append_turn(turn(conversation, parent_id, f"q{number}", f"a{number}"))
        parent_id = stored.assistant.message_id
        ids.append(parent_id)
    return ids

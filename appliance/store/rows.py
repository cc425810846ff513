"""Between values and rows: parameters of the ledger's queries, and what their columns mean.

Pure functions; never talks to a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from appliance.store.records import (
    TITLE_CHARACTERS_MAX,
    Conversation,
    FinishedTurn,
    FrozenText,
    Message,
    NewConversation,
    NewMessage,
    Past,
    Scene,
    StoredTurn,
    Trial,
)
from appliance.store.text import storable

_SCENE = msgspec.json.Decoder(Scene)
_LORE = msgspec.json.Decoder(tuple[FrozenText, ...])


def append_arguments(turn: FinishedTurn, at: datetime | None = None) -> tuple[object, ...]:
    """The parameters of the query `append_turn`, in its order; `at` is when a journalled turn ended."""
    title = None if turn.title is None else storable(turn.title)[:TITLE_CHARACTERS_MAX]
    user, reply = turn.user, turn.assistant
    return (
        *(turn.tenant, turn.conversation_id, turn.turn_key, turn.parent_id, title, turn.anchor_id),
        *((None,) * 5 if user is None else _columns(user)),
        *_columns(reply),
        *(reply.finish_reason, reply.prompt_tokens, reply.prefix_hit_tokens),
        turn.prompt_version,
        None if user is None else _lore_json(user.lore),
        turn.scene_digest,
        at,
        turn.speaker,
        *(turn.exposes, reply.ttft_ms, reply.reply_ms),
    )


def open_arguments(opened: NewConversation) -> tuple[object, ...]:
    """The parameters of the query `open_conversation`, in its order."""
    greetings = opened.greetings
    return (
        *(opened.tenant, opened.conversation_id, storable(opened.title), opened.character),
        *(scene_column(opened.scene), opened.created_at, opened.prompt_version),
        [greeting.turn_key for greeting in greetings],
        [greeting.message_id for greeting in greetings],
        [storable(greeting.text) for greeting in greetings],
        [greeting.speaker for greeting in greetings],
        opened.user,
        *((None, None) if opened.trial is None else (opened.trial.experiment, opened.trial.arm)),
        opened.exposes,
    )


def opened_conversation(opened: NewConversation) -> Conversation:
    """What opening it for the first time stores."""
    return Conversation(
        tenant=opened.tenant,
        conversation_id=opened.conversation_id,
        title=storable(opened.title),
        character=opened.character,
        head_id=opened.greetings[0].message_id if opened.greetings else None,
        anchor_id=None,
        prompt_version=opened.prompt_version,
        scene=opened.scene,
        trial=opened.trial,
        created_at=opened.created_at,
        updated_at=opened.created_at,
    )


def opened_messages(opened: NewConversation) -> tuple[Message, ...]:
    """The greetings as `open_conversation` stores them."""
    return tuple(
        Message(
            message_id=greeting.message_id,
            parent_id=None,
            role="assistant",
            text=storable(greeting.text),
            token_ids=None,
            tokenizer=None,
            finish_reason="stop",
            prompt_tokens=None,
            prefix_hit_tokens=None,
            created_at=opened.created_at + timedelta(microseconds=place),
            speaker=greeting.speaker,
        )
        for place, greeting in enumerate(opened.greetings, 1)
    )


def _columns(message: NewMessage) -> tuple[object, ...]:
    return (
        *(message.message_id, message.role, storable(message.text)),
        *(message.token_ids, message.tokenizer),
    )


def _lore_json(lore: Sequence[FrozenText]) -> str | None:
    """The column `lore`: null where there is none."""
    return msgspec.json.encode(lore).decode() if lore else None


def _read_lore(column: str | None) -> tuple[FrozenText, ...]:
    return () if column is None else _LORE.decode(column)


def appended_turn(turn: FinishedTurn, created_at: datetime) -> StoredTurn:
    """What a first append stored: the turn offered, with the database's time."""
    user = None if turn.user is None else _written(turn.user, turn.parent_id, created_at)
    parent_id = turn.parent_id if user is None else user.message_id
    assistant = replace(
        _written(turn.assistant, parent_id, created_at),
        prompt_version=turn.prompt_version,
        scene_digest=turn.scene_digest,
        anchor_id=turn.anchor_id,
        speaker=turn.speaker,
    )
    return StoredTurn(turn_key=turn.turn_key, user=user, assistant=assistant, replayed=False)


def _written(message: NewMessage, parent_id: UUID | None, created_at: datetime) -> Message:
    return Message(
        message_id=message.message_id,
        parent_id=parent_id,
        role=message.role,
        text=storable(message.text),
        token_ids=message.token_ids,
        tokenizer=message.tokenizer,
        finish_reason=message.finish_reason,
        prompt_tokens=message.prompt_tokens,
        prefix_hit_tokens=message.prefix_hit_tokens,
        created_at=created_at,
        lore=message.lore,
    )


def read_messages(rows: Iterable[asyncpg.Record]) -> tuple[Message, ...]:
    """Rows of the message columns as values."""
    return tuple(read_message(row) for row in rows)


def read_message(row: asyncpg.Record) -> Message:
    """A row of the message columns as a value."""
    return Message(
        message_id=row["message_id"],
        parent_id=row["parent_id"],
        role=row["role"],
        text=row["text"],
        token_ids=row["token_ids"],
        tokenizer=row["tokenizer"],
        finish_reason=row["finish_reason"],
        prompt_tokens=row["prompt_tokens"],
        prefix_hit_tokens=row["prefix_hit_tokens"],
        created_at=row["created_at"],
        lore=_read_lore(row["lore"]),
        prompt_version=row["prompt_version"],
        scene_digest=row["scene_digest"],
        anchor_id=row["anchor_id"],
        speaker=row["speaker"],
    )


def scene_column(scene: Scene) -> str | None:
    """The column `scene`: null where nothing is set."""
    return None if scene == Scene() else msgspec.json.encode(scene).decode()


def _read_scene(column: str | None) -> Scene:
    return Scene() if column is None else _SCENE.decode(column)


def _read_trial(experiment: str | None, arm: str | None) -> Trial | None:
    if experiment is None or arm is None:
        return None
    return Trial(experiment=experiment, arm=arm)


def read_past(row: asyncpg.Record) -> Past:
    """A row of the query `past` as a value."""
    return Past(
        versions=tuple(version for version in row["versions"] if version),
        scenes=tuple(_read_scene(scene) for scene in row["scenes"]),
        is_untraceable=row["is_untraceable"],
    )


def read_conversation(row: asyncpg.Record) -> Conversation:
    """A row of the conversation columns as a value."""
    return Conversation(
        tenant=row["tenant"],
        conversation_id=row["conversation_id"],
        title=row["title"],
        character=row["character_id"],
        head_id=row["head_id"],
        anchor_id=row["anchor_id"],
        prompt_version=row["prompt_version"],
        scene=_read_scene(row["scene"]),
        trial=_read_trial(row["experiment"], row["arm"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )

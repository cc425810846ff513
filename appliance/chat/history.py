"""From a stored path to the messages of a prompt. Pure; never reads the ledger or encodes a text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast
from uuid import UUID

from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.chat_format.roles import JOINER
from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import PUBLIC, tenant_namespace
from appliance.prompt.sources import Source, SourceKind
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.store.records import Conversation, FrozenText, Message, NewMessage

AUTO_TITLE_WORDS_MAX = 8
AUTO_TITLE_CHARS_MAX = 60


def spoken(path: Sequence[Message]) -> tuple[Message, ...]:
    """The messages that say something: a reply stopped before its first word is not in prompts."""
    return tuple(message for message in path if message.role != "assistant" or message.text)


def beginning_of(conversation: Conversation) -> Beginning:
    """What the conversation was begun with: its macros are the same in each of its turns."""
    return Beginning(seed=conversation.conversation_id.bytes, started=conversation.created_at)


def prompt_messages(
    path: Sequence[Message], *, tenant: str, greetings: Collection[str], model: ModelText
) -> list[PromptMessage]:
    """The messages of a `spoken` path, root first, each with the lore before it.

    Stored ids are used when the model's tokenizer made them. An opening that is one of `greetings`, the
    character's for everybody, is public.
    """
    namespace = tenant_namespace(tenant)
    tokenizer, takes_leads = model.tokenizer.fingerprint, model.chat_format.takes_leads
    result = []
    for index, message in enumerate(path):
        is_greeting = (
            message.parent_id is None and message.role == "assistant" and message.text in greetings
        )
        made = PromptMessage(
            name=f"message {index + 1}",
            role=cast(Role, message.role),
            zone=Zone.CHARACTER if is_greeting else Zone.HISTORY,
            content=message.text,
            namespace=PUBLIC if is_greeting else namespace,
            token_ids=message.token_ids if message.tokenizer == tokenizer else None,
            sources=(_said_by(message),),
        )
        result += with_lore(made, message.lore, takes_leads=takes_leads)
    return result


def new_message(user: NewMessage, tenant: str, model: ModelText) -> list[PromptMessage]:
    """A message on its way, with the lore before it."""
    made = PromptMessage(
        name="new message",
        role="user",
        zone=Zone.HISTORY,
        content=user.text,
        namespace=tenant_namespace(tenant),
        token_ids=user.token_ids,
        sources=(_said_by(user),),
    )
    return with_lore(made, user.lore, takes_leads=model.chat_format.takes_leads)


def with_lore(
    message: PromptMessage, lore: Sequence[FrozenText], *, takes_leads: bool
) -> list[PromptMessage]:
    """A message behind its lore: one system text, or the begin of the message itself where the format
    takes no system text between messages."""
    if not lore:
        return [message]
    text = JOINER.join(one.text for one in lore)
    of = next((source.id for source in message.sources), None)
    sources = tuple(
        Source(kind=SourceKind.NOTE, id=one.name, of=of)
        if one.entry is None
        else Source(kind=SourceKind.LORE, id=one.entry, of=of)
        for one in lore
    )
    if not takes_leads:
        joined = text + JOINER + message.content
        return [replace(message, content=joined, token_ids=None, sources=sources + message.sources)]
    lead = PromptMessage(
        name=_name_of(lore),
        role="system",
        zone=Zone.HISTORY,
        content=text,
        namespace=message.namespace,
        sources=sources,
    )
    return [lead, message]


def _name_of(lore: Sequence[FrozenText]) -> str:
    """Entries of lorebooks are called lore; a note, and who speaks next, by their own names."""
    entries = ", ".join(one.name for one in lore if one.entry is not None)
    others = [one.name for one in lore if one.entry is None]
    return ", ".join([f"lore: {entries}", *others] if entries else others)


def _said_by(message: Message | NewMessage) -> Source:
    return Source(kind=SourceKind.MESSAGE, id=str(message.message_id))


def anchor_of(path: Sequence[Message], kept: int) -> UUID | None:
    """The first message still sent, index `kept` of the spoken ones, when others are before it."""
    said = spoken(path)
    return said[kept].message_id if 0 < kept < len(said) else None


def foreign(path: Sequence[Message], tokenizer: str) -> frozenset[UUID]:
    """The messages of a path that another tokenizer wrote."""
    return frozenset(
        message.message_id
        for message in path
        if message.token_ids is not None and message.tokenizer != tokenizer
    )


def title_of(text: str) -> str:
    """A conversation's title: the first words of its first message."""
    words = text.split()
    title = " ".join(words[:AUTO_TITLE_WORDS_MAX])
    if len(title) > AUTO_TITLE_CHARS_MAX:
        title = title[: AUTO_TITLE_CHARS_MAX - 1].rstrip()
    return title + "…" if len(title) < len(" ".join(words)) else title

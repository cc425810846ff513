"""Where the prompts of a conversation begin: what must go from the cache so that nothing of it is found.

Owns which texts can have been the first that are its own. Never: drops anything (`cache_view`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec

from appliance.chat.catalog import Catalog
from appliance.chat.history import prompt_messages
from appliance.chat.lorekeeper import Lorekeeper
from appliance.chat.scene import macros_of, rendered_for, shared_greetings, user_of
from appliance.chat.speakers import NEXT_SPEAKER, staged
from appliance.errors import InvalidCard, InvalidRequest, NotFound, TemplateError
from appliance.prompt.cast import Cast
from appliance.prompt.chat_format.contents import with_ids
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.fit import fit, forms_of_front
from appliance.prompt.lore.placement import Placement
from appliance.prompt.messages import Prompt, PromptMessage, Zone
from appliance.prompt.namespace import PUBLIC, tenant_namespace
from appliance.prompt.truncate import Window
from appliance.store.ledger import TREE_MESSAGES_MAX, Ledger
from appliance.store.records import Conversation, Message, Scene
from appliance.tokens import count, head
from appliance.wire.frames import PathFrom

log = logging.getLogger("appliance.chat")

FRONTS_MAX = 128
"""Versions times scenes that are rendered."""

ENTRIES_MAX = 64
"""Entries of books that stand anew in every prompt, each of which may have been the first text."""

_UNCUT = Window(limit=1 << 30, reserve=0, step=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What prompts of one version and scene are made of, before any of their messages."""

    conversation: Conversation
    cast: Cast
    front: tuple[PromptMessage, ...]


async def prompt_starts(
    ledger: Ledger, catalog: Catalog, model: ModelText, conversation: Conversation
) -> tuple[PathFrom, ...] | None:
    """Paths of which one begins every prompt that this conversation can have had, each up to the first
    token of its own. None where that cannot be said: then only all that is the tenant's is all of it.

    Raises StorageUnavailable.
    """
    key = (conversation.tenant, conversation.conversation_id)
    past = await ledger.past(*key)
    messages = await ledger.messages(*key)
    if past.is_untraceable or len(messages) >= TREE_MESSAGES_MAX:
        return None
    versions = {conversation.prompt_version, *past.versions}
    scenes = set(map(_without_note, (conversation.scene, *past.scenes)))
    if len(versions) * len(scenes) > FRONTS_MAX:
        return None
    openings = _openings(messages, is_cut=conversation.anchor_id is not None)
    found: dict[tuple[bytes, int], PathFrom] = {}
    try:
        for version, scene in product(versions, scenes):
            held = replace(conversation, prompt_version=version, scene=scene)
            cast = await catalog.cast(held)
            rendered = await rendered_for(held, cast)
            namespace = tenant_namespace(held.tenant)
            front = tuple(part.message(namespace) for part in rendered.before)
            made = _Made(conversation=held, cast=cast, front=front)
            greetings = await shared_greetings(held, cast, _behind_greeting(openings))
            starts = await asyncio.to_thread(_starts, made, openings, greetings, model)
            if starts is None:
                return None
            found |= {(start.token_ids, start.from_token): start for start in starts}
    except (TemplateError, InvalidCard, InvalidRequest, NotFound) as error:
        # A version that this program cannot use any more, a text that the vocabulary cannot write.
        log.warning("purge_widened", extra={"reason": error.message})
        return None
    return tuple(found.values())


def _without_note(scene: Scene) -> Scene:
    """A note stands in messages, or behind them."""
    return msgspec.structs.replace(scene, note=None)


def _openings(messages: Sequence[Message], *, is_cut: bool) -> list[tuple[Message, ...]]:
    """The messages of a user that may stand first in a prompt, alone or behind a greeting.

    In a conversation that was never cut, those that nothing but a greeting is before; else each may.
    """
    by_id = {message.message_id: message for message in messages}
    found: list[tuple[Message, ...]] = []
    for message in messages:
        if message.role != "user":
            continue
        before = by_id.get(message.parent_id) if message.parent_id is not None else None
        if is_cut or message.parent_id is None:
            found.append((message,))
        if before is not None and before.parent_id is None and before.role == "assistant":
            # A reply that was stopped before its first word is in no prompt.
            found.append((before, message) if before.text else (message,))
    return found


def _behind_greeting(openings: Sequence[tuple[Message, ...]]) -> tuple[Message, ...]:
    return next((path for path in openings if len(path) > 1), ())


def _starts(
    made: _Made,
    openings: Sequence[tuple[Message, ...]],
    greetings: frozenset[str],
    model: ModelText,
) -> list[PathFrom] | None:
    """The starts with one front in all of its forms; None for lore of too many entries."""
    lore = _lore(made, model)
    if lore is None:
        return None
    starts: list[PathFrom] = []
    for front in forms_of_front(made.front):
        own = [_with_own_ids(part, model) for part in front]
        has_own = any(part.namespace != PUBLIC for part in own)
        for number, path in enumerate(openings):
            for history in _histories(made, path, greetings, model):
                starts.append(_start(model, own, history))
                # What stands before the messages begins every prompt alike, whatever they are.
                for entry in lore if number == 0 else ():
                    as_system = replace(entry, role="system")
                    starts.append(_start(model, [as_system, *own], history))
                    starts.append(_start(model, [*own, as_system], history))
                    starts.append(_start(model, own, [entry, *history]))
            if has_own:
                break
    return starts


def _histories(
    made: _Made, path: tuple[Message, ...], greetings: frozenset[str], model: ModelText
) -> Iterator[list[PromptMessage]]:
    """The messages of a path as prompts may have had them: in a group, for each who may have answered."""
    conversation, cast = made.conversation, made.cast
    speakers = [None, *(member.character.id for member in cast.members)]
    for speaker in speakers:
        said = staged(path, cast, name=user_of(conversation.scene), speaker=speaker)
        messages = prompt_messages(
            said, tenant=conversation.tenant, greetings=greetings, model=model
        )
        yield [_with_own_ids(message, model) for message in messages]


def _lore(made: _Made, model: ModelText) -> list[PromptMessage] | None:
    """The entries that stand anew in each prompt, in any place."""
    if made.cast.lore.placement is not Placement.AS_WRITTEN:
        return []
    entries = [
        entry
        for book in made.cast.lore.books
        for entry in book.book.entries
        if entry.enabled and entry.content
    ]
    if len(entries) > ENTRIES_MAX:
        return None
    namespace = tenant_namespace(made.conversation.tenant)
    keeper = Lorekeeper(
        lore=made.cast.lore,
        tokenizer=model.tokenizer,
        note=None,
        macros=macros_of(made.conversation, made.cast),
        namespace=namespace,
        room_tokens=0,
    )
    return [
        _with_own_ids(
            PromptMessage(
                name=f"lore: {entry.name}",
                role=entry.decorators.role or "system",
                zone=Zone.HISTORY,
                content=keeper.written(entry),
                namespace=namespace,
            ),
            model,
        )
        for entry in entries
    ]


def _with_own_ids(message: PromptMessage, model: ModelText) -> PromptMessage:
    """Where the text's own tokens are known, a start is told from the format's text before it, which is
    the same in many conversations."""
    return message if message.namespace == PUBLIC else with_ids(model.tokenizer, message)


def _start(
    model: ModelText, front: Sequence[PromptMessage], history: Sequence[PromptMessage]
) -> PathFrom:
    prompt = fit(model.chat_format, front, history, _UNCUT).prompt
    at = first_private(prompt)
    stretches: list[tuple[bytes, int]] = []
    left = at + 1
    for namespace, tokens in prompt.stretches:
        if left > 0:
            stretches.append((namespace, min(tokens, left)))
        left -= tokens
    return PathFrom(token_ids=head(prompt.token_ids, at + 1), stretches=stretches, from_token=at)


def first_private(prompt: Prompt) -> int:
    """The position of the first token that only the tenant may share, of its text and not of the
    format's text in front."""
    public = 0
    for namespace, tokens in prompt.stretches:
        if namespace != PUBLIC:
            break
        public += tokens
    # The first private text may be a persona or lore, before what the user said. Where its own tokens are
    # not known apart, as of a part of a template, it goes from its part's first token on.
    # Who answers in a group is the tenant's too, but says nothing of its own.
    private = (
        at
        for at, said in enumerate(prompt.messages)
        if said.namespace != PUBLIC and said.name != NEXT_SPEAKER
    )
    own, at = public, next(private, None)
    if at is not None:
        own = sum(prompt.part_tokens[:at])
        if (ids := prompt.messages[at].token_ids) is not None:
            own = sum(prompt.part_tokens[: at + 1]) - count(ids)
    return max(public, min(own, prompt.tokens - 1))

"""What an edit of a character does to chats that go on: where the prefix changes, who pays, how much.

Compares the token ids of both versions, by the model's own tokenizer and chat format, and counts live
chats in the ledger. Never: a message's text, or a change.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from appliance.chat.catalog import Catalog
from appliance.chat.scene import scene_values, user_of
from appliance.errors import InvalidRequest
from appliance.prompt import roles
from appliance.prompt.bundle import Bundle
from appliance.prompt.bundle_diff import unified
from appliance.prompt.characters import DEFAULT_CHARACTER, CharacterVersion
from appliance.prompt.chat_format import End
from appliance.prompt.messages import Prompt, PromptMessage, Role, Zone
from appliance.prompt.model_text import ModelText
from appliance.prompt.namespace import PUBLIC, tenant_namespace
from appliance.prompt.render import render
from appliance.prompt.templates.lint import SAMPLE
from appliance.store.ledger import Ledger
from appliance.store.prompt_records import PRODUCTION
from appliance.store.records import Scene
from appliance.tokens import unpack

_SOMEBODY = tenant_namespace("sample")
_MESSAGE = "Hello."
_NOTHING_SET = Scene()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The first token that is another one in a prompt made with the new version.

    `part` is what it is in, `zone` that part's.
    """

    position: int
    part: str
    zone: Zone


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDiff:
    """An edit and its price.

    `change` is None when both make the same prompts. `tokens_before` and `tokens_after` are those of
    the text around a conversation. `live` conversations of the last `days` hold the version before;
    `tokens_to_recompute` is what they cost together when they move. `elsewhere` hold another version.
    """

    name: str
    before: str
    after: str
    text: str
    change: Change | None
    tokens_before: int
    tokens_after: int
    days: float
    live: int
    tokens_to_recompute: int
    elsewhere: int


async def prompt_diff(
    ledger: Ledger,
    catalog: Catalog,
    model: ModelText,
    before: Bundle,
    after: Bundle,
    *,
    days: float,
) -> PromptDiff:
    """Compare two bundles of one character.

    Raises InvalidBundle and TemplateError for one that makes no prompt, InvalidRequest for two
    characters, StorageUnavailable.
    """
    same_character(before, after)
    old, new = await asyncio.gather(
        *(asyncio.to_thread(CharacterVersion.of, bundle) for bundle in (before, after))
    )
    change, tokens_before, tokens_after = await asyncio.to_thread(_compared, model, old, new)
    since = datetime.now(UTC) - timedelta(days=days)
    found = await ledger.live_chats(before.name, since, default=DEFAULT_CHARACTER)
    production = {at.name: at.version for at in await catalog.registry.labelled(PRODUCTION)}
    live = tokens = elsewhere = 0
    for chats in found:
        # A conversation from before there were versions is one of `production`.
        if (chats.version or production.get(before.name)) == old.version:
            live, tokens = live + chats.conversations, tokens + chats.tokens
        else:
            elsewhere += chats.conversations
    cost = 0
    if change is not None and change.zone is not Zone.VOLATILE:
        longer = tokens_after - tokens_before
        cost = max(tokens + live * (longer - change.position), 0)
    return PromptDiff(
        name=before.name,
        before=old.version,
        after=new.version,
        text=await asyncio.to_thread(unified, before, after),
        change=change,
        tokens_before=tokens_before,
        tokens_after=tokens_after,
        days=days,
        live=live,
        tokens_to_recompute=cost,
        elsewhere=elsewhere,
    )


def same_character(before: Bundle, after: Bundle) -> None:
    """Raise InvalidRequest when two bundles are of two characters."""
    if before.name != after.name:
        raise InvalidRequest(
            f"A is a version of {before.name}, B one of {after.name}: name two of one character"
        )


def _compared(
    model: ModelText, old: CharacterVersion, new: CharacterVersion
) -> tuple[Change | None, int, int]:
    """(change, tokens before, tokens after), with sample values and one short message.

    A conversation keeps the greeting that it began with, whatever greeting the new version has.
    """
    greeting = next((opening.text for opening in old.greetings(SAMPLE)), "")
    first, second = (_sample(model, version, greeting) for version in (old, new))
    return _first_change(first, second), first.tokens, second.tokens


def _sample(model: ModelText, version: CharacterVersion, greeting: str) -> Prompt:
    rendered = version.render(SAMPLE, user=user_of(_NOTHING_SET), inputs=scene_values(_NOTHING_SET))
    shared = {opening.text for opening in version.greetings(SAMPLE) if opening.is_same_for_all}
    history = [_said("new message", "user", _MESSAGE, _SOMEBODY)]
    if greeting:
        owner = PUBLIC if greeting in shared else _SOMEBODY
        history.insert(0, _said("greeting", "assistant", greeting, owner))
    front = [part.message(_SOMEBODY) for part in rendered.before]
    after = [part.message(_SOMEBODY) for part in rendered.after]
    messages = roles.adapted([*front, *history, *after], model.chat_format.accepts)
    return render(model.chat_format, messages, End.REPLY)


def _said(name: str, role: Role, content: str, namespace: bytes) -> PromptMessage:
    return PromptMessage(
        name=name, role=role, zone=Zone.HISTORY, content=content, namespace=namespace
    )


def _first_change(old: Prompt, new: Prompt) -> Change | None:
    """Whose token it is counts as much as which: another owner's is not found in the cache."""
    first, second = _owned(old), _owned(new)
    pairs = enumerate(zip(first, second, strict=False))
    position = next((at for at, (a, b) in pairs if a != b), None)
    if position is None:
        if len(first) == len(second):
            return None
        position = min(len(first), len(second))
    longer = new if len(second) > position else old
    for end, part in zip(accumulate(longer.part_tokens), longer.parts, strict=True):
        if position < end:
            return Change(position=position, part=part.name, zone=part.zone)
    raise AssertionError("parts cover all of a prompt")


def _owned(prompt: Prompt) -> list[tuple[int, bytes]]:
    owners = [owner for owner, tokens in prompt.stretches for _ in range(tokens)]
    return list(zip(unpack(prompt.token_ids), owners, strict=True))

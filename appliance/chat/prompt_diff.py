"""What an edit of a character does to chats that go on: where the prefix changes, who pays, how much.

Compares prompts of both versions, by the model's own tokenizer and chat format: of conversations made for
it, and of live chats of the ledger. Never: a message's text, or a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from appliance.chat.edit_samples import (
    ENTRIES_MAX,
    Sample,
    changed_entries,
    samples,
    somebody_else,
)
from appliance.chat.hearing import Hearing
from appliance.chat.left_behind import left_behind
from appliance.chat.other_version import OtherVersion, same_character
from appliance.chat.prompt_builder import BuiltPrompt, PromptBuilder
from appliance.chat.prompt_change import Change, first_change
from appliance.chat.scene import reason_of
from appliance.chat.stored_paths import StoredPaths, ends_with_reply
from appliance.errors import ContextLengthExceeded, TemplateError
from appliance.prompt.bundle import Bundle
from appliance.prompt.bundle_diff import unified
from appliance.prompt.characters import DEFAULT_CHARACTER, CharacterVersion
from appliance.prompt.lore.lorebook import LoreEntry
from appliance.prompt.messages import Prompt
from appliance.prompt.sources import SourceKind
from appliance.prompt.templates.inputs import Scope
from appliance.store.prompt_records import PRODUCTION
from appliance.store.records import Conversation
from appliance.tokens import count

LIVE_MAX = 64
"""Live chats whose own prompts are compared, those that changed last."""

NAMED_MAX = 5
"""Entries and parts that are named where something is said of several."""

_NEW = UUID(int=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledChange:
    """A change, and in which conversations it is: `where` "" for all."""

    where: str
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCost:
    """What an edit does to live chats of the version before.

    Of `chats` the own prompts of `compared` were: `cold` of all compute `tokens` together when they move,
    the newest messages of `refused` do not fit any more, and no prompt can be made of `failed`, of one
    because of `failure`; where not all were compared, as the others are. `groups` have the version among
    their members, and keep it.
    """

    chats: int
    compared: int
    cold: int
    tokens: int
    refused: int
    failed: int
    failure: str
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDiff:
    """An edit and its price.

    `changes` are what it changes in the conversations it was tried on, each in the plainest that shows
    it, of `tried` ones; `is_certain`: where there are none, there are none in any conversation. `untold`
    says what could not be tried. `tokens_before` and `tokens_after` are those of the plainest one. Live
    chats are those of the last `days`; `elsewhere` hold another version.
    """

    name: str
    before: str
    after: str
    text: str
    changes: tuple[SampledChange, ...]
    tried: int
    is_certain: bool
    untold: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    days: float
    live: LiveCost
    elsewhere: int


async def prompt_diff(
    paths: StoredPaths, builder: PromptBuilder, before: Bundle, after: Bundle, *, days: float
) -> PromptDiff:
    """Compare two bundles of one character.

    Raises InvalidBundle and TemplateError for one that makes no prompt, InvalidRequest for two
    characters, ContextLengthExceeded for one that leaves no room for a message, EngineUnavailable while
    the context's size is unknown, StorageUnavailable.
    """
    same_character(before, after)
    other = await asyncio.to_thread(somebody_else, before.name)
    versions = await asyncio.gather(
        *(asyncio.to_thread(CharacterVersion.of, bundle) for bundle in (before, after))
    )
    old, new = (OtherVersion.of(version, builder, beside=(other,)) for version in versions)
    tried = _Tried(old=old, new=new)
    for sample in samples(old.version, new.version, other):
        await tried.with_sample(sample)
    live, elsewhere = await _live(paths, old, new, days=days)
    return PromptDiff(
        name=before.name,
        before=old.version.version,
        after=new.version.version,
        text=await asyncio.to_thread(unified, before, after),
        changes=tuple(tried.changes),
        tried=tried.count,
        is_certain=old.version.makes_the_same_as(new.version),
        untold=tried.untold(),
        tokens_before=tried.tokens[0],
        tokens_after=tried.tokens[1],
        days=days,
        live=live,
        elsewhere=elsewhere,
    )


@dataclass(slots=True, kw_only=True)
class _Tried:
    """What came of the samples so far."""

    old: OtherVersion
    new: OtherVersion
    changes: list[SampledChange] = field(default_factory=list)
    count: int = 0
    tokens: tuple[int, int] = (0, 0)
    called: set[LoreEntry] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    too_long: list[str] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)

    async def with_sample(self, sample: Sample) -> None:
        """Both prompts of one more conversation; raises ContextLengthExceeded or TemplateError where the
        plainest does not fit or cannot be made."""
        try:
            first, second = [await _built(one, sample) for one in (self.old, self.new)]
        except ContextLengthExceeded:
            if not self.count:
                raise
            self.too_long.append(sample.where)
            return
        except TemplateError as error:
            if not self.count:
                raise TemplateError(reason_of(error)) from error
            self.failing.append(f"a prompt {sample.where} cannot be made: {reason_of(error)}")
            return
        if not self.count:
            self.tokens = (first.prompt.tokens, second.prompt.tokens)
        self.count += 1
        if sample.speaker is None:
            self.parts |= {part.name for one in (first, second) for part in one.rendered.parts}
        if sample.entry is not None and any(
            _calls(one.prompt, sample.entry) for one in (first, second)
        ):
            self.called.add(sample.entry)
        change = first_change(first.prompt, second.prompt, brought_by=_NEW)
        known = {(one.change.part, one.change.zone) for one in self.changes}
        if change is not None and (change.part, change.zone) not in known:
            self.changes.append(SampledChange(where=sample.where, change=change))

    def untold(self) -> tuple[str, ...]:
        """What no sample has shown."""
        old, new = self.old.version, self.new.version
        if old.makes_the_same_as(new):
            return ()
        entries = changed_entries(old.lore, new.lore)
        silent = [entry.name for entry in entries[:ENTRIES_MAX] if entry not in self.called]
        silent = list(dict.fromkeys(silent))
        # What the files alone decide is decided: a part that no conversation writes is no secret.
        edited = (old, new) if old.template.version != new.template.version else ()
        parts = [
            part
            for one in edited
            for part in one.template.parts
            if part.scope is not Scope.CHARACTER and not any(map(part.writes, self.parts))
        ]
        unwritten = list(dict.fromkeys(part.name for part in parts))
        said = [f"prompts {where} do not fit" for where in dict.fromkeys(self.too_long)]
        said += dict.fromkeys(self.failing)
        if silent:
            said.append(f"nothing that was tried calls up lore {_named(silent)}")
        if len(entries) > ENTRIES_MAX:
            said.append(f"{len(entries) - ENTRIES_MAX} more lore entries were not called up")
        if unwritten:
            said.append(f"nothing that was tried writes part {_named(unwritten)}")
        return tuple(said)


def _named(names: Sequence[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in names[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{listed} and {more} more" if more > 0 else listed


async def _built(under: OtherVersion, sample: Sample) -> BuiltPrompt:
    held = under.holding(sample.conversation)
    keeper = await under.builder.keeper(held, sample.path)
    hearing = Hearing(builder=under.builder, new_id=lambda: _NEW)
    heard = await hearing.hear(held, keeper, keeper.recalled(sample.path), sample.text)
    return await under.builder.build(held, sample.path, heard.user, speaker=sample.speaker)


def _calls(prompt: Prompt, entry: LoreEntry) -> bool:
    return any(
        source.kind is SourceKind.LORE and source.id == entry.digest
        for message in prompt.messages
        for source in message.sources
    )


async def _live(
    paths: StoredPaths, old: OtherVersion, new: OtherVersion, *, days: float
) -> tuple[LiveCost, int]:
    """(what live chats pay, how many hold another version)."""
    ledger, name, version = paths.ledger, old.version.character.id, old.version.version
    since = datetime.now(UTC) - timedelta(days=days)
    production = {at.name: at.version for at in await paths.catalog.registry.labelled(PRODUCTION)}
    # A conversation from before there were versions is one of `production`.
    is_production = production.get(name) == version
    held = elsewhere = 0
    for chats in await ledger.live_chats(name, since, default=DEFAULT_CHARACTER):
        if (chats.version or production.get(name)) == version:
            held += chats.conversations
        else:
            elsewhere += chats.conversations
    newest = await ledger.live_of_version(
        name,
        since,
        version=version,
        or_none_yet=is_production,
        limit=LIVE_MAX,
        default=DEFAULT_CHARACTER,
    )
    compared = [await _recomputed(paths, old, new, conversation) for conversation in newest]
    costs = [cost for cost in compared if isinstance(cost, int) and cost]
    failures = [reason_of(error) for error in compared if isinstance(error, TemplateError)]
    share = held / len(compared) if compared else 0.0
    live = LiveCost(
        chats=held,
        compared=len(compared),
        cold=round(share * len(costs)),
        tokens=round(share * sum(costs)),
        refused=round(share * sum(isinstance(one, ContextLengthExceeded) for one in compared)),
        failed=round(share * len(failures)),
        failure=failures[0] if failures else "",
        groups=await ledger.live_groups(name, since, version=version),
    )
    return live, elsewhere


async def _recomputed(
    paths: StoredPaths, old: OtherVersion, new: OtherVersion, conversation: Conversation
) -> int | ContextLengthExceeded | TemplateError:
    """How many tokens of its newest turn a chat computes again when it moves, or why there is no prompt.
    Frozen lore stays as it was stored."""
    assert conversation.head_id is not None
    path = await paths.to_leaf(conversation, conversation.head_id)
    reply = path[-1] if ends_with_reply(path) else None
    said = path if reply is None else path[:-1]
    speaker = None if reply is None else reply.speaker
    prompts = []
    for one in (old, new):
        try:
            held = one.holding(conversation)
            prompts.append((await one.builder.build(held, said, speaker=speaker)).prompt)
        except (ContextLengthExceeded, TemplateError) as error:
            return error
    change = first_change(*prompts)
    if change is None or not change.goes_cold:
        return 0
    left = left_behind(prompts[1], reply, new.builder.model.tokenizer)
    return count(left.token_ids) - change.position

"""What the parts around the history were made of in the latest turns, so that a change has a name.

A cache of this process, of digests alone: without an entry a change is seen but not named. Never: the
texts, or the ledger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from appliance.chat.running import Key
from appliance.prompt.messages import Zone
from appliance.prompt.templates.parts import Rendered, digest_of

CONVERSATIONS_MAX = 16_384
TURNS_MAX = 64
"""Turns remembered of each; turns with one front share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDigest:
    """One part: its text's digest, and the variables that it was made with."""

    name: str
    zone: Zone
    text: bytes
    variables: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The parts around the history of one prompt. `version` is that of the character's files."""

    version: str
    tokenizer: str
    parts: tuple[PartDigest, ...]
    variables: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontChange:
    """The first part that differs, and why: `cause` is one of the causes of `prompt_explanation`."""

    part: str
    cause: str
    detail: str


def front_of(rendered: Rendered, *, version: str, tokenizer: str) -> Front:
    """The digests of rendered parts."""
    return Front(
        version=version,
        tokenizer=tokenizer,
        parts=tuple(
            PartDigest(
                name=part.name,
                zone=part.zone,
                text=digest_of(part.content),
                variables=part.variables,
            )
            for part in rendered.parts
        ),
        variables=rendered.variables,
    )


def change(before: Front, now: Front) -> FrontChange | None:
    """What broke the prefix between two prompts before their histories; None when nothing did."""
    if before.tokenizer != now.tokenizer:
        return FrontChange(part="", cause="tokenizer", detail="the model has another tokenizer")
    for index, part in enumerate(now.parts):
        old = before.parts[index] if index < len(before.parts) else None
        if old is not None and (old.name, old.text) == (part.name, part.text):
            continue
        names = sorted(
            name for name in part.variables if before.variables.get(name) != now.variables.get(name)
        )
        if before.version != now.version:
            detail = f"{before.version[:12]} became {now.version[:12]}"
            return FrontChange(part=part.name, cause="character version", detail=detail)
        if part.zone is Zone.PERSONA:
            return FrontChange(part=part.name, cause="persona", detail=", ".join(names))
        return FrontChange(part=part.name, cause="template variable", detail=", ".join(names))
    if len(before.parts) > len(now.parts):
        gone = before.parts[len(now.parts)].name
        return FrontChange(part=gone, cause="character version", detail="a part is gone")
    return None


@dataclass(slots=True, kw_only=True)
class Fronts:
    """The fronts of the latest turns of each conversation, those used least recently forgotten first."""

    conversations_max: int = CONVERSATIONS_MAX
    _known: OrderedDict[Key, OrderedDict[UUID, Front]] = field(default_factory=OrderedDict)

    def get(self, key: Key, reply_id: UUID) -> Front | None:
        """The front of the prompt that this reply answered."""
        turns = self._known.get(key)
        return None if turns is None else turns.get(reply_id)

    def put(self, key: Key, *, reply_id: UUID, parent_id: UUID | None, front: Front | None) -> None:
        """A turn is stored. Without a front it went on from the turn that `parent_id` ends."""
        turns = self._known.pop(key, OrderedDict())
        latest = next(reversed(turns.values()), None)
        if front is None:
            front = None if parent_id is None else turns.get(parent_id)
        elif latest == front:
            front = latest
        if front is not None:
            turns[reply_id] = front
            if len(turns) > TURNS_MAX:
                turns.popitem(last=False)
        if turns:
            self._known[key] = turns
            if len(self._known) > self.conversations_max:
                self._known.popitem(last=False)

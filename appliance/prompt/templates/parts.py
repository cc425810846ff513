"""What a template is rendered to: parts with zone, scope, text, and who may share them. Values only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.sources import Source, SourceKind
from appliance.prompt.templates.inputs import NOTE_INPUT, PERSONA_INPUTS, PINNED_INPUT, Scope
from appliance.prompt.truncate import HISTORY_PRIORITY


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedSection:
    """A named stretch of a part's content."""

    name: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPart:
    """One part with the conversation's values in it.

    `truncation_priority` is Prompt Poet's: 0 is never dropped, the highest number goes first. `scope`
    is the widest of the variables that the part depends on. Parts of one `block` are dropped together.
    `variables` are the names that it was made with.
    """

    name: str
    role: Role
    content: str
    truncation_priority: int
    zone: Zone
    scope: Scope
    sections: tuple[RenderedSection, ...] = ()
    block: str | None = None
    variables: frozenset[str] = frozenset()

    def message(self, namespace: bytes) -> PromptMessage:
        """The part as a message: public when it holds the operator's text alone, else `namespace`."""
        return PromptMessage(
            name=self.name,
            role=self.role,
            zone=self.zone,
            content=self.content,
            namespace=PUBLIC if self.scope is Scope.CHARACTER else namespace,
            truncation_priority=self.truncation_priority,
            block=self.block,
            sources=(Source(kind=self._kind(), id=self.name),),
        )

    def _kind(self) -> SourceKind:
        if not self.variables:
            return SourceKind.PART
        if self.variables <= PERSONA_INPUTS:
            return SourceKind.PERSONA
        if self.variables == {PINNED_INPUT}:
            return SourceKind.PINNED
        return SourceKind.NOTE if self.variables == {NOTE_INPUT} else SourceKind.PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The parts before the conversation's messages, and those after them.

    `history_priority` is the truncation priority of the messages' turns, `variables` the digests of the
    values that the template was given.
    """

    before: tuple[RenderedPart, ...]
    after: tuple[RenderedPart, ...]
    history_priority: int = HISTORY_PRIORITY
    variables: Mapping[str, bytes] = field(default_factory=dict)

    def private(self) -> Rendered:
        """The same parts with none of them public: what they say belongs to one conversation."""
        return replace(
            self,
            before=tuple(_private(part) for part in self.before),
            after=tuple(_private(part) for part in self.after),
        )

    @property
    def parts(self) -> tuple[RenderedPart, ...]:
        """All parts in order; the conversation's messages are not among them."""
        return self.before + self.after


def digest_of(value: object) -> bytes:
    """A digest that tells whether a value is another one. Of data its `repr` tells that."""
    text = value if isinstance(value, str) else repr(value)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _private(part: RenderedPart) -> RenderedPart:
    return replace(part, scope=max(part.scope, Scope.CONVERSATION))

"""What a template is rendered to: parts with zone, scope, text, and who may share them. Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.templates.inputs import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedSection:
    """A named stretch of a part's content."""

    name: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPart:
    """One part with the conversation's values in it.

    `truncation_priority` is Prompt Poet's: 0 is never dropped, the highest number goes first. `scope`
    is the widest of the variables that the part depends on.
    """

    name: str
    role: Role
    content: str
    truncation_priority: int
    zone: Zone
    scope: Scope
    sections: tuple[RenderedSection, ...] = ()

    def message(self, namespace: bytes) -> PromptMessage:
        """The part as a message: public when it holds the operator's text alone, else `namespace`."""
        return PromptMessage(
            name=self.name,
            role=self.role,
            zone=self.zone,
            content=self.content,
            namespace=PUBLIC if self.scope is Scope.CHARACTER else namespace,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The parts before the conversation's messages, and those after them."""

    before: tuple[RenderedPart, ...]
    after: tuple[RenderedPart, ...]

    def private(self) -> Rendered:
        """The same parts with none of them public: what they say belongs to one conversation."""
        return Rendered(
            before=tuple(_private(part) for part in self.before),
            after=tuple(_private(part) for part in self.after),
        )

    @property
    def parts(self) -> tuple[RenderedPart, ...]:
        """All parts in order; the conversation's messages are not among them."""
        return self.before + self.after


def _private(part: RenderedPart) -> RenderedPart:
    return replace(part, scope=max(part.scope, Scope.CONVERSATION))

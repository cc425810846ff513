"""The parts of a prompt as explanations show them: what each is, its tokens, and how many are cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.prompt.messages import Part, Role, Zone
from appliance.prompt.sources import SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShare:
    """One part. `cached` of its tokens were found, None where that is not known.

    `source` is what it is; `message_id` the message that it is, or that it was written down for.
    """

    name: str
    source: SourceKind
    message_id: str | None
    role: Role
    zone: Zone
    tokens: int
    cached: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBreak:
    """Where a prompt leaves what it could begin with.

    `position` in tokens; `before` is the text right before it, `asked` what the prompt has there, `found`
    what stands there instead: None where that is nobody's, or not the tenant's own.
    """

    position: int
    part: str
    source: SourceKind
    message_id: str | None
    role: Role
    zone: Zone
    before: str | None
    asked: str | None
    found: str | None


def source_of(part: Part) -> SourceKind:
    """What a part is: of one that a strict format joined, what it says last."""
    return part.sources[-1].kind if part.sources else SourceKind.FORMAT


def message_ids(part: Part) -> frozenset[str]:
    """The messages that a part is, or was written down for."""
    found = {
        source.id if source.kind is SourceKind.MESSAGE else source.of for source in part.sources
    }
    return frozenset(name for name in found if name is not None)


def message_id(part: Part) -> str | None:
    """The last of them."""
    ids = [s.id if s.kind is SourceKind.MESSAGE else s.of for s in part.sources]
    return next((name for name in reversed(ids) if name is not None), None)


def part_at(parts: Sequence[Part], position: int) -> Part:
    """The part that holds the token at `position`; the last one for a position behind all."""
    end = 0
    for part in parts:
        end += part.tokens
        if position < end:
            return part
    return parts[-1]


def shares(parts: Sequence[Part], hit_tokens: int | None) -> tuple[PartShare, ...]:
    """The parts when the first `hit_tokens` tokens are cached; None: that is not known."""
    found, start = [], 0
    for part in parts:
        cached = None if hit_tokens is None else min(max(hit_tokens - start, 0), part.tokens)
        found.append(
            PartShare(
                name=part.name,
                source=source_of(part),
                message_id=message_id(part),
                role=part.role,
                zone=part.zone,
                tokens=part.tokens,
                cached=cached,
            )
        )
        start += part.tokens
    return tuple(found)


def broken_at(
    parts: Sequence[Part],
    position: int,
    *,
    before: str | None,
    asked: str | None,
    found: str | None,
) -> PrefixBreak:
    """The break at `position` of these parts."""
    part = part_at(parts, position)
    return PrefixBreak(
        position=position,
        part=part.name,
        source=source_of(part),
        message_id=message_id(part),
        role=part.role,
        zone=part.zone,
        before=before,
        asked=asked,
        found=found,
    )

"""Why a turn found no more in the cache: from what is stored with two turns, and their prompts. Pure.

What was written down when a turn ran counts before what both prompts show when they are built again, and
where a prompt cannot be built as it was sent, nothing is concluded from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.chat.left_behind import LeftBehind
from appliance.chat.part_shares import message_ids, part_at, source_of
from appliance.chat.prefix_causes import Cause
from appliance.chat.reply import REPLACEMENT
from appliance.chat.reply_prompts import ReplyPrompt
from appliance.prompt.messages import Part, Zone
from appliance.prompt.sources import Source, SourceKind
from appliance.prompt.templates.inputs import NOTE_INPUT, PERSONA_INPUTS, PINNED_INPUT
from appliance.store.records import NOTE_DIGEST, Member
from appliance.tokens import count

AROUND = frozenset(
    {
        SourceKind.PART,
        SourceKind.PERSONA,
        SourceKind.NOTE,
        SourceKind.PINNED,
        SourceKind.LORE,
    }
)
"""What stands around the messages of a conversation; lore and notes that have no message of theirs."""

CHARACTER_INPUT = "character"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBefore:
    """The turn that was stored before, what it left, and how much of that the next prompt begins with."""

    prompt: ReplyPrompt
    left: LeftBehind
    shared_tokens: int

    @property
    def left_tokens(self) -> int:
        """All that it left."""
        return count(self.left.token_ids)


def cause_of(now: ReplyPrompt, before: TurnBefore | None) -> Cause:
    """The first cause that there is evidence for."""
    if before is None:
        return Cause(name="first turn")
    written = _written_down(now, before.prompt)
    if written is not None:
        return written
    asked, shared = now.prompt.tokens, before.shared_tokens
    hit = now.reply.prefix_hit_tokens or 0
    # Of a prompt that is cached whole, the last token is computed.
    if hit < min(shared, asked - 1):
        return _missed(now, before, hit)
    if shared >= before.left_tokens or shared >= asked:
        return Cause(name="goes on")
    return _differs(now, before)


def _written_down(now: ReplyPrompt, before: ReplyPrompt) -> Cause | None:
    """What the two turns' records tell alone."""
    mine, theirs = now.reply, before.reply
    if _differ(mine.tokenizer, theirs.tokenizer):
        return Cause(name="tokenizer")
    if now.is_as_sent and before.is_as_sent:
        return None
    moved = _moved(now, before)
    if moved is not None and _differ(mine.prompt_version, theirs.prompt_version):
        return Cause(name="character version", detail=moved)
    if _differ(mine.scene_digest, theirs.scene_digest):
        around = [(one.scene_digest or b"")[:NOTE_DIGEST] for one in (mine, theirs)]
        return Cause(name="note" if around[0] == around[1] else "scene")
    return Cause(name="changed since")


def _differ(first: str | bytes | None, second: str | bytes | None) -> bool:
    """Whether both were written down, and are not the same."""
    return first is not None and second is not None and first != second


def _missed(now: ReplyPrompt, before: TurnBefore, hit: int) -> Cause:
    """It was all there when the turn before ended, and less was found."""
    parts, replies = now.prompt.parts, {str(m.message_id): m.text for m in now.path[:-1]}
    part = part_at(parts, hit)
    lost = f"{min(before.shared_tokens, now.prompt.tokens - 1) - hit} tokens, from {part.name} on"
    said = [replies.get(name, "") for name in message_ids(part)]
    if part.role == "assistant" and any(REPLACEMENT in text for text in said):
        return Cause(name="broken character", detail=part.name)
    reply_end = before.left_tokens - count(before.left.prompt.closing)
    if before.left.behind and reply_end - 1 <= hit:
        return Cause(name="stopped reply", detail=lost)
    if hit == 0:
        return Cause(name="cold", detail=lost)
    return Cause(name="evicted", detail=lost)


def _differs(now: ReplyPrompt, before: TurnBefore) -> Cause:
    """Both prompts are known, and differ at the first token that they do not share."""
    mine = part_at(now.prompt.parts, before.shared_tokens)
    theirs = part_at(before.left.parts, before.shared_tokens)
    if theirs.zone is Zone.VOLATILE and _is_around(theirs) and mine.sources != theirs.sources:
        return Cause(name="volatile text", detail=theirs.name)
    cut = _cut(now, before.prompt, mine, theirs)
    if cut is not None:
        return Cause(name="cut", detail=cut)
    around = _changed_around(now, before, mine, theirs)
    if around is not None:
        return around
    return _said_otherwise(now, mine, theirs)


def _is_around(part: Part) -> bool:
    return source_of(part) in AROUND and not message_ids(part)


def _cut(now: ReplyPrompt, before: ReplyPrompt, mine: Part, theirs: Part) -> str | None:
    """What is cut that was not, or the other way round, if that is what meets here."""
    fitted, old = now.built.fitted, before.built.fitted
    gone = [out for out in fitted.left_out if out not in old.left_out]
    back = [out for out in old.left_out if out not in fitted.left_out]
    meets = (
        _is_missing(theirs, now)
        or _is_missing(mine, before)
        or theirs.name in [out.name for out in gone if _is_around(theirs)]
        or mine.name in [out.name for out in back if _is_around(mine)]
    )
    if not meets:
        return None
    moved = fitted.messages_dropped - old.messages_dropped
    said = []
    if moved:
        noun = "message is" if abs(moved) == 1 else "messages are"
        said.append(f"{abs(moved)} {noun} left out {'more' if moved > 0 else 'less'}")
    said += [f"{out.name} is left out" for out in gone]
    said += [f"{out.name} is back" for out in back]
    return ", ".join(said)


def _is_missing(part: Part, prompt: ReplyPrompt) -> bool:
    """Whether a part is a message of a prompt's path that was cut out of that prompt."""
    on_path = {str(message.message_id) for message in prompt.path}
    there = frozenset[str]().union(*(message_ids(one) for one in prompt.prompt.parts))
    return bool(message_ids(part) & on_path - there - {str(prompt.reply.message_id)})


def _changed_around(now: ReplyPrompt, before: TurnBefore, mine: Part, theirs: Part) -> Cause | None:
    """A part around the messages has another text, or came or went."""
    changed = None
    if (mine.sources == theirs.sources and _is_around(mine)) or (
        _is_around(mine) and not _holds(before.prompt.prompt.parts, mine.sources)
    ):
        changed = mine
    elif _is_around(theirs) and not _holds(now.prompt.parts, theirs.sources):
        changed = theirs
    if changed is None:
        return None
    moved = _moved(now, before.prompt)
    if moved is not None:
        return Cause(name="character version", detail=f"{changed.name}, {moved}")
    if source_of(changed) is SourceKind.LORE:
        return Cause(name="lore", detail=changed.name)
    return _of_variables(now, before.prompt, changed)


def _of_variables(now: ReplyPrompt, before: ReplyPrompt, part: Part) -> Cause:
    """What a part was made with has another value. Of one version, what a character says changes with the
    name of its user alone."""
    values = now.built.rendered.variables, before.built.rendered.variables
    used: set[str] = set()
    for rendered in (now.built.rendered, before.built.rendered):
        used |= {name for one in rendered.parts if one.name == part.name for name in one.variables}
    names = sorted(name for name in used if values[0].get(name) != values[1].get(name))
    detail = ", ".join(dict.fromkeys([part.name, *names]))
    if CHARACTER_INPUT in names and _members(now) != _members(before):
        return Cause(name="members", detail=detail)
    if set(names) & (PERSONA_INPUTS | {CHARACTER_INPUT}):
        return Cause(name="persona", detail=detail)
    alone = names[0] if len(names) == 1 else ""
    named = {NOTE_INPUT: "note", PINNED_INPUT: "pinned text"}
    return Cause(name=named.get(alone, "template variable"), detail=detail)


def _members(turn: ReplyPrompt) -> tuple[Member, ...]:
    return turn.conversation.scene.members


def _said_otherwise(now: ReplyPrompt, mine: Part, theirs: Part) -> Cause:
    """Messages that differ, or the same one written in another way."""
    ids = message_ids(mine)
    said = [message for message in now.path[:-1] if str(message.message_id) in ids]
    if not said or ids & message_ids(theirs):
        return Cause(name="chat format", detail=mine.name)
    # Lore stands before the message that called it up, and comes and goes with it.
    named = next((one.name for one in now.prompt.parts if _is_message(one.sources, ids)), mine.name)
    is_users = said[-1].role == "user"
    return Cause(name="edited message" if is_users else "other reply", detail=named)


def _is_message(sources: Iterable[Source], ids: frozenset[str]) -> bool:
    return any(one.kind is SourceKind.MESSAGE and one.id in ids for one in sources)


def _holds(parts: Iterable[Part], sources: tuple[Source, ...]) -> bool:
    return any(part.sources == sources for part in parts)


def _moved(now: ReplyPrompt, before: ReplyPrompt) -> str | None:
    """From which version to which, None where they are the same."""
    old, new = before.conversation.prompt_version, now.conversation.prompt_version
    if old == new or old is None or new is None:
        return None
    return f"{old[:12]} became {new[:12]}"

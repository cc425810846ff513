"""Who speaks in a group, and how a prompt says it: a line before each message of the user.

The line names who answers, and is written by the reply that stands behind it: it is the same in every
later prompt, and a reply of another member to the same message changes nothing before it. Pure. Never:
what a member is told about itself (`prompt.groups`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from appliance.errors import InvalidRequest
from appliance.prompt.cast import Cast
from appliance.prompt.characters import CharacterVersion
from appliance.store.records import FrozenText, Message, NewMessage
from appliance.store.text import storable

NEXT_SPEAKER = "next speaker"
"""The name of the line."""

_UNSPACED = (
    "\u0e00-\u109f\u1780-\u17ff\u2e80-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, kana, Chinese characters and their forms: no space shows where a
word ends."""

_SPACED = rf"[^\W{_UNSPACED}]"
"""A letter or digit of a script with spaces between words."""


def speaker_for(
    cast: Cast, text: str, *, asked: str | None, before: str | None, own: str | None = None
) -> str | None:
    """The id of the member who answers `text`; None outside of groups.

    The one who is `asked`; else (for another reply to a message) the one whose `own` the reply is; else
    the first whose name the text holds as a word; else the one after the speaker `before`. Raises
    InvalidRequest for one who is not there.
    """
    if not cast.members:
        if asked is not None:
            raise InvalidRequest("this conversation is with one character", param="speaker")
        return None
    ids = [member.character.id for member in cast.members]
    if asked is not None:
        if asked not in ids:
            raise InvalidRequest(
                f"{asked!r} is not here (there are: {', '.join(ids)})", param="speaker"
            )
        return asked
    if own in ids:
        return own
    named = _named(cast, text)
    if named is not None:
        return named
    return ids[(ids.index(before) + 1) % len(ids)] if before in ids else ids[0]


def _named(group: Cast, text: str) -> str | None:
    """The member whose name stands first in a text: the whole name in any case, or a word of it as it is
    written ("the" does not call The Keeper). Of names that begin alike the longer one is meant."""
    text, found = unicodedata.normalize("NFC", text), []
    for place, member in enumerate(group.members):
        called = unicodedata.normalize("NFC", member.called)
        words = [_alone(re.escape(word), word) for word in called.split() if len(word) > 2]
        whole = _alone(f"(?i:{re.escape(called)})", called)
        match = re.search("|".join([whole, *words]), text)
        if match is not None:
            found.append((match.start(), -len(match[0]), place, member.character.id))
    return min(found)[3] if found else None


def _alone(pattern: str, name: str) -> str:
    """A pattern for a name that is no part of a longer word, in scripts with spaces between words."""
    before = "" if re.match(f"[{_UNSPACED}]", name[0]) else f"(?<!{_SPACED})"
    after = "" if re.match(f"[{_UNSPACED}]", name[-1]) else f"(?!{_SPACED})"
    return f"{before}{pattern}{after}"


def last_speaker(path: Sequence[Message]) -> str | None:
    """Who spoke last."""
    return next((m.speaker for m in reversed(path) if m.speaker is not None), None)


def led(user: NewMessage, cast: Cast, *, name: str, speaker: str | None) -> NewMessage:
    """A new message as prompts have it: behind the line that says who answers."""
    line = _line(cast, name, speaker)
    return user if line is None else replace(user, lore=(*user.lore, line))


def staged(
    path: Sequence[Message], cast: Cast, *, name: str, speaker: str | None
) -> tuple[Message, ...]:
    """A path as prompts have it: each message of the user behind the line that says who answers it, an
    opening behind who speaks it. `speaker` answers the last message; `name` is the user's."""
    if not cast.members:
        return tuple(path)
    result = []
    for index, message in enumerate(path):
        line = None
        if message.role == "user":
            answer = path[index + 1].speaker if index + 1 < len(path) else speaker
            line = _line(cast, name, answer)
        elif message.parent_id is None:
            member = _member(cast, message.speaker)
            if member is not None:
                line = FrozenText(name=NEXT_SPEAKER, text=f"{storable(member.called)} speaks.")
        result.append(message if line is None else replace(message, lore=(*message.lore, line)))
    return tuple(result)


def _member(cast: Cast, character_id: str | None) -> CharacterVersion | None:
    return next((one for one in cast.members if one.character.id == character_id), None)


def _line(cast: Cast, name: str, speaker: str | None) -> FrozenText | None:
    member = _member(cast, speaker)
    if member is None:
        return None
    text = f"{name} speaks. {storable(member.called)} answers."
    return FrozenText(name=NEXT_SPEAKER, text=text)

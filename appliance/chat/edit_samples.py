"""Conversations that nobody has, for trying an edit: each thing that a prompt reads is set in some.

Owns what is tried, and how a lorebook's entry is called up. Pure. Never: builds a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import UUID

from appliance.chat.lore import NOTE
from appliance.prompt.bundle import CHARACTER_FILE, Bundle
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.lore.books import Lore
from appliance.prompt.lore.lorebook import LoreEntry
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.store.records import Conversation, Member, Message, Note, Persona, Scene

DRAWS = 8
"""Conversations with draws and dates of their own."""

ENTRIES_MAX = 64
"""Entries that are called up, one by one."""

REPLIES_MAX = 16
"""Replies before the message that calls up an entry which waits for some."""

TEXT_CHARS_MAX = 4_000

TENANT = "sample"
_BEGUN = datetime(2024, 1, 3, 9, 30, tzinfo=UTC)
_HELLO = "Hello."
_NAME = Persona(name="Tom")
_TEXT = Persona(text="A sailor who is afraid of the sea.")
_NOTE = Note(text="Let it rain.")
_PINNED = ("It rains.", "The lamp is broken.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A conversation and a new message in it. `where` says what is set in it, "" for nothing; `entry` is
    what the message is to call up, `speaker` who answers it in a group."""

    where: str
    conversation: Conversation
    path: tuple[Message, ...] = ()
    text: str = _HELLO
    entry: LoreEntry | None = None
    speaker: str | None = None


def somebody_else(name: str) -> CharacterVersion:
    """Another character, to be in a group with."""
    own = "somebody" if name != "somebody" else "somebody-else"
    text = f"id: {own}\nname: Ben\nsystem: You are Ben.\npost_history: Be brief.\n"
    return CharacterVersion.of(Bundle(name=own, files={CHARACTER_FILE: text.encode()}))


def samples(
    old: CharacterVersion, new: CharacterVersion, other: CharacterVersion
) -> Iterator[Sample]:
    """What an edit from `old` to `new` is tried on, the plainest first; `other` is who else may be there.

    A conversation keeps the greeting that it began with, whatever greeting the new version has.
    """
    name = old.character.id
    scenes = sorted(product((False, True), repeat=4), key=sum)
    for chosen in scenes:
        yield _plain(old, _with(chosen), _scene(*chosen))
    yield _plain(old, f"with an {NOTE} every message", Scene(note=Note(text="Rain.", every=1)))
    for number in range(1, DRAWS):
        for scene in (Scene(), _scene(*scenes[-1])):
            yield _plain(old, "with other draws", scene, number=number)
    members = tuple(Member(id=one.character.id, version=one.version) for one in (old, other))
    for speaker in (name, other.character.id):
        for persona in (None, _NAME):
            scene = Scene(members=members, persona=persona)
            yield replace(_plain(old, "in a group", scene), speaker=speaker)
    entries = changed_entries(old.lore, new.lore)
    for entry in entries[:ENTRIES_MAX]:
        for number in range(DRAWS if entry.probability < 100 else 1):
            yield _calling(old, entry, number)
    if len(entries) > 1:
        texts = " ".join(filter(None, map(_key_text, entries)))[:TEXT_CHARS_MAX]
        yield replace(_plain(old, "where several lore entries are called up"), text=texts or _HELLO)


def changed_entries(old: Lore, new: Lore) -> tuple[LoreEntry, ...]:
    """The entries whose texts an edit may bring, take away or move."""
    books = [[book.book for book in lore.books] for lore in (old, new)]
    before, after = ([entry for book in one for entry in book.entries] for one in books)
    if (books[0], old.placement) == (books[1], new.placement):
        return ()
    known, later = set(before), set(after)
    differing = [entry for entry in before if entry not in later]
    differing += [entry for entry in after if entry not in known]
    settings = [[replace(book, entries=()) for book in one] for one in books]
    if not differing or settings[0] != settings[1] or old.placement is not new.placement:
        # What holds for a whole book, and the order, may move any of them.
        differing = list(dict.fromkeys([*before, *after]))
    return tuple(entry for entry in differing if entry.enabled and entry.content)


def _plain(
    version: CharacterVersion, where: str, scene: Scene | None = None, *, number: int = 0
) -> Sample:
    return Sample(
        where=where,
        conversation=_conversation(version, scene or Scene(), number),
        path=_path(version, number, replies=1),
    )


def _conversation(version: CharacterVersion, scene: Scene, number: int) -> Conversation:
    begun = _begun(number)
    return Conversation(
        tenant=TENANT,
        conversation_id=_id_of(number),
        title="",
        character=version.character.id,
        head_id=None,
        anchor_id=None,
        prompt_version=version.version,
        created_at=begun,
        updated_at=begun,
        scene=scene,
    )


def _path(
    version: CharacterVersion, number: int, *, replies: int, greeting: int = 0
) -> tuple[Message, ...]:
    """The opening and so many replies: of a text before the messages it is known whether it is new."""
    beginning = Beginning(seed=_id_of(number).bytes, started=_begun(number))
    greetings = version.greetings(beginning)
    said = [("assistant", greetings[greeting].text)] if greeting < len(greetings) else []
    while sum(role == "assistant" for role, _ in said) < replies or len(said) < 2:
        said += [("user", _HELLO), ("assistant", _HELLO)]
    messages: list[Message] = []
    for index, (role, text) in enumerate(said):
        messages.append(
            Message(
                message_id=UUID(int=1000 + index),
                parent_id=messages[-1].message_id if messages else None,
                role=role,
                text=text,
                token_ids=None,
                tokenizer=None,
                finish_reason=None,
                prompt_tokens=None,
                prefix_hit_tokens=None,
                created_at=_begun(number),
            )
        )
    return tuple(messages)


def _id_of(number: int) -> UUID:
    return UUID(int=number + 1)


def _begun(number: int) -> datetime:
    """Another month, day, hour and minute each."""
    return _BEGUN + timedelta(days=37 * number, hours=5 * number, minutes=7 * number)


def _calling(version: CharacterVersion, entry: LoreEntry, number: int) -> Sample:
    said = entry.decorators
    replies, every = said.activate_only_after or 0, said.activate_only_every or 1
    replies = min(-(-max(replies, 1) // every) * every, REPLIES_MAX)
    return Sample(
        where=f"where lore `{entry.name}` is called up",
        conversation=_conversation(version, Scene(), number),
        path=_path(version, number, replies=replies, greeting=said.is_greeting or 0),
        text=_key_text(entry) or _HELLO,
        entry=entry,
    )


def _key_text(entry: LoreEntry) -> str:
    """A text that calls an entry up. Of a regular expression its own text is tried."""
    keys = [*entry.keys[:1], *(entry.secondary_keys[:1] if entry.selective else ())]
    keys += [group[0] for group in entry.decorators.additional_keys]
    return " ".join(keys)


def _scene(has_name: bool, has_persona: bool, has_note: bool, has_pinned: bool) -> Scene:
    persona = Persona(name=_NAME.name if has_name else "", text=_TEXT.text if has_persona else "")
    return Scene(
        persona=persona if has_name or has_persona else None,
        note=_NOTE if has_note else None,
        pinned=_PINNED if has_pinned else (),
    )


def _with(chosen: Sequence[bool]) -> str:
    words = ("a user's name", "a persona", f"an {NOTE}", "pinned texts")
    named = [word for word, is_set in zip(words, chosen, strict=True) if is_set]
    return f"with {' and '.join(named)}" if named else ""

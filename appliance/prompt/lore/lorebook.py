"""A lorebook as a value: the fields of V2's `character_book` and V3's `lorebook_v3`, read with limits.

Owns the entries and their defaults. Never: which of them is active (`activation`), or how a key is found
in a text (`matching`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from appliance.prompt.lore.decorators import Decorators, Role, split
from appliance.prompt.lore.fields import JsonObject, refusal

ENTRIES_MAX = 10_000
KEYS_MAX = 256
"""Of one entry, and as many secondary ones."""

KEY_BYTES_MAX = 1_000
CONTENT_BYTES_MAX = 64 * 1024
BOOK_BYTES_MAX = 8 * 1024 * 1024
"""Keys and contents of one book together."""

NAME_BYTES_MAX = 1_000
SCAN_DEPTH_DEFAULT = 2
"""Messages: the new one and the reply before it."""

SCAN_DEPTH_MAX = 64
TOKEN_BUDGET_MAX = 1_000_000

_DEPTH_POSITION = 4
"""`extensions.position` of an entry that stands within the messages."""

_ROLES: tuple[Role, ...] = ("system", "user", "assistant")
"""By the numbers of `extensions.role`."""

Position: TypeAlias = Literal["before_char", "after_char"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoreEntry:
    """One text and what calls it up. Its `content` is without decorators; an empty one says nothing.

    `insertion_order`: the lower comes first. `priority`: the lowest goes first when the budget is full;
    None: by `insertion_order`. `secondary_keys` count when `selective` is set. `probability` is in
    percent. `digest` names the entry by what it says and its keys: it stays when others are moved.
    """

    name: str
    digest: str
    keys: tuple[str, ...]
    secondary_keys: tuple[str, ...] = ()
    content: str
    selective: bool = False
    constant: bool = False
    enabled: bool = True
    insertion_order: float = 0.0
    priority: float | None = None
    position: Position = "after_char"
    case_sensitive: bool = False
    whole_words: bool = False
    use_regex: bool = False
    probability: float = 100.0
    decorators: Decorators = field(default_factory=Decorators)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lorebook:
    """Entries in the order of their file. `scan_depth` is in messages, the newest included;
    `token_budget` None leaves it to the appliance."""

    name: str = ""
    entries: tuple[LoreEntry, ...]
    scan_depth: int = SCAN_DEPTH_DEFAULT
    token_budget: int | None = None
    recursive_scanning: bool = False


def read_lorebook(value: Any, *, path: str = "character_book") -> Lorebook | None:
    """The book of a card's JSON, or of a file of its own (`lorebook_v3`); None for null or "".

    Raises InvalidRequest naming entry, field and limit. Unknown fields are passed over.
    """
    if value is None or value == "":
        return None
    book = JsonObject.of(value, path)
    if book.members.get("spec") == "lorebook_v3" and "data" in book.members:
        book = JsonObject.of(book.members["data"], f"{path}.data")
    listed = book.members.get("entries")
    if isinstance(listed, Mapping):
        listed = list(listed.values())
    if listed is None or listed == "":
        listed = []
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise book.fault("entries", "expected a list of entries")
    if len(listed) > ENTRIES_MAX:
        raise book.fault("entries", f"at most {ENTRIES_MAX} entries, here are {len(listed)}")
    entries = tuple(
        _entry(item, f"{book.path}.entries[{index}]", index) for index, item in enumerate(listed)
    )
    size = sum(_bytes_of(entry) for entry in entries)
    if size > BOOK_BYTES_MAX:
        raise book.fault("entries", f"at most {BOOK_BYTES_MAX} bytes in all, these are {size}")
    return Lorebook(
        name=book.text("name", bytes_max=NAME_BYTES_MAX),
        entries=entries,
        scan_depth=_whole(book, "scan_depth", SCAN_DEPTH_MAX, SCAN_DEPTH_DEFAULT),
        token_budget=_budget(book),
        recursive_scanning=book.flag("recursive_scanning") or False,
    )


def _entry(value: Any, path: str, index: int) -> LoreEntry:
    title = _title(value)
    given = JsonObject.of(value, path, title=title)
    more = given.inner("extensions")
    decorators, content = split(given.text("content", bytes_max=CONTENT_BYTES_MAX))
    keys = given.texts("keys", items_max=KEYS_MAX, bytes_max=KEY_BYTES_MAX)
    secondary = given.texts("secondary_keys", items_max=KEYS_MAX, bytes_max=KEY_BYTES_MAX)
    for key in (
        *decorators.exclude_keys,
        *(k for group in decorators.additional_keys for k in group),
    ):
        if len(key.encode()) > KEY_BYTES_MAX:
            raise refusal(path, title, f"content: a key has at most {KEY_BYTES_MAX} bytes")
    order = given.number("insertion_order")
    case_sensitive = given.flag("case_sensitive")
    if case_sensitive is None:
        case_sensitive = more.flag("case_sensitive") or False
    return LoreEntry(
        name=title or (keys[0] if keys else f"entry {index + 1}"),
        digest=_digest(keys, content),
        keys=keys,
        secondary_keys=secondary,
        content=content,
        selective=given.flag("selective") or False,
        constant=given.flag("constant") or False,
        enabled=given.flag("enabled") is not False,
        insertion_order=0.0 if order is None else order,
        priority=given.number("priority"),
        position="before_char" if given.members.get("position") == "before_char" else "after_char",
        case_sensitive=case_sensitive,
        whole_words=more.flag("match_whole_words") or False,
        use_regex=given.flag("use_regex") or False,
        probability=_probability(more),
        decorators=_placed(decorators, more),
    )


def _title(value: Any) -> str:
    """What the author calls an entry."""
    if isinstance(value, Mapping):
        for name in ("name", "comment"):
            text = value.get(name)
            if isinstance(text, str) and text.strip():
                return " ".join(text.split())[:80]
    return ""


def _placed(decorators: Decorators, more: JsonObject) -> Decorators:
    """With depth and role of an editor's own fields, where no decorator says them."""
    if decorators.depth is not None or more.members.get("position") != _DEPTH_POSITION:
        return decorators
    role = more.members.get("role")
    named = _ROLES[role] if isinstance(role, int) and role in range(3) else None
    depth = _whole(more, "depth", 10_000, 4)
    return replace(decorators, depth=depth, role=decorators.role or named)


def _probability(more: JsonObject) -> float:
    if more.flag("useProbability") is False:
        return 100.0
    found = more.number("probability")
    return 100.0 if found is None else min(max(found, 0.0), 100.0)


def _whole(given: JsonObject, name: str, limit: int, default: int) -> int:
    """A count, brought within its limits; `default` for none, and for one below zero."""
    found = given.number(name)
    return default if found is None or found < 0 else min(int(found), limit)


def _budget(book: JsonObject) -> int | None:
    """Editors write 0 for "none set"."""
    found = book.number("token_budget")
    return None if found is None or found <= 0 else min(int(found), TOKEN_BUDGET_MAX)


def _digest(keys: tuple[str, ...], content: str) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for text in (content, *keys):
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return digest.hexdigest()


def _bytes_of(entry: LoreEntry) -> int:
    texts = (entry.content, *entry.keys, *entry.secondary_keys)
    return sum(len(text.encode()) for text in texts)

"""The slow definition of which entries a message calls up: every key of every entry, on the texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from appliance.prompt.lore.activation import RECURSION_MAX, TOKEN_BUDGET_DEFAULT, Before
from appliance.prompt.lore.lorebook import Lorebook, LoreEntry


def holds(text: str, key: str, entry: LoreEntry) -> bool:
    """Whether a key of an entry stands in a text."""
    if entry.use_regex:
        return re.search(key, text, 0 if entry.case_sensitive else re.IGNORECASE) is not None
    if not entry.case_sensitive:
        text, key = folded(text), folded(key)
    at = text.find(key)
    while at >= 0:
        end = at + len(key)
        joined = (at > 0 and word(text[at - 1]) and word(key[0])) or (
            end < len(text) and word(text[end]) and word(key[-1])
        )
        if not (entry.whole_words and joined):
            return True
        at = text.find(key, at + 1)
    return False


def folded(text: str) -> str:
    return "".join(character.lower() for character in text).replace(
        "ς", "\N{GREEK SMALL LETTER SIGMA}"
    )


def word(character: str) -> bool:
    return (character.isalnum() or character == "_") and not "\u4e00" <= character <= "\u9fff"


def called_up(
    books: Sequence[Lorebook],
    recent: Sequence[str],
    before: Before,
    *,
    tokens_of: Callable[[str], int],
    tokens_max: int,
) -> list[LoreEntry]:
    """What `activated` says, for entries without a probability. `recent` is the newest text first."""
    chosen: list[tuple[float, int, int, LoreEntry]] = []
    for number, book in enumerate(books):
        called: list[int] = []
        echoes: list[str] = []
        for _ in range(RECURSION_MAX + 1):
            more = [
                index
                for index, entry in enumerate(book.entries)
                if index not in called and is_called(book, entry, recent, echoes, before)
            ]
            called += more
            if not more or not book.recursive_scanning:
                break
            echoes += [book.entries[index].content for index in more]
        budget = min(book.token_budget or TOKEN_BUDGET_DEFAULT, tokens_max)
        called = without_constants_too_many(book, called, before, budget, tokens_of)
        kept = fitting([book.entries[index] for index in sorted(called)], budget, tokens_of)
        order = {id(entry): index for index, entry in enumerate(book.entries)}
        chosen += [(entry.insertion_order, number, order[id(entry)], entry) for entry in kept]
    chosen.sort(key=lambda item: item[1:3])
    left = {id(e) for e in fitting([item[3] for item in chosen], tokens_max, tokens_of)}
    said: list[str] = []
    result = []
    for item in chosen:
        if id(item[3]) in left and item[3].digest not in said:
            said.append(item[3].digest)
            result.append(item)
    return [item[3] for item in sorted(result, key=lambda item: item[:3])]


def is_called(
    book: Lorebook,
    entry: LoreEntry,
    recent: Sequence[str],
    echoes: Sequence[str],
    before: Before,
) -> bool:
    said = entry.decorators
    if not entry.enabled or not entry.content or entry.digest in before.active:
        return False
    was = entry.digest in before.matched
    if said.dont_activate_after_match and was:
        return False
    if said.activate:
        return True
    if said.dont_activate or (said.ignore_on_max_context and before.is_full):
        return False
    if said.is_greeting is not None and before.greeting not in (None, said.is_greeting):
        return False
    if before.replies < (said.activate_only_after or 0):
        return False
    if said.activate_only_every and before.replies % said.activate_only_every:
        return False
    if said.keep_activate_after_match and was:
        return True
    depth = book.scan_depth if said.scan_depth is None else said.scan_depth
    texts = list(recent[:depth])

    def stands(keys: Sequence[str], texts: Sequence[str]) -> bool:
        return any(holds(text, key, entry) for key in keys for text in texts)

    additional = [key for group in said.additional_keys for key in group]
    if entry.use_regex:
        keys = [*entry.keys, *additional]
        return (entry.constant and not keys) or stands(keys, [*texts, *echoes])
    if stands(said.exclude_keys, texts):
        return False
    if entry.constant:
        return True
    texts += echoes
    groups = list(said.additional_keys)
    if entry.selective and entry.secondary_keys:
        groups.append(entry.secondary_keys)
    return stands(entry.keys, texts) and all(stands(group, texts) for group in groups)


def needs_no_key(entry: LoreEntry) -> bool:
    said = entry.decorators
    keys = [*entry.keys, *(key for group in said.additional_keys for key in group)]
    return said.activate or (entry.constant and not (entry.use_regex and keys))


def without_constants_too_many(
    book: Lorebook,
    called: Sequence[int],
    before: Before,
    budget: int,
    tokens_of: Callable[[str], int],
) -> list[int]:
    """Constants are measured with those that stand in the prompt."""
    constants = [
        (index, entry)
        for index, entry in enumerate(book.entries)
        if needs_no_key(entry) and (index in called or entry.digest in before.active)
    ]
    left = {id(entry) for entry in fitting([e for _, e in constants], budget, tokens_of)}
    gone = {index for index, entry in constants if id(entry) not in left}
    return [index for index in called if index not in gone]


def fitting(
    called: Sequence[LoreEntry], budget: int, tokens_of: Callable[[str], int]
) -> list[LoreEntry]:
    """The least important go until the rest fits; in the order given."""
    left = [entry for entry in called if tokens_of(entry.content) <= budget]
    while sum(tokens_of(entry.content) for entry in left) > budget:

        def rank(at: int) -> tuple[bool, float, int]:
            entry = left[at]
            own = entry.insertion_order if entry.priority is None else entry.priority
            return (not entry.decorators.ignore_on_max_context, own, -at)

        left.pop(min(range(len(left)), key=rank))
    return left

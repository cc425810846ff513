"""What is wrong or costly in a character's lorebooks. Pure: a finding is data."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.prompt.lore.books import Lore
from appliance.prompt.lore.matching import CompiledBook
from appliance.prompt.lore.placement import Placement
from appliance.prompt.templates.lint import WINDOW_TOKENS, Finding, Level


def lore_findings(lore: Lore, path: str) -> list[Finding]:
    """Everything there is to say of books that errors call `path`: all of it warnings."""
    found = [sentence for book in lore.books for sentence in _of_book(book)]
    if lore.placement is Placement.AS_WRITTEN:
        found += [sentence for book in lore.books for sentence in _moving(book)]
    return [Finding(level=Level.WARNING, sentence=f"{path}: {sentence}") for sentence in found]


def _of_book(book: CompiledBook) -> Iterator[str]:
    for unusable in book.unusable:
        yield (
            f"entry {unusable.entry.name!r} never matches: its expression {unusable.key!r} is "
            f"refused: {unusable.reason}"
        )
    for entry, needs in zip(book.book.entries, book.needs, strict=True):
        said = entry.decorators
        if not entry.content.strip():
            yield f"entry {entry.name!r} says nothing"
        if not (needs.any_of or needs.always or entry.use_regex):
            yield f"entry {entry.name!r} has no keys and is not constant: nothing calls it up"
        if said.ignored:
            yield f"entry {entry.name!r}: not understood: {', '.join(said.ignored)}"


def _moving(book: CompiledBook) -> Iterator[str]:
    """Entries that stand elsewhere in each prompt."""
    for entry in book.book.entries:
        said = entry.decorators
        if said.depth == 0 and said.position is None:
            continue
        if said.position is None and said.depth is not None:
            yield (
                f"entry {entry.name!r} stands {said.depth} messages deep: while it is active every "
                f"turn computes the last {said.depth} messages again, and no turn goes on from the "
                "one before; frozen it would cost nothing"
            )
        else:
            yield (
                f"entry {entry.name!r} stands before the messages: each time it comes or goes the "
                f"whole history is computed again, up to {WINDOW_TOKENS} tokens in a window of as "
                "many; frozen it would cost nothing"
            )

"""Lore where its card says, in every prompt anew: around the character, or so many messages deep.

For characters that ask for it; what follows an entry is computed again whenever it comes or goes. Never:
lore that is frozen into the history (`history`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.prompt.lore.lorebook import LoreEntry
from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.sources import Source, SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The messages of a prompt with lore among them."""

    front: list[PromptMessage]
    history: list[PromptMessage]
    after: list[PromptMessage]


def placed(
    entries: Sequence[LoreEntry],
    around: Placed,
    *,
    namespace: bytes,
    written: Callable[[LoreEntry], str],
) -> Placed:
    """The messages with the texts of `entries`, which keep their order in each place.

    `before_char` and `after_char` are the two ends of the front; a depth counts messages of the history
    from the newest, 0 is behind it; what is frozen before a message counts with it. `written` is an
    entry's text, the tenant's (`namespace`).
    """
    top: list[PromptMessage] = []
    bottom: list[PromptMessage] = []
    tail: list[PromptMessage] = []
    within: dict[int, list[PromptMessage]] = {}
    begins = _begins(around.history)
    spoken = len(begins) - 1
    for entry in entries:
        said = entry.decorators
        depth = said.depth
        if depth is None and said.reverse_depth is not None:
            depth = max(spoken - said.reverse_depth, 0)
        if said.position is not None:
            depth = None
        is_top = (said.position or entry.position) in ("before_char", "before_desc")
        zone = Zone.HISTORY if depth else Zone.PINNED
        # After the newest message only a system text may stand: it would be answered in its place.
        role: Role = said.role or "system" if depth else "system"
        message = PromptMessage(
            name=f"lore: {entry.name}",
            role=role,
            zone=zone if depth != 0 else Zone.VOLATILE,
            content=written(entry),
            namespace=namespace,
            sources=(Source(kind=SourceKind.LORE, id=entry.digest),),
        )
        if depth is None:
            (top if is_top else bottom).append(message)
        elif depth == 0:
            tail.append(message)
        else:
            within.setdefault(begins[max(spoken - depth, 0)], []).append(message)
    history: list[PromptMessage] = []
    for index, message in enumerate(around.history):
        history += [*within.get(index, ()), message]
    return Placed(
        front=[*top, *around.front, *bottom], history=history, after=[*tail, *around.after]
    )


def _begins(history: Sequence[PromptMessage]) -> list[int]:
    """Where each message begins, with the notes and the lore that stand before it; then the end."""
    begins = [0]
    begins += [index + 1 for index, message in enumerate(history) if not message.is_lead]
    return begins

"""Rendered parts in a window: what of a whole-file template goes when it is full.

Owns where such a template has its conversation, as it has no place of its own for one. Never: the cut
itself (`_core`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.fit import Fitted, fit
from appliance.prompt.templates.parts import RenderedPart
from appliance.prompt.truncate import HISTORY_PRIORITY, Window


def fit_parts(
    chat_format: ChatFormat, parts: Sequence[RenderedPart], window: Window, namespace: bytes
) -> Fitted:
    """The prompt of these parts, cut by their priorities as a conversation's prompt is.

    The conversation is the last run of neighbours with one priority above 0: it is cut by whole turns,
    at a place that stays where it is while the run grows. All other parts go by their own priorities.
    Raises ContextLengthExceeded with names and numbers, and InvalidRequest as `fit`.
    """
    start, end = _conversation(parts)
    messages = [part.message(namespace) for part in parts]
    history = [replace(message, block=None) for message in messages[start:end]]
    return fit(
        chat_format,
        messages[:start],
        history,
        window,
        after=messages[end:],
        history_priority=parts[start].truncation_priority if start < end else HISTORY_PRIORITY,
    )


def _conversation(parts: Sequence[RenderedPart]) -> tuple[int, int]:
    """[start, end) of the last run of one priority above 0; empty at the end when there is none."""
    end = len(parts)
    while end and parts[end - 1].truncation_priority == 0:
        end -= 1
    start = end
    while start and parts[start - 1].truncation_priority == parts[end - 1].truncation_priority:
        start -= 1
    return (start, end) if start < end else (len(parts), len(parts))

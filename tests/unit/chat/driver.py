"""Reads the events of a turn, whole or up to a point, as a server would."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from uuid import UUID

from appliance.chat.events import Delta, Event, TurnDone, TurnStarted
from appliance.chat.params import GenerationParams
from appliance.chat.plan import Place
from appliance.chat.turn import Turns

TENANT = "anna"
PLAIN = GenerationParams()


def send(
    turns: Turns,
    conversation_id: UUID,
    text: str,
    *,
    parent: UUID | Place | None = Place.HEAD,
    turn_key: UUID | None = None,
    params: GenerationParams = PLAIN,
) -> AsyncGenerator[Event, None]:
    """A message of the tenant."""
    return turns.send(
        tenant=TENANT,
        conversation_id=conversation_id,
        text=text,
        parent=parent,
        turn_key=turn_key,
        params=params,
    )


async def read(events: AsyncGenerator[Event, None]) -> tuple[TurnStarted, list[Delta], TurnDone]:
    """All events of a turn that ends well."""
    seen = [event async for event in events]
    started, *deltas, done = seen
    assert isinstance(started, TurnStarted)
    assert isinstance(done, TurnDone)
    texts = [delta for delta in deltas if isinstance(delta, Delta)]
    assert len(texts) == len(deltas)
    assert "".join(delta.text for delta in texts) == done.text
    return started, texts, done


async def read_until(events: AsyncGenerator[Event, None], deltas: int) -> str:
    """Read that many deltas and stop reading; the text of them."""
    text = ""
    while deltas:
        event = await anext(events)
        if isinstance(event, Delta):
            text += event.text
            deltas -= 1
    return text

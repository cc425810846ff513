"""The events of one request on their way to who reads them. Never: a socket or a frame's bytes."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from appliance import tokens
from appliance.errors import EngineUnavailable
from appliance.wire.frames import Admitted, Finished, Tokens

Event = Admitted | Tokens | Finished


class Pending:
    """The events of one request that were not read yet."""

    def __init__(self, events_max: int) -> None:
        self._events: deque[Event] = deque()
        self._events_max = events_max
        self._arrived = asyncio.Event()
        self._failure: EngineUnavailable | None = None
        self._overran = False
        self.queued_tokens = 0
        self.yielded_tokens = 0
        self.is_cancelled = False
        self.is_finished = False

    def put(self, event: Event) -> bool:
        """Queue an event; False when it did not fit, so the request has to be cancelled."""
        if isinstance(event, Finished):
            self.is_finished = True
            if self._overran:
                event = msgspec.structs.replace(event, new_tokens=self.queued_tokens)
        elif self._overran or len(self._events) >= self._events_max:
            # No gap may arise: after the first event that is lost, only the end is delivered.
            self._overran = True
            return False
        elif isinstance(event, Tokens):
            self.queued_tokens += tokens.count(event.token_ids)
        self._events.append(event)
        self._arrived.set()
        return True

    def fail(self, error: EngineUnavailable) -> None:
        """No more events will come."""
        self._failure = error
        self._arrived.set()

    async def next_event(self) -> Event:
        """The next event; raises EngineUnavailable after the last when the connection was lost."""
        while not self._events:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        if isinstance(event, Tokens):
            self.yielded_tokens += tokens.count(event.token_ids)
        return event

"""What a turn may do with its engine, whether that is one or several. Never: an implementation.

`EngineClient` is that of one engine, `Engines` that of several.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from appliance.wire.frames import Generate, Hello
from appliance.wire.pending import Event


class EngineAccess(Protocol):
    """The engines' side of a turn; errors are those of `EngineClient`."""

    @property
    def hello(self) -> Hello | None:
        """What an engine said of itself that holds for every request; None while there is none."""

    def generate(
        self, request: Generate, *, seen_tokens: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send a request and yield its events, `Finished` last."""

    def cancel(self, request_id: str, keep_tokens: int) -> None:
        """Stop a request, keeping the first `keep_tokens` of its reply in the cache."""

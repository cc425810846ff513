"""What the door knows about one request: its id, its caller, when it came, what its log line will say.

Holds numbers and names only; never text of a message or a key.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from aiohttp import web

from appliance.server.auth import Caller


@dataclass(slots=True, kw_only=True)
class Ticket:
    """Made by the middleware when a request arrives; routes add `fields` to its one log line."""

    request_id: str = field(default_factory=lambda: f"req_{secrets.token_hex(12)}")
    caller: Caller = field(default_factory=lambda: Caller(tenant="", is_operator=False))
    arrived_s: float = field(default_factory=time.perf_counter)
    fields: dict[str, str | int | float] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        """Whom the request speaks for."""
        return self.caller.tenant

    def age_s(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.arrived_s


TICKET: web.RequestKey[Ticket] = web.RequestKey("ticket", Ticket)

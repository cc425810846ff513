"""Which of several engines a request goes to: pure functions of names and loads. Never: sends anything.

A conversation keeps to one engine, so that its K/V are there. Rendezvous hashing ("Using name-based
mappings to increase hit rates", Thaler and Ravishankar, 1998) gives every key its own order of all
engines: when one goes down, only its conversations move, spread over the others, and they are back
as soon as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from appliance import tokens
from appliance.wire.frames import Generate

SCORE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """One engine as the router sees it.

    `name` stays the same over restarts. `waiting`: requests sent and not admitted yet; more than
    `waiting_max` an engine refuses.
    """

    name: str
    is_up: bool
    waiting: int
    waiting_max: int

    @property
    def has_room(self) -> bool:
        """Whether one more request could wait."""
        return self.is_up and self.waiting < self.waiting_max


def route(key: bytes, engines: Sequence[EngineLoad]) -> EngineLoad | None:
    """The first engine of the key's order that has room, else the first that is up, else None.

    When all queues are full, the request goes where its conversation is, to be refused there with a
    time to come again.
    """
    ordered = preference(key, engines)
    up = [engine for engine in ordered if engine.is_up]
    return next((engine for engine in up if engine.has_room), up[0] if up else None)


def preference(key: bytes, engines: Sequence[EngineLoad]) -> list[EngineLoad]:
    """All engines, the key's own first; the order of two of them does not depend on the others."""
    return sorted(engines, key=lambda engine: (_score(key, engine.name), engine.name), reverse=True)


def route_key(request: Generate, *, page_size: int, public: bytes) -> bytes:
    """What a request is routed by: its conversation, or without one its first private page.

    That is the first page with a token of another namespace than `public`, cut off where the prompt
    ends. Calls that begin with the same private text share it, and so the engine that has computed it.
    """
    if request.conversation:
        return conversation_key(request.conversation)
    namespace, position = _first_private(request.stretches, public)
    width = page_size * tokens.BYTES_PER_TOKEN
    start = position // page_size * width
    return b"page:" + namespace + b":" + request.token_ids[start : start + width]


def conversation_key(conversation: bytes) -> bytes:
    """What the requests of a conversation are routed by."""
    return b"conversation:" + conversation


def _first_private(stretches: Sequence[tuple[bytes, int]], public: bytes) -> tuple[bytes, int]:
    """Whose the first private token is, and its position; of a public prompt, its beginning."""
    position = 0
    for namespace, count in stretches:
        if namespace != public and count > 0:
            return namespace, position
        position += count
    return public, 0


def _score(key: bytes, name: str) -> bytes:
    # The key is of any length, so it is hashed as data and the name, which is short, as the hash's key.
    return blake2b(key, digest_size=SCORE_BYTES, key=name.encode()).digest()

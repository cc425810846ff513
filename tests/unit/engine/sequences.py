"""Sequences for tests of pure functions."""

from __future__ import annotations

from array import array

import msgspec

from appliance import tokens
from appliance.engine.sequence import Sequence, State
from appliance.wire.frames import Generate, Priority, Sampling


def request(**changes: object) -> Generate:
    """A small valid request with some fields replaced."""
    plain = Generate(
        request_id="r",
        token_ids=tokens.pack([1, 2, 3]),
        stretches=[(b"n", 3)],
        sampling=Sampling(),
        new_tokens_max=10,
        stop_token_ids=[0],
        closing=tokens.pack([4, 5]),
    )
    return msgspec.structs.replace(plain, **changes)


def sequence(
    ordinal: int,
    *,
    prompt_tokens: int = 3,
    computed: int = 0,
    new_tokens: int = 0,
    new_tokens_max: int = 10,
    closing: int = 2,
    state: State = State.RUNNING,
    arrivals_before_end: int | None = None,
    tenant: bytes = b"",
    priority: Priority = "interactive",
    announced: bool = False,
) -> Sequence:
    """A sequence without a lease."""
    return Sequence(
        key=(1, str(ordinal)),
        request=request(
            request_id=str(ordinal),
            new_tokens_max=new_tokens_max,
            tenant=tenant,
            priority=priority,
        ),
        stretches=[(b"n", prompt_tokens)],
        closing=tokens.pack([9] * closing),
        seed=1,
        ordinal=ordinal,
        arrived_at=0.0,
        tokens=array("I", [1] * (prompt_tokens + new_tokens)),
        first=0,
        prompt_tokens=prompt_tokens,
        stop_token_ids=frozenset(),
        state=state,
        computed=computed,
        new_tokens=new_tokens,
        arrivals_before_end=arrivals_before_end,
        announced=announced,
    )

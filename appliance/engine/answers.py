"""The frames that tell a server how its request fares. Pure; never sends one."""

from __future__ import annotations

from appliance import tokens
from appliance.engine.sampler import Sampled
from appliance.engine.sequence import Sequence
from appliance.errors import ApplianceError, Overloaded
from appliance.wire.frames import Admitted, Finished, FinishReason, Node, Tokens


def admitted(sequence: Sequence, *, hit_tokens: int, queue_wait_ms: float) -> Admitted:
    """A sequence has its pages for the first time."""
    return Admitted(
        request_id=sequence.request.request_id,
        prompt_tokens=sequence.prompt_tokens,
        prefix_hit_tokens=hit_tokens,
        queue_wait_ms=queue_wait_ms,
    )


def token(sequence: Sequence, sampled: Sampled) -> Tokens:
    """The reply grew by one token."""
    return Tokens(
        request_id=sequence.request.request_id,
        token_ids=tokens.pack([sampled.token_id]),
        logprobs=None if sampled.logprobs is None else [sampled.logprobs],
    )


def finished(
    sequence: Sequence, reason: FinishReason, *, node: Node | None, error: ApplianceError | None
) -> Finished:
    """The terminal event of a request that was queued."""
    return Finished(
        request_id=sequence.request.request_id,
        reason=reason,
        new_tokens=sequence.new_tokens,
        node=node,
        error_code=None if error is None else error.code,
        error_message=None if error is None else error.message,
        retry_after_s=_retry_after_s(error),
    )


def refused(request_id: str, error: ApplianceError) -> Finished:
    """The terminal event of a request that was not queued at all."""
    return Finished(
        request_id=request_id,
        reason="failed",
        new_tokens=0,
        error_code=error.code,
        error_message=error.message,
        retry_after_s=_retry_after_s(error),
    )


def _retry_after_s(error: ApplianceError | None) -> int | None:
    return error.retry_after_s if isinstance(error, Overloaded) else None

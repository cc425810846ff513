"""The frames between server and engine, and their encoding. Never opens a socket.

A frame on the socket is a 4-byte big-endian length followed by one msgpack map with a `type` field.
The server sends `Generate`, `Cancel` and `Ask`; the engine sends `Hello` once per connection, and for
each `Generate`: at most one `Admitted`, any number of `Tokens`, exactly one `Finished`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from appliance.tokens import TokenIds

PROTOCOL = 3
FRAME_BYTES_MAX = 64 * 1024 * 1024
LENGTH_BYTES = 4

FinishReason = Literal["stop", "length", "cancelled", "failed"]
Priority = Literal["interactive", "batch"]
DEADLINE_MS_MAX = 3_600_000


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all frames."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen; the defaults sample from the model's own distribution.

    `temperature` 0 is greedy. Penalties follow OpenAI's meaning (presence, frequency: subtracted from
    the logits of tokens generated so far) and the CTRL paper's (repetition: divides or multiplies the
    logits of tokens in prompt and reply). `logprobs` asks for that many alternatives per token.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    logprobs: int | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A place in an engine's prefix index: the end of what an earlier request left in it.

    `instance` names the engine process, `tokens` how many tokens lead to the place. An engine may
    evict it at any time, and then answers `unknown_node`.
    """

    instance: str
    number: int
    tokens: int


class Generate(Frame, frozen=True, kw_only=True, tag="generate"):
    """One request.

    The prompt is what leads to `after`, if that is given, and then `token_ids`. `stretches` cover the
    whole of it from the front: (namespace, number of tokens) each; a page that
    touches a private stretch is found again only under that stretch's namespace. `conversation` names
    the requests of which each takes the place of the one before. `closing` are the
    tokens that follow the reply in the next prompt (end-of-turn markers): the engine writes their K/V
    after the reply so that the next turn finds the whole of this one. A token of `stop_token_ids`
    ends the reply and is not part of it. `tenant` is whose share of the engine it takes; a `batch`
    request runs only where no interactive one waits. `deadline_ms`, 1 to `DEADLINE_MS_MAX`: from the
    engine's receipt on; a request that has not finished by then fails with `deadline_exceeded`.
    """

    request_id: str
    token_ids: TokenIds
    stretches: list[tuple[bytes, int]]
    sampling: Sampling
    new_tokens_max: int
    stop_token_ids: list[int]
    closing: TokenIds = b""
    after: Node | None = None
    conversation: bytes = b""
    tenant: bytes = b""
    priority: Priority = "interactive"
    deadline_ms: int | None = None


class Cancel(Frame, frozen=True, kw_only=True, tag="cancel"):
    """Stop a request. `keep_tokens` of the reply stay in the cache: those the user saw."""

    request_id: str
    keep_tokens: int


class Ask(Frame, frozen=True, kw_only=True, tag="ask"):
    """Ask for `Stats`; with `check`, the engine also proves its page accounting first."""

    request_id: str
    check: bool = False


class Hello(Frame, frozen=True, kw_only=True, tag="hello"):
    """The engine is ready: weights are loaded and warmed."""

    protocol: int
    pid: int
    model_fingerprint: str
    vocab_size: int
    context_tokens_max: int
    page_size: int
    pages_total: int
    waiting_max: int
    device: str


class Admitted(Frame, frozen=True, kw_only=True, tag="admitted"):
    """The request has its pages; `prefix_hit_tokens` of its prompt were in the cache."""

    request_id: str
    prompt_tokens: int
    prefix_hit_tokens: int
    queue_wait_ms: float


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities (natural log, before temperature and penalties) at one position."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class Tokens(Frame, frozen=True, kw_only=True, tag="tokens"):
    """The next tokens of the reply, one a step."""

    request_id: str
    token_ids: TokenIds
    logprobs: list[TokenLogprobs] | None = None


class Finished(Frame, frozen=True, kw_only=True, tag="finished"):
    """The terminal event. `error_code` is set when `reason` is `failed` (a code of `errors.py`).

    `node` is where a next request may go on: after the prompt, the reply as far as it is kept, and the
    closing tokens. `retry_after_s` comes with `overloaded`.
    """

    request_id: str
    reason: FinishReason
    new_tokens: int
    node: Node | None = None
    error_code: str | None = None
    error_message: str | None = None
    retry_after_s: int | None = None


class Stats(Frame, frozen=True, kw_only=True, tag="stats"):
    """Answer to `Ask`: gauges and counters by name; `check_failure` names a broken invariant."""

    request_id: str
    values: dict[str, float]
    check_failure: str | None = None


ServerFrame = Generate | Cancel | Ask
EngineFrame = Hello | Admitted | Tokens | Finished | Stats

_encoder = msgspec.msgpack.Encoder()
_server_decoder: msgspec.msgpack.Decoder[ServerFrame] = msgspec.msgpack.Decoder(ServerFrame)
_engine_decoder: msgspec.msgpack.Decoder[EngineFrame] = msgspec.msgpack.Decoder(EngineFrame)


def encode(frame: Frame) -> bytes:
    """The frame with its length in front, ready to be written."""
    body = _encoder.encode(frame)
    assert len(body) <= FRAME_BYTES_MAX
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_from_server(body: bytes) -> ServerFrame:
    """Parse one frame body on the engine's side; raises msgspec.DecodeError."""
    return _server_decoder.decode(body)


def decode_from_engine(body: bytes) -> EngineFrame:
    """Parse one frame body on the server's side; raises msgspec.DecodeError."""
    return _engine_decoder.decode(body)


class FrameSplitter:
    """Cuts a byte stream into frame bodies. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies that became whole; raises ValueError when a frame announces too many bytes."""
        self._pending += data
        bodies: list[bytes] = []
        start = 0
        while len(self._pending) - start >= LENGTH_BYTES:
            length = int.from_bytes(self._pending[start : start + LENGTH_BYTES], "big")
            if length > FRAME_BYTES_MAX:
                raise ValueError(
                    f"a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}"
                )
            body = start + LENGTH_BYTES
            if len(self._pending) < body + length:
                break
            bodies.append(bytes(self._pending[body : body + length]))
            start = body + length
        del self._pending[:start]
        return bodies

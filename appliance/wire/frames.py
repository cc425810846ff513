"""The frames between server and engine, and their encoding. Never opens a socket.

A frame on the socket is a 4-byte big-endian length followed by one msgpack map with a `type` field.
The server sends `Generate`, `Cancel`, and questions; the engine sends `Hello` once per connection, one
answer for each question, and for each `Generate`: at most one `Admitted`, any number of `Tokens`, exactly
one `Finished`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from appliance.tokens import TokenIds

PROTOCOL = 5
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


class Question(Frame, frozen=True, kw_only=True):
    """Base of an operator's questions; each has one answer with its `request_id`."""

    request_id: str = ""


class Explain(Question, frozen=True, kw_only=True, tag="explain"):
    """What a request for these tokens would find; `stretches` as in `Generate`. Answer: `Explained`."""

    token_ids: TokenIds
    stretches: list[tuple[bytes, int]]


class Pin(Question, frozen=True, kw_only=True, tag="pin"):
    """Keep the path to a node from eviction, in the name of a conversation. Answer: `Done`."""

    conversation: bytes
    node: Node


class Unpin(Question, frozen=True, kw_only=True, tag="unpin"):
    """Take back what was pinned in the name of a conversation. Answer: `Done`, 0 pages if nothing was."""

    conversation: bytes


class PurgeAll(Question, frozen=True, kw_only=True, tag="purge_all"):
    """Drop everything that no request and no pin holds. Answer: `Done`."""


class PurgeNamespace(Question, frozen=True, kw_only=True, tag="purge_namespace"):
    """Drop every page with tokens in a namespace, and what follows it. Answer: `Done`."""

    namespace: bytes


class PathFrom(msgspec.Struct, frozen=True, kw_only=True):
    """A path, and the position in it from which on it is meant."""

    token_ids: TokenIds
    stretches: list[tuple[bytes, int]]
    from_token: int


class PurgePaths(Question, frozen=True, kw_only=True, tag="purge_paths"):
    """Drop the pages of each path from its `from_token` on, and what follows them. Answer: `Done`."""

    paths: list[PathFrom]


class AuditPath(Question, frozen=True, kw_only=True, tag="audit_path"):
    """Compare what is cached of a path with a recomputation, in idle time. Answer: `Audited`, if the
    audit begins within `wait_ms`; else nothing."""

    token_ids: TokenIds
    stretches: list[tuple[bytes, int]]
    wait_ms: int


class AuditSample(Question, frozen=True, kw_only=True, tag="audit_sample"):
    """The same with paths that ended lately, until `tokens` tokens are compared."""

    tokens: int
    wait_ms: int


class Explained(Frame, frozen=True, kw_only=True, tag="explained"):
    """Answer to `Explain`; the fields are those of `PrefixIndex.explain`."""

    request_id: str
    hit_tokens: int
    miss_tokens: int
    host_tokens: int
    disk_tokens: int
    cause: str
    before: TokenIds | None = None
    asked: TokenIds | None = None
    cached: TokenIds | None = None


class Done(Frame, frozen=True, kw_only=True, tag="done"):
    """Answer to `Pin`, `Unpin` and the purges: how many pages it was about."""

    request_id: str
    pages: int


class PathAudit(msgspec.Struct, frozen=True, kw_only=True):
    """One audited path; `cause` and what follows are set when it failed (`engine/audit_cause.py`)."""

    tokens: int
    logit_difference: float
    row_difference: float
    top1_agrees: bool
    cause: str | None = None
    position: int | None = None
    page: int | None = None
    pages_dropped: int = 0


class Audited(Frame, frozen=True, kw_only=True, tag="audited"):
    """Answer to `AuditPath` and `AuditSample`; empty when nothing of it is cached, or no page is free."""

    request_id: str
    paths: list[PathAudit]


class Refused(Frame, frozen=True, kw_only=True, tag="refused"):
    """Answer to a question that cannot be met (a code of `errors.py`)."""

    request_id: str
    error_code: str
    error_message: str


AdminQuestion = (
    Explain | Pin | Unpin | PurgeAll | PurgeNamespace | PurgePaths | AuditPath | AuditSample
)
AdminAnswer = Explained | Done | Audited | Refused
ServerFrame = Generate | Cancel | Ask | AdminQuestion
EngineFrame = Hello | Admitted | Tokens | Finished | Stats | AdminAnswer

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

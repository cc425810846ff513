"""Frames survive any cutting of the byte stream."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.frames import (
    FRAME_BYTES_MAX,
    Ask,
    Audited,
    AuditPath,
    AuditSample,
    Cancel,
    Done,
    Explain,
    Explained,
    Finished,
    Frame,
    FrameSplitter,
    Generate,
    Node,
    PathAudit,
    PathFrom,
    Pin,
    PurgeAll,
    PurgeNamespace,
    PurgePaths,
    Refused,
    Sampling,
    TokenLogprobs,
    Tokens,
    Unpin,
    decode_from_engine,
    decode_from_server,
    encode,
)

SERVER_FRAMES: list[Frame] = [
    Generate(
        request_id="a",
        token_ids=b"\1\0\0\0",
        stretches=[(b"\0n", 1)],
        sampling=Sampling(seed=2**64 - 1, logit_bias={5: -1.5}),
        new_tokens_max=3,
        stop_token_ids=[0],
        closing=b"\2\0\0\0",
    ),
    Cancel(request_id="a", keep_tokens=2),
    Ask(request_id="b", check=True),
    Explain(request_id="c", token_ids=b"\1\0\0\0", stretches=[(b"\0n", 1)]),
    Pin(request_id="d", conversation=b"\xff", node=Node(instance="i", number=3, tokens=4)),
    Unpin(request_id="e", conversation=b"\xff"),
    PurgeAll(request_id="f"),
    PurgeNamespace(request_id="g", namespace=b"\0"),
    PurgePaths(
        request_id="h",
        paths=[PathFrom(token_ids=b"\1\0\0\0", stretches=[(b"n", 1)], from_token=0)],
    ),
    AuditPath(request_id="i", token_ids=b"\1\0\0\0", stretches=[(b"n", 1)], wait_ms=7),
    AuditSample(request_id="j", tokens=5, wait_ms=7),
]


@given(data=st.data())
def test_frames_come_out_whole_however_the_stream_is_cut(data: st.DataObject) -> None:
    stream = b"".join(encode(frame) for frame in SERVER_FRAMES)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = FrameSplitter()
    bodies: list[bytes] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        bodies += splitter.feed(stream[start:stop])
    assert [decode_from_server(body) for body in bodies] == SERVER_FRAMES


def test_a_frame_that_announces_too_much_is_refused_before_it_is_collected() -> None:
    with pytest.raises(ValueError, match=str(FRAME_BYTES_MAX)):
        FrameSplitter().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


def test_engine_frames_come_back_equal() -> None:
    audit = PathAudit(tokens=3, logit_difference=0.5, row_difference=0.1, top1_agrees=False)
    frames: list[Frame] = [
        Explained(
            request_id="e",
            hit_tokens=1,
            miss_tokens=2,
            host_tokens=0,
            disk_tokens=0,
            cause="cold",
            asked=b"\1\0\0\0",
        ),
        Done(request_id="d", pages=3),
        Audited(request_id="a", paths=[audit]),
        Refused(request_id="r", error_code="conflict", error_message="no"),
        Tokens(
            request_id="a",
            token_ids=b"\7\0\0\0",
            logprobs=[TokenLogprobs(token_id=7, logprob=-0.5, top=[(7, -0.5), (1, -2.0)])],
        ),
        Finished(request_id="a", reason="failed", new_tokens=1, error_code="x", error_message="y"),
    ]
    assert [decode_from_engine(encode(frame)[4:]) for frame in frames] == frames


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode({"type": "nonsense"})])
def test_bytes_that_are_no_frame_are_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_from_server(body)
    with pytest.raises(msgspec.DecodeError):
        decode_from_engine(body)

"""JSON bodies: depth, encoding, text rules, and errors that name the field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import InvalidRequest
from appliance.server.chat_requests import CHAT_REQUEST
from appliance.server.json_text import DEPTH_MAX, decode, deeper_than

ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode(body, CHAT_REQUEST)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        bytes.fromhex(
            "7b226d6f64656c223a226d222c226d65737361676573223a5b7b22726f6c65223a2275736572222c"
            "22636f6e74656e74223a226120972062227d5d7d"
        ),
        bytes.fromhex("efbbbf7b7d"),
        b"",
        b"   ",
        b'{"model":',
        b"[]",
        b"null",
        b"\xff",
    ],
)
def test_a_body_that_is_no_utf8_json_object_is_refused(body: bytes) -> None:
    assert refusal(body).code == "invalid_request"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000 + b"]" * 20_000,
        b'{"x":' + b"[" * 100_000 + b"0" + b"]" * 100_000 + b"}",
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":'
        + b'{"a":' * 5_000
        + b"1"
        + b"}" * 5_000
        + b"}",
        b'{"model":"m","seed":' + b"9" * 5_000 + b',"messages":[]}',
        b"[" * 1_000_000,
        b"]" * 1_000_000 + b"[" * 1_000_000,
    ],
)
def test_deep_nesting_and_huge_numbers_are_refused_before_they_are_parsed(body: bytes) -> None:
    assert refusal(body).code == "invalid_request"


def test_depth_is_counted_outside_of_strings_only() -> None:
    text = json.dumps({"a": "[{" * 500, "b": '\\"[[[' * 100}).encode()
    assert not deeper_than(text, 2)
    assert decode(text, ANY)["a"] == "[{" * 500


@pytest.mark.parametrize("depth", [1, 2, DEPTH_MAX, DEPTH_MAX + 1, 200])
def test_the_depth_limit_is_exact(depth: int) -> None:
    body = b'[{"k":' * (depth // 2) + b"[" * (depth % 2) + b"]" * (depth % 2) + b"}]" * (depth // 2)
    body = body.replace(b'"k":}', b'"k":1}')
    # Many shallow siblings must not count as depth.
    padded = b"[" + b",".join([body[:], b"[]" * 1]) + b"]" if depth > 1 else body
    assert deeper_than(body, DEPTH_MAX) == (depth > DEPTH_MAX)
    assert deeper_than(padded, DEPTH_MAX) == (depth + (depth > 1) > DEPTH_MAX)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(json_values, st.integers(min_value=1, max_value=6), st.booleans())
def test_depth_agrees_with_a_walk_over_the_parsed_value(
    value: Any, levels: int, ascii_only: bool
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert deeper_than(body, levels) == (depth_of(value) > levels)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            r'{"model":"m","messages":[{"role":"user","content":"cut \ud83d"}]}',
            "messages[0].content",
        ),
        (
            r'{"model":"m","messages":[{"role":"user","content":"x \ude00 y"}]}',
            "messages[0].content",
        ),
        (r'{"model":"m","stop":["\ud83d"],"messages":[{"role":"user","content":"x"}]}', "stop[0]"),
        (r'{"model":"m","user":"\udc00","messages":[{"role":"user","content":"x"}]}', "user"),
        (
            r'{"model":"m","messages":[{"role":"user","name":"\ud83d","content":"x"}]}',
            "messages[0].name",
        ),
        (r'{"model":"m","messages":[{"role":"user","content":"a\u0000b"}]}', "messages[0].content"),
        (r'{"model":"m","messages":[],"metadata":{"k":"v\u0000"}}', "metadata.k"),
        (r'{"model":"m","messages":[],"x":["\\\ud83d"]}', "x[0]"),
        (
            r'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
            "temperature",
        ),
        (
            r'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":-Infinity}',
            "temperature",
        ),
        (
            r'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
            "temperature",
        ),
        (r'{"model":7,"messages":[]}', "model"),
        (r'{"model":"m"}', "messages"),
        (r'{"model":"m","messages":[]}', "messages"),
        (r'{"model":"m","messages":[{"content":"x"}]}', "messages[0].role"),
        (r'{"model":"m","messages":[{"role":"user","content":7}]}', "messages[0].content"),
        (
            r'{"model":"m","messages":[{"role":"user","content":[{"type":3}]}]}',
            "messages[0].content[0].type",
        ),
        (
            r'{"model":"m","messages":[{"role":"user","content":"x"}],"logit_bias":{"5":1000}}',
            "logit_bias",
        ),
    ],
)
def test_a_refusal_names_the_field(body: str, param: str) -> None:
    error = refusal(body.encode())
    assert error.param is not None
    assert error.param == param


@pytest.mark.parametrize("escape", [r"fine \ud83d\ude00", r"a \\u0000 b", r"\\ud83d", r"\ufffd"])
def test_whole_pairs_and_escaped_backslashes_are_fine(escape: str) -> None:
    body = f'{{"model":"m","messages":[{{"role":"user","content":"{escape}"}}]}}'.encode()
    assert decode(body, CHAT_REQUEST).messages[0].content == json.loads(f'"{escape}"')


@given(st.text(st.characters(categories=["Cs", "Lu", "Cc", "So"]), max_size=12))
def test_no_text_with_nul_or_a_lone_surrogate_passes_and_every_other_does(text: str) -> None:
    body = json.dumps({"text": text}).encode()
    joined = json.loads(body)["text"]
    bad = "\x00" in joined or any("\ud800" <= character <= "\udfff" for character in joined)
    if bad:
        with pytest.raises(InvalidRequest) as caught:
            decode(body, ANY)
        assert caught.value.param == "text"
    else:
        assert decode(body, ANY) == {"text": joined}

"""JSON bytes to a typed value: depth, encoding, strict types, text rules, errors named by field.

Never reads from a connection and never knows what a request means.

Text rule, the same for every string of every request: no U+0000 (PostgreSQL's text cannot hold it) and
no lone surrogate (it has no UTF-8).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import msgspec

from appliance.errors import InvalidRequest

DEPTH_MAX = 64
_BOM = b"\xef\xbb\xbf"
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
# An escape that may stand for U+0000 or half of a surrogate pair. May find too much (an escaped
# backslash before a `u`): the walk over the decoded strings decides.
_SUSPECT = re.compile(
    rb"\\u(?:0000|[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_PATH = re.compile(r" - at (?:`key` in )?`(\$[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")

T = TypeVar("T")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a request body; raises InvalidRequest whose `param` is the field's path.

    Numbers that JSON does not have (NaN, Infinity, 1e999), wrong types, missing fields, nesting deeper
    than `DEPTH_MAX`, bytes that are not UTF-8 and text against the rule above are all refused.
    """
    if not body.strip():
        raise InvalidRequest("The request body is empty; a JSON object is expected.")
    if body.startswith(_BOM):
        raise InvalidRequest("The request body starts with a byte order mark; send UTF-8 without.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The request body is not UTF-8 (byte {error.start}).") from error
    if deeper_than(body, DEPTH_MAX):
        raise InvalidRequest(f"The request body is nested deeper than {DEPTH_MAX} levels.")
    if _SUSPECT.search(body):
        refuse_flaws(text)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _named(error) from error
    except msgspec.DecodeError as error:
        refuse_flaws(text)
        raise InvalidRequest(f"The request body is not valid JSON: {error}.") from error


def deeper_than(body: bytes, levels: int) -> bool:
    """Whether brackets outside of strings nest deeper than `levels`. Also true when they do not match.

    Takes away the innermost pairs once per level, so no input costs more than `levels` passes.
    """
    if body.count(b"[") + body.count(b"{") <= levels:
        return False
    brackets = _STRINGS.sub(b"", body).translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(levels):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def refuse_flaws(text: str) -> None:
    """Raise InvalidRequest naming the first field whose string or number is not acceptable."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return  # not JSON at all: the strict decoder says so, with the place
    _walk(value, "")


def _walk(value: Any, path: str) -> None:
    if isinstance(value, str):
        _refuse_text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{path or 'the body'}: NaN and Infinity are not JSON.", param=path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_text(key, path or "the body")
            _walk(item, f"{path}.{key}" if path else key)


def _refuse_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise InvalidRequest(f"{path}: text must not contain U+0000.", param=path)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest(f"{path}: text holds half of a surrogate pair.", param=path)


def _named(error: msgspec.ValidationError) -> InvalidRequest:
    """The decoder's complaint with its path in OpenAI's style: `messages[2].content`."""
    complaint = str(error)
    found = _PATH.search(complaint)
    path = found[1].removeprefix("$").removeprefix(".").replace("[...]", "") if found else ""
    reason = complaint[: found.start()] if found else complaint
    missing = _MISSING.match(reason)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        reason = "this field is required"
    return InvalidRequest(f"{path or 'The request body'}: {reason}.", param=path or None)

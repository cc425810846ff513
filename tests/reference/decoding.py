"""The slow reference of decoding: pieces to text, and the certain part of a growing reply."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from contextlib import suppress

from tests.small_tokenizers import CHATML, MARK, SENTENCEPIECE, Name, byte_letters

_BYTE_OF_LETTER = {letter: byte for byte, letter in enumerate(byte_letters())}
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


def piece_bytes(name: Name, piece: str) -> bytes:
    """What one piece adds to a text, away from its start."""
    if name in ("byte-level", "llama3"):
        if piece in CHATML:
            return b""
        return bytes(_BYTE_OF_LETTER[letter] for letter in piece)
    if piece in SENTENCEPIECE:
        return b""
    byte = _BYTE_PIECE.fullmatch(piece) if name != "unigram" else None
    return bytes.fromhex(byte[1]) if byte else piece.replace(MARK, " ").encode()


def decode_pieces(name: Name, pieces: Sequence[str]) -> str:
    """The text of a sequence of pieces."""
    control = CHATML if name in ("byte-level", "llama3") else SENTENCEPIECE
    said = [piece for piece in pieces if piece not in control]
    if name.startswith("unigram") and said:
        said[0] = said[0].replace(MARK, "")
    data = b"".join(piece_bytes(name, piece) for piece in said)
    if name == "sentencepiece":
        data = data.removeprefix(b" ")
    return data.decode("utf-8", "replace")


def open_bytes(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character.

    Python's incremental decoder also waits for the rest of a surrogate, which is never one.
    """
    for count in (3, 2, 1):
        for size in range(1, 5 - count):
            for rest in itertools.product((0x80, 0xBF), repeat=size):
                with suppress(UnicodeDecodeError):
                    if len(data) >= count and len((data[-count:] + bytes(rest)).decode()) == 1:
                        return count
    return 0


def certain_text(data: bytes, stop: Sequence[str], *, final: bool) -> tuple[str, bool]:
    """The text of a reply that more bytes cannot change, and whether a stop string ends it."""
    text = (data if final else data[: len(data) - open_bytes(data)]).decode("utf-8", "replace")
    for end in range(1, len(text) + 1):
        starts = [end - len(word) for word in stop if text[:end].endswith(word)]
        if starts:
            return text[: min(starts)], True
    if final:
        return text, False
    held = 0
    for word in stop:
        for length in range(1, len(word)):
            if text.endswith(word[:length]):
                held = max(held, length)
    return text[: len(text) - held], False


def tokens_inside(token_bytes: Sequence[bytes], text: str) -> int:
    """How many leading tokens lie entirely inside `text`, the beginning of the reply's text."""
    inside, data = 0, b""
    for index, added in enumerate(token_bytes):
        data += added
        # The characters that these tokens touch: an open one at their end counts whole.
        if len(data.decode("utf-8", "replace")) > len(text):
            break
        inside = index + 1
    return inside

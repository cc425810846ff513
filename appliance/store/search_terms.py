"""What messages are looked up by: hashes of the letter groups in a text. Pure; never talks to a database.

Groups of three characters, as in PostgreSQL's pg_trgm, and of two where one is Chinese, Japanese, Korean
or another wide sign, whose words are that short. All characters count, spaces and marks too, so what
stands in a text is found as it stands. pg_trgm itself drops what the database's locale does not call a
letter (in the C locale all but ASCII), and a word index needs words, which many languages do not mark.

A term is a number, so no text is too long for an index; it depends on the tenant, so that one tenant's
search meets no other's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from appliance.errors import InvalidRequest
from appliance.store.text import storable

SEARCHED_CHARACTERS_MAX = 20_000
"""Of each message; what lies beyond is stored and shown, but not found."""

QUERY_CHARACTERS_MAX = 200
_SIGMAS = str.maketrans("\u03c2", "\u03c3")
WIDE_FROM = "\u2e80"
"""From the first block of East Asian radicals on, a character is taken for a word's half."""


def message_terms(tenant: str, text: str) -> list[int]:
    """The terms of a message, each once, ascending, as signed 32-bit numbers."""
    return _hashed(tenant, text[:SEARCHED_CHARACTERS_MAX])


def query_terms(tenant: str, text: str) -> list[int]:
    """The terms that a message with this text has all of.

    Raises InvalidRequest for a text too short to have any, too long, or with what no message can hold.
    """
    if len(text) > QUERY_CHARACTERS_MAX:
        raise InvalidRequest(
            f"at most {QUERY_CHARACTERS_MAX} characters are searched for, these are {len(text)}",
            param="search",
        )
    if storable(text) != text:
        raise InvalidRequest("U+0000 and lone surrogates cannot be searched for", param="search")
    terms = _hashed(tenant, text)
    if not terms:
        raise InvalidRequest(
            "a search needs 3 characters, or 2 of Chinese, Japanese or Korean", param="search"
        )
    return terms


def _hashed(tenant: str, text: str) -> list[int]:
    seed = crc32(storable(tenant).encode())
    numbers = {crc32(group.encode(), seed) for group in set(_groups(_folded(text)))}
    return sorted(number - (1 << 32) if number >> 31 else number for number in numbers)


def _folded(text: str) -> str:
    """Lower case where that is one character, as PostgreSQL's `lower` does it; and one sigma.

    Python's own makes the one at a word's end another letter, which it is not in the middle of a search.
    """
    lowered = text.translate(_SIGMAS).lower()
    if len(lowered) != len(text):
        lowered = "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)
    return lowered.translate(_SIGMAS)


def _groups(text: str) -> Iterator[str]:
    for start in range(len(text) - 1):
        if text[start] >= WIDE_FROM or text[start + 1] >= WIDE_FROM:
            yield text[start : start + 2]
    for start in range(len(text) - 2):
        yield text[start : start + 3]

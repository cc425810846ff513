"""Contents as token ids, with a refusal that names the field. Never: a chat format's own text."""

from __future__ import annotations

from collections.abc import Sequence

from appliance._core import Tokenizer
from appliance.errors import InvalidRequest
from appliance.tokens import TokenIds


def encode_content(tokenizer: Tokenizer, text: str, namespace: bytes, *, param: str) -> TokenIds:
    """Ids of one text; raises InvalidRequest when it is too long, or no ids but a control token's
    say it."""
    try:
        return tokenizer.encode(text, namespace)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error


def encode_contents(
    tokenizer: Tokenizer, named: Sequence[tuple[str, str]], namespace: bytes
) -> list[TokenIds]:
    """Ids of the contents of messages, given as (name, text); raises InvalidRequest as above."""
    try:
        return tokenizer.encode_many([text for _, text in named], namespace)
    except ValueError:
        # One by one, to find out which it was; those encoded before are in the memo.
        return [
            encode_content(tokenizer, text, namespace, param=f"{name}.content")
            for name, text in named
        ]

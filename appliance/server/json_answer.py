"""An answer of JSON. Never: decides what an answer holds."""

from __future__ import annotations

import msgspec
from aiohttp import web


def json_answer(value: object, *, status: int = 200) -> web.Response:
    """`value` as JSON, however msgspec writes it."""
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )

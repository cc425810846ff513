"""The chat page: static files read once at start, under a strict Content-Security-Policy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        # blob: a character's picture is fetched with the reader's key and shown by this page alone.
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Always asked for again, answered 304 while it is the same.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PageFile:
    body: bytes
    content_type: str
    etag: str


class Page:
    """The files of `appliance/server/page`, in memory; handlers for `/` and `/page/{name}`."""

    def __init__(self) -> None:
        self._files = {}
        for file in (resources.files("appliance.server") / "page").iterdir():
            body = file.read_bytes()
            self._files[file.name] = _PageFile(
                body=body,
                content_type=_TYPES["." + file.name.rpartition(".")[2]],
                etag=hashlib.sha256(body).hexdigest()[:32],
            )

    async def index(self, request: web.Request) -> web.Response:
        """The page."""
        return self._answer(request, "index.html")

    async def asset(self, request: web.Request) -> web.Response:
        """One of its scripts, styles or images."""
        return self._answer(request, request.match_info["name"])

    def _answer(self, request: web.Request, name: str) -> web.Response:
        file = self._files.get(name)
        if file is None:
            raise web.HTTPNotFound
        same = any(etag.value == file.etag for etag in request.if_none_match or ())
        response = web.Response(
            status=304 if same else 200,
            body=None if same else file.body,
            headers={**_HEADERS, "Content-Type": file.content_type},
        )
        response.etag = file.etag
        return response

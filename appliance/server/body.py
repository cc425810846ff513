"""Reads a request's body under limits of size, time and inflation. Never interprets the bytes."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection
from typing import TypeVar

import msgspec
from aiohttp import web

from appliance.server.failures import BodyTimeout, PayloadTooLarge, UnsupportedMediaType
from appliance.server.json_text import decode
from appliance.server.services import SERVICES

T = TypeVar("T")

_CHARSETS = ("utf-8", "utf8")
_INFLATE_STEP_BYTES = 1024 * 1024
_THREAD_FROM_BYTES = 256 * 1024  # decoding a larger body would hold the event loop for milliseconds


async def read_json(
    request: web.Request, decoder: msgspec.json.Decoder[T], *, bytes_max: int | None = None
) -> T:
    """Read and decode the body, of at most `bytes_max` bytes, or as many as `server.body_bytes_max` lets.

    Raises InvalidRequest and its kinds of `failures.py`.
    """
    _check_headers(request)
    if bytes_max is None:
        bytes_max = request.app[SERVICES].config.server.body_bytes_max
    body = await _read_in_time(request, bytes_max)
    if len(body) >= _THREAD_FROM_BYTES:
        return await asyncio.to_thread(decode, body, decoder)
    return decode(body, decoder)


async def read_file(request: web.Request, content_types: Collection[str], bytes_max: int) -> bytes:
    """The body as it is, of one of these content types; raises the kinds of `failures.py`."""
    if request.content_type not in content_types:
        known = ", ".join(content_types)
        raise UnsupportedMediaType(f"Send the file with one of these content types: {known}.")
    return await _read_in_time(request, bytes_max)


async def _read_in_time(request: web.Request, bytes_max: int) -> bytes:
    timeout_s = request.app[SERVICES].config.server.body_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request, bytes_max)
    except TimeoutError as error:
        raise BodyTimeout(f"The request body did not arrive within {timeout_s:g} s.") from error


def refuse_announced_size(request: web.Request, bytes_max: int) -> None:
    """Raise PayloadTooLarge when `Content-Length` already says that the body is too large."""
    if request.content_length is not None and request.content_length > bytes_max:
        raise _too_large(bytes_max)


def _check_headers(request: web.Request) -> None:
    if request.content_type != "application/json":
        raise UnsupportedMediaType("Send the body as Content-Type: application/json.")
    charset = request.charset
    if charset is not None and charset.lower() not in _CHARSETS:
        raise UnsupportedMediaType("The only charset read here is UTF-8.")


async def _read(request: web.Request, bytes_max: int) -> bytes:
    refuse_announced_size(request, bytes_max)
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise UnsupportedMediaType("The content encodings read here are gzip and deflate.")
    body = bytearray()
    if encoding == "identity":
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > bytes_max:
                raise _too_large(bytes_max)
        return bytes(body)
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: gzip or zlib by their header
    async for chunk in request.content.iter_any():
        await _inflate(inflater, chunk, body, bytes_max)
    if not inflater.eof:
        raise UnsupportedMediaType(f"The body is not complete {encoding} data.")
    return bytes(body)


async def _inflate(
    inflater: zlib._Decompress, chunk: bytes, body: bytearray, bytes_max: int
) -> None:
    """Append what `chunk` inflates to, a step at a time: a bomb stops at the limit, not after it."""
    while chunk and not inflater.eof:
        try:
            body += inflater.decompress(chunk, _INFLATE_STEP_BYTES)
        except zlib.error as error:
            raise UnsupportedMediaType("The body is not valid compressed data.") from error
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        chunk = inflater.unconsumed_tail
        await asyncio.sleep(0)


def _too_large(bytes_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request body is larger than the limit of {bytes_max} bytes.")

"""Clients of chat servers over HTTP, with streamed answers. Never: start a server, or say what to ask."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
import msgspec

from bench.chat_load import Answer, Answerer, Failure, LoadResult, Talk

ATTEMPTS = 3
REQUEST_S_MAX = 900.0


class ChatClient(Answerer):
    """One server's client, in OpenAI's form. Use as an async context."""

    def __init__(self, url: str, model: str, whole_answers: Mapping[str, Any]) -> None:
        """`whole_answers` are the fields with which this server does not end an answer early."""
        self._url = url
        self._fields = {
            "model": model,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **whole_answers,
        }
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_S_MAX),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def answer(self, talk: Talk, new_tokens: int, *, turn: int, result: LoadResult) -> Answer:
        """The whole history goes with every request, as from OpenAI's clients."""
        body = {**self._fields, "messages": talk.messages, "max_tokens": new_tokens}
        return await self._stream("/v1/chat/completions", body, turn, result)

    async def _stream(
        self, path: str, body: Mapping[str, Any], turn: int, result: LoadResult
    ) -> Answer:
        for _ in range(ATTEMPTS):
            started = time.perf_counter()
            try:
                async with self._session.post(f"{self._url}{path}", json=body) as response:
                    if response.status != 200:
                        raise Failure(f"{response.status} {(await response.text())[:300]}")
                    return await _read(response, started, turn)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                # Servers close idle connections; nothing of an answer had come.
                result.retries += 1
            except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
                raise Failure(f"{type(error).__name__}: {error}") from error
        raise Failure(f"the connection was closed {ATTEMPTS} times")


class ConversationClient(ChatClient):
    """This product's own clients: the server stores the conversations, a request is one message."""

    async def answer(self, talk: Talk, new_tokens: int, *, turn: int, result: LoadResult) -> Answer:
        """With the character that is the default, whatever the system message is."""
        if talk.conversation is None:
            async with self._session.post(f"{self._url}/api/conversations", json={}) as response:
                if response.status != 201:
                    raise Failure(f"{response.status} {(await response.text())[:300]}")
                talk.conversation = (await response.json())["id"]
        body = {**self._fields, "text": talk.messages[-1]["content"], "max_tokens": new_tokens}
        return await self._stream(
            f"/api/conversations/{talk.conversation}/messages", body, turn, result
        )


async def _read(response: aiohttp.ClientResponse, started: float, turn: int) -> Answer:
    """The answer of a stream, in OpenAI's form or this product's own. Raises Failure."""
    first_s: float | None = None
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    is_done = False
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            is_done = True
            continue
        chunk = msgspec.json.decode(data)
        if "error" in chunk:
            raise Failure(f"an error in the stream: {str(chunk['error'])[:300]}")
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or (chunk,):
            is_done = is_done or choice.get("finish_reason") is not None
            if text := choice.get("text") or (choice.get("delta") or {}).get("content"):
                first_s = time.perf_counter() - started if first_s is None else first_s
                pieces.append(text)
    if not is_done:
        raise Failure("the stream ended before its end")
    whole_s = time.perf_counter() - started
    details = usage.get("prompt_tokens_details") or usage
    return Answer(
        turn=turn,
        first_s=whole_s if first_s is None else first_s,
        whole_s=whole_s,
        pieces=len(pieces),
        text="".join(pieces),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        new_tokens=usage.get("completion_tokens", usage.get("new_tokens")),
    )

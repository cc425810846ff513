"""A load of chats over HTTP, in OpenAI's streaming form: who says what, and how long the answers took.

Each chat sends its whole history every turn, as OpenAI's clients do. Never: starts a server.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from bench import workload

CHARACTERS = 4
CHARACTER_WORDS = 300
MESSAGE_WORDS = 25
REPLY_WORDS = 35
"""Of an assistant's message in the history that a chat begins with."""
ATTEMPTS = 3
DECODE_TOKENS = 128
DECODE_ROUNDS = 3
REQUEST_S_MAX = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """`history`: messages before the first turn."""

    chats: int = 64
    at_once: int = 8
    turns: int = 6
    new_tokens: int = 48
    history: int = 0
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One message: seconds to its first text and to its end; counts are None where the server tells none.

    `pieces` are the chunks that held text.
    """

    turn: int
    first_s: float
    whole_s: float
    pieces: int
    text: str
    prompt_tokens: int | None
    cached_tokens: int | None
    new_tokens: int | None


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """What came of a load. `retries`: requests sent again because an idle connection had been closed."""

    seconds: float = 0.0
    retries: int = 0
    answers: list[Answer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The figures, as they are printed."""
        if not self.answers:
            return [f"no answer; {self._failures()}"]
        later = [answer for answer in self.answers if answer.turn >= 2] or self.answers
        first = [answer.first_s for answer in later]
        whole = [answer.whole_s for answer in self.answers]
        generated = [a.new_tokens if a.new_tokens is not None else a.pieces for a in self.answers]
        return [
            f"{len(self.answers) / self.seconds:.2f} messages/s "
            f"({len(self.answers)} in {self.seconds:.1f} s, "
            f"{sum(generated) / len(generated):.1f} tokens each), "
            f"{sum(generated) / self.seconds:.0f} new tokens/s",
            f"from turn 2 on: first token p50 {statistics.median(first):.2f} s, "
            f"p95 {_percentile(first, 0.95):.2f} s",
            f"whole message p50 {statistics.median(whole):.2f} s, "
            f"p95 {_percentile(whole, 0.95):.2f} s",
            f"cached of the prompt tokens: {_share(self.answers)}, from turn 2 on {_share(later)}",
            self._failures(),
        ]

    def _failures(self) -> str:
        shown = "".join(f"\n    {error}" for error in self.errors[:5])
        return f"{len(self.errors)} errors, {self.retries} retries{shown}"


class ChatClient:
    """One server's client. Use as an async context."""

    def __init__(self, url: str, model: str, connections: int) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            timeout=aiohttp.ClientTimeout(total=REQUEST_S_MAX),
        )

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def load(self, shape: LoadShape) -> LoadResult:
        """All chats, so many at once."""
        result = LoadResult()
        chats = iter(range(shape.chats))
        characters = _characters(shape.seed)

        async def work() -> None:
            for chat in chats:
                await self._chat(chat, characters[chat % CHARACTERS], shape, result)

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(shape.at_once)))
        result.seconds = time.perf_counter() - started
        return result

    async def decode_rate(self) -> float:
        """Tokens a second of one stream after its first, the median of a few."""
        rates = []
        for number in range(DECODE_ROUNDS):
            question = f"Tell me a long story, number {number}, about a dragon and a tavern."
            messages = [{"role": "user", "content": question}]
            answer = await self._ask(messages, DECODE_TOKENS, turn=1, result=LoadResult())
            count = answer.new_tokens if answer.new_tokens is not None else answer.pieces
            rates.append((count - 1) / max(answer.whole_s - answer.first_s, 1e-9))
        return statistics.median(rates)

    async def _chat(self, chat: int, character: str, shape: LoadShape, result: LoadResult) -> None:
        source = random.Random(shape.seed * 1_000_003 + chat)
        messages = [{"role": "system", "content": character}]
        for index in range(shape.history):
            role, words = ("user", MESSAGE_WORDS) if index % 2 == 0 else ("assistant", REPLY_WORDS)
            messages.append({"role": role, "content": workload.english(source, words)})
        for turn in range(1, shape.turns + 1):
            content = workload.english(source, MESSAGE_WORDS)
            messages.append({"role": "user", "content": content})
            try:
                answer = await self._ask(messages, shape.new_tokens, turn=turn, result=result)
            except (aiohttp.ClientError, TimeoutError, RuntimeError, msgspec.MsgspecError) as error:
                result.errors.append(f"chat {chat}, turn {turn}: {type(error).__name__}: {error}")
                return
            result.answers.append(answer)
            messages.append({"role": "assistant", "content": answer.text or "..."})

    async def _ask(
        self, messages: list[dict[str, str]], new_tokens: int, *, turn: int, result: LoadResult
    ) -> Answer:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": new_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for attempt in range(ATTEMPTS):
            started = time.perf_counter()
            try:
                async with self._session.post(self._url, json=body) as response:
                    if response.status != 200:
                        raise RuntimeError(f"{response.status} {(await response.text())[:300]}")
                    return await _read(response, started, turn)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                # Servers close idle connections; nothing of an answer had come.
                if attempt + 1 == ATTEMPTS:
                    raise
                result.retries += 1
        raise AssertionError("every attempt returns or raises")


async def _read(response: aiohttp.ClientResponse, started: float, turn: int) -> Answer:
    """The answer of a stream. Raises RuntimeError when it ends early or holds an error."""
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
            raise RuntimeError(f"an error in the stream: {str(chunk['error'])[:300]}")
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            is_done = is_done or choice.get("finish_reason") is not None
            if text := (choice.get("delta") or {}).get("content"):
                first_s = time.perf_counter() - started if first_s is None else first_s
                pieces.append(text)
    if not is_done:
        raise RuntimeError("the stream ended before its end")
    whole_s = time.perf_counter() - started
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        turn=turn,
        first_s=whole_s if first_s is None else first_s,
        whole_s=whole_s,
        pieces=len(pieces),
        text="".join(pieces),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        new_tokens=usage.get("completion_tokens"),
    )


def _characters(seed: int) -> list[str]:
    source = random.Random(seed)
    return [f"You are {workload.english(source, CHARACTER_WORDS - 2)}." for _ in range(CHARACTERS)]


def _percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _share(answers: Iterable[Answer]) -> str:
    told = [(a.cached_tokens, a.prompt_tokens) for a in answers]
    known = [(c, p) for c, p in told if c is not None and p is not None]
    if not known:
        return "not told"
    return f"{sum(c for c, _ in known) / max(sum(p for _, p in known), 1):.2f}"

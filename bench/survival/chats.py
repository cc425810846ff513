"""Chats over HTTP that go on whatever happens, and an account of what they were told.

A turn is sent again, under its key, until its `done` has come: so what is stored has to be what was
acknowledged, all of it, once and in order. Never: breaks anything, or starts a process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

import aiohttp
import msgspec

from bench import workload

SILENT_S_MAX = 60.0
"""The server pings every two seconds; a restart and a watchdog together take a fraction of this."""

TURN_S_MAX = 180.0
"""A turn that nobody answers for so long, with the retries, is lost to its user. Counted from the last
fault on: a slow engine may be killed again and again before it gets to one of its users."""

RETRY_S = (0.1, 1.0)
REPLY_TOKENS = 16
AGAIN = frozenset({409, 500, 503})
"""What a client tries again: the turn it lost still runs, or something is away."""

NOT_FOUND = 404


class Promise(Enum):
    """What a product was found to break."""

    LOST_TURNS = "lost turns"
    WRONG_ANSWERS = "wrong answers"
    LEAKED = "leaked"
    STUCK = "stuck"
    NOT_RECOVERED = "not recovered"
    NO_ORDERLY_END = "no orderly end"
    TEXT_IN_LOGS = "text in logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One fault of the product that a conversation has met."""

    promise: Promise
    conversation: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One acknowledged turn: what was said, and the reply as `done` had it."""

    text: str
    reply_id: str
    reply: str
    finish_reason: str


@dataclass(slots=True, kw_only=True)
class Chat:
    """One conversation and its acknowledged turns."""

    conversation: str
    turns: list[Told] = field(default_factory=list)


@dataclass(slots=True)
class Account:
    """What happened to all turns, and what of it was wrong."""

    chats: list[Chat] = field(default_factory=list)
    acknowledged: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    wrong: list[Broken] = field(default_factory=list)
    done_at: list[tuple[float, float]] = field(default_factory=list)
    """Of each acknowledged turn, when its last attempt was sent and when it was done (monotonic)."""

    broken_at: float = 0.0
    """When something was last done to the product (monotonic)."""


class Door:
    """The HTTP door of one product. Use as an async context."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(sock_read=SILENT_S_MAX),
        )

    async def __aenter__(self) -> Door:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def json(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and answer of one call."""
        async with self._session.request(method, self.url + path, json=body) as response:
            data = await response.read()
            return response.status, msgspec.json.decode(data) if data else None

    async def events(self, path: str, body: object) -> tuple[int, list[tuple[str, Any]]]:
        """Status and events of one stream; with another status than 200 the answer as event `refused`.

        Raises aiohttp.ClientError when it breaks off, TimeoutError when it is silent for too long.
        """
        async with self._session.post(self.url + path, json=body) as response:
            if response.status != 200:
                return response.status, [("refused", await response.json())]
            found: list[tuple[str, Any]] = []
            name = ""
            async for line in response.content:
                if line.startswith(b"event:"):
                    name = line[6:].strip().decode()
                elif line.startswith(b"data:"):
                    found.append((name, msgspec.json.decode(line[5:])))
            return 200, found


class Chatter:
    """One user: conversation after conversation, each of so many turns at most."""

    def __init__(
        self, door: Door, account: Account, *, seed: int, turns: int, gate: asyncio.Event
    ) -> None:
        """No turn begins while `gate` is closed."""
        self._door = door
        self._account = account
        self._random = random.Random(seed)
        self._turns = turns
        self._gate = gate
        self.is_talking = False

    async def run(self) -> None:
        """Until cancelled, which is for the time in which the gate is closed."""
        while True:
            chat = Chat(conversation=await self._open())
            self._account.chats.append(chat)
            for _ in range(self._random.randint(1, self._turns)):
                await self._gate.wait()
                self.is_talking = True
                try:
                    if not await self._turn(chat):
                        break
                finally:
                    self.is_talking = False

    async def _open(self) -> str:
        while True:
            await self._gate.wait()
            try:
                status, answer = await self._door.json("POST", "/api/conversations", {})
            except (aiohttp.ClientError, TimeoutError):
                status = 0
            if status == 201:
                return str(answer["id"])
            self._account.endings[f"open: {status or 'broken off'}"] += 1
            await asyncio.sleep(self._random.uniform(*RETRY_S))

    async def _turn(self, chat: Chat) -> bool:
        """One turn until it is acknowledged; False when the product has lost it for good."""
        text = workload.english(self._random, self._random.randint(2, 8))
        body = {
            "text": text,
            "turn_key": str(UUID(int=self._random.getrandbits(128), version=4)),
            "parent_id": chat.turns[-1].reply_id if chat.turns else None,
            "temperature": 0,
            "max_tokens": REPLY_TOKENS,
        }
        begun_at = time.monotonic()
        while True:
            sent_at = time.monotonic()
            told = await self._attempt(chat, body)
            if told is not None:
                chat.turns.append(told)
                self._account.acknowledged += 1
                self._account.done_at.append((sent_at, time.monotonic()))
                return True
            if time.monotonic() > max(begun_at, self._account.broken_at) + TURN_S_MAX:
                self._fault(chat, Promise.STUCK, f"no answer for {TURN_S_MAX:g} s")
                return False
            if any(broken.conversation == chat.conversation for broken in self._account.wrong):
                return False
            await asyncio.sleep(self._random.uniform(*RETRY_S))

    async def _attempt(self, chat: Chat, body: dict[str, Any]) -> Told | None:
        path = f"/api/conversations/{chat.conversation}/messages"
        try:
            status, events = await self._door.events(path, body)
        except TimeoutError:
            self._fault(chat, Promise.STUCK, f"a stream was silent for {SILENT_S_MAX:g} s")
            return None
        except aiohttp.ClientError:
            self._account.endings["broken off"] += 1
            return None
        if status != 200:
            self._account.endings[f"refused: {events[0][1]['error']['code']}"] += 1
            if status not in AGAIN:
                promise = Promise.LOST_TURNS if status == NOT_FOUND else Promise.WRONG_ANSWERS
                self._fault(chat, promise, f"refused with {status}: {events[0][1]['error']}")
            return None
        last = [data for name, data in events if name in ("done", "error")]
        if len(last) != 1 or events[-1][0] not in ("done", "error"):
            names = [name for name, _ in events[-3:]]
            sentence = f"a stream with {len(last)} terminal events: … {names}"
            self._fault(chat, Promise.STUCK, sentence)
            return None
        name, data = events[-1]
        if name == "error":
            self._account.endings[f"error: {data['error']['code']}"] += 1
            return None
        self._account.endings["done"] += 1
        message = data["message"]
        shown = "".join(data["text"] for name, data in events if name == "delta")
        if shown != message["text"]:
            sentence = f"shown {shown!r}, and `done` says {message['text']!r}"
            self._fault(chat, Promise.WRONG_ANSWERS, sentence)
        return Told(
            text=str(body["text"]),
            reply_id=message["id"],
            reply=message["text"],
            finish_reason=data["finish_reason"],
        )

    def _fault(self, chat: Chat, promise: Promise, sentence: str) -> None:
        self._account.wrong.append(
            Broken(promise=promise, conversation=chat.conversation, sentence=sentence)
        )

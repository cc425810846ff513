"""Users of a scaled day: they come and go, go on with old chats or begin new ones, and do all one can.

Never: breaks the product, or judges it; counts are in `Traffic`.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench import workload
from bench.survival.chats import Door

WAVES = 3
"""Equal waves of traffic: the last is held against the one before it, the first warms up."""

ACTIONS = (
    ("send", 84),
    ("regenerate", 5),
    ("edit", 3),
    ("leave", 3),
    ("stop", 2),
    ("read", 2),
    ("search", 1),
)
NEW_CHAT = 0.35
DELETES = 0.02
SESSION_TURNS = (1, 12)
THINKS_S_MAX = 0.3
NIGHT = 0.15
"""Users at the lowest point, as a share of those at the highest."""


@dataclass(slots=True)
class Talk:
    """A conversation as its user knows it: ids of acknowledged replies, the newest last."""

    conversation: str
    replies: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What was asked and what came of it. `turns` counts replies that were acknowledged."""

    wanted: int
    new_tokens: int
    turns: int = 0
    sessions: int = 0
    deleted: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    talks: list[Talk] = field(default_factory=list)

    @property
    def share(self) -> float:
        """How much of the day is over."""
        return self.turns / self.wanted

    @property
    def wave(self) -> int:
        """Which wave it is, from 0 on."""
        return min(int(self.share * WAVES), WAVES - 1)

    def users(self, at_most: int) -> int:
        """How many are there at this time of the day."""
        height = (1 - math.cos(2 * math.pi * WAVES * self.share)) / 2
        return max(1, round(at_most * (NIGHT + (1 - NIGHT) * height)))


async def day(door: Door, traffic: Traffic, *, users: int, seed: int) -> None:
    """Sessions one after the other, as many at once as there are users, until the day is over."""
    source = random.Random(seed)
    sessions: set[asyncio.Task[None]] = set()
    while traffic.turns < traffic.wanted:
        while len(sessions) < traffic.users(users):
            session = _Session(door, traffic, random.Random(source.getrandbits(64)))
            sessions.add(asyncio.create_task(session.run()))
        ended, sessions = await asyncio.wait(
            sessions, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
        )
        for task in ended:
            task.result()
    await asyncio.gather(*sessions)


class _Session:
    """One user's visit."""

    def __init__(self, door: Door, traffic: Traffic, source: random.Random) -> None:
        self._door = door
        self._traffic = traffic
        self._random = source

    async def run(self) -> None:
        traffic, source = self._traffic, self._random
        traffic.sessions += 1
        try:
            talk = await self._talk()
            if talk is None:
                return
            for _ in range(source.randint(*SESSION_TURNS)):
                (action,) = source.choices(
                    [name for name, _ in ACTIONS], [weight for _, weight in ACTIONS]
                )
                await self._act(action, talk)
                await asyncio.sleep(source.uniform(0, THINKS_S_MAX))
            if source.random() < DELETES:
                await self._delete(talk)
            else:
                traffic.talks.append(talk)
        except (aiohttp.ClientError, TimeoutError) as error:
            traffic.failures[f"{type(error).__name__}: {error}"] += 1

    async def _talk(self) -> Talk | None:
        """An old conversation, which is this user's alone meanwhile, or a new one."""
        talks = self._traffic.talks
        if talks and self._random.random() > NEW_CHAT:
            # The newest are gone on with most.
            place = int(len(talks) * (1 - self._random.random() ** 3))
            return talks.pop(min(place, len(talks) - 1))
        status, answer = await self._door.json("POST", "/api/conversations", {})
        if status != 201:
            self._traffic.failures[f"open: {status} {answer}"] += 1
            return None
        return Talk(str(answer["id"]))

    async def _act(self, action: str, talk: Talk) -> None:
        self._traffic.counts[action] += 1
        path = f"/api/conversations/{talk.conversation}"
        if action == "read":
            await self._expect("GET", path)
        elif action == "search":
            word = workload.english(self._random, 1)
            await self._expect("GET", f"/api/conversations?limit=20&search={word}aa"[:80])
        elif action == "regenerate" and talk.replies:
            await self._stream(talk, f"{path}/regenerate", {"message_id": talk.replies[-1]})
        else:
            body: dict[str, Any] = {"text": workload.english(self._random, self._words())}
            if action == "edit" and len(talk.replies) > 1:
                body["parent_id"] = talk.replies[self._random.randrange(len(talk.replies) - 1)]
            if action == "leave":
                await self._leave(f"{path}/messages", body)
            elif action == "stop":
                sending = asyncio.create_task(self._stream(talk, f"{path}/messages", body))
                await asyncio.sleep(self._random.uniform(0, 0.05))
                await self._door.json("POST", f"{path}/cancel", {})
                await sending
            else:
                await self._stream(talk, f"{path}/messages", body)

    def _words(self) -> int:
        return self._random.randint(2, 10)

    async def _stream(self, talk: Talk, path: str, fields: dict[str, Any]) -> None:
        body = {**fields, "max_tokens": self._traffic.new_tokens}
        for _ in range(5):
            status, events = await self._door.events(path, body)
            # A turn that its user left is still being ended.
            if status != 409:
                break
            await asyncio.sleep(0.1)
        name, data = events[-1]
        if name != "done":
            code = data["error"]["code"] if "error" in data else name
            self._traffic.failures[f"{status} {name} {code}"] += 1
            return
        talk.replies.append(data["message"]["id"])
        self._traffic.turns += 1

    async def _leave(self, path: str, fields: dict[str, Any]) -> None:
        """Closes the window in the middle of the reply."""
        body = {**fields, "max_tokens": self._traffic.new_tokens}
        try:
            async with asyncio.timeout(self._random.uniform(0.01, 0.15)):
                await self._door.events(path, body)
        except TimeoutError:
            return

    async def _expect(self, method: str, path: str) -> None:
        status, answer = await self._door.json(method, path)
        if status != 200:
            self._traffic.failures[f"{status} {answer}"] += 1

    async def _delete(self, talk: Talk) -> None:
        status, _ = await self._door.json("DELETE", f"/api/conversations/{talk.conversation}")
        self._traffic.failures[f"delete: {status}"] += status != 204
        self._traffic.deleted += status == 204

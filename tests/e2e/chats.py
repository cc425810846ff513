"""Chats that go on whatever happens to the database, and what they compare with it in the end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import urllib.error
from pathlib import Path

from appliance.dbops.target import Target
from tests.e2e.box import Box, Event

NIGHTLY = "APPLIANCE_TESTS_NIGHTLY" in os.environ
TURN_TIMEOUT_S = 120
PATH = """\
SELECT role, text, depth FROM appliance.messages
WHERE conversation_id = $1::uuid
ORDER BY depth
"""
"""A conversation's messages, of which none has been edited or swiped: the root first."""


def postgres_of(box: Box) -> Path:
    return box.data_dir / "postgres"


async def execute(box: Box, *statements: str) -> None:
    connection = await Target(directory=postgres_of(box)).connect()
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def stored_in(box: Box, conversation: str) -> list[tuple[str, str]]:
    """Role and text of each message; one is below the other, and there is no branch."""
    connection = await Target(directory=postgres_of(box)).connect()
    try:
        rows = await connection.fetch(PATH, conversation)
    finally:
        await connection.close()
    assert [row["depth"] for row in rows] == list(range(len(rows)))
    return [(row["role"], row["text"]) for row in rows]


class Chatter(threading.Thread):
    """Sends message after message in one conversation until told to stop; remembers what was done."""

    def __init__(self, box: Box, conversation: str) -> None:
        super().__init__(daemon=True)  # a test that failed leaves it behind
        self.box = box
        self.conversation = conversation
        self.done: list[dict[str, object]] = []
        self.said: list[str] = []
        self.errors: list[str] = []
        self.deltas = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self.stopping.is_set():
            turn += 1
            try:
                self.one_turn(f"Turn {turn}: tell me about rivers.")
            except (OSError, urllib.error.URLError) as error:
                self.errors.append(str(error))
                time.sleep(0.2)

    def one_turn(self, text: str) -> None:
        last: Event | None = None
        for event in self.box.events(
            f"/api/conversations/{self.conversation}/messages", {"text": text, "max_tokens": 24}
        ):
            last = event
            self.deltas += event.name == "delta"
        if last is not None and last.name == "done":
            self.done.append(last.data["message"])
            self.said.append(text)
        else:
            self.errors.append("no done" if last is None else str(last.data))


def all_took_another_turn(
    chatters: list[Chatter], turns: int = 1, *, at_least_s: float = 0
) -> None:
    """Wait until each of them has taken so many turns more, and so long."""
    until = time.monotonic() + at_least_s
    before = [len(chatter.done) for chatter in chatters]
    deadline = until + TURN_TIMEOUT_S
    while time.monotonic() < until or any(
        len(c.done) < n + turns for c, n in zip(chatters, before, strict=True)
    ):
        told = [(len(c.done), c.is_alive(), c.errors[-1:]) for c in chatters]
        assert time.monotonic() < deadline, f"from {before} turns to {told}"
        time.sleep(0.1)


def finish(chatters: list[Chatter]) -> None:
    for chatter in chatters:
        chatter.stopping.set()
    for chatter in chatters:
        chatter.join(120)
        assert not chatter.is_alive()
        assert chatter.errors == []


def assert_stored_once_and_in_order(box: Box, chatters: list[Chatter]) -> None:
    wait_until(lambda: box.metric("appliance_journal_entries") == 0, 60)
    for chatter in chatters:
        stored = asyncio.run(stored_in(box, chatter.conversation))
        assert [text for role, text in stored if role == "assistant"] == [
            message["text"] for message in chatter.done
        ]
        assert [text for role, text in stored if role == "user"] == chatter.said


def wait_until(condition: object, seconds: float) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)

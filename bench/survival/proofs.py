"""What has to hold once all is calm: nothing lost, nothing doubled, nothing held, nothing else answered.

Never: breaks anything; what it finds are sentences for the verdict.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from appliance.errors import EngineUnavailable
from appliance.wire.client import EngineClient
from bench.survival.chats import REPLY_TOKENS, Account, Chat, Door

CALM_S_MAX = 60.0
POLL_S = 0.1
SAID_LETTERS_MIN = 16
"""Shorter texts (`a to`) are in the words of any log."""
_HELD = re.compile(r"^appliance_(streams_running|journal_entries) (\S+)$", re.MULTILINE)


async def until_calm(door: Door) -> None:
    """Ready, no stream, an empty journal. Raises TimeoutError saying what is left."""
    seen: object = "no answer"
    try:
        async with asyncio.timeout(CALM_S_MAX):
            while True:
                try:
                    status, told = await door.json("GET", "/ready")
                    held = await _held(door)
                except (aiohttp.ClientError, TimeoutError) as error:
                    seen = repr(error)
                else:
                    if status == 200 and not any(held.values()):
                        return
                    seen = (told, held)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise TimeoutError(f"not calm after {CALM_S_MAX:g} s: {seen}") from None


async def leaked(socket_path: Path) -> list[str]:
    """Pages, sequences and broken rules of an engine that has nothing to do."""
    async with EngineClient(socket_path) as client:
        async with asyncio.timeout(CALM_S_MAX):
            await client.wait_ready()
        for _ in range(int(CALM_S_MAX / POLL_S)):
            # Closing a reply goes on for a step or two after its end was told.
            stats = await client.ask()
            if not any(stats.values[name] for name in ("running", "waiting", "closing")):
                break
            await asyncio.sleep(POLL_S)
        try:
            stats = await client.ask(check=True)
        except EngineUnavailable as error:
            return [f"the engine answers no check: {error.message}"]
    values = stats.values
    found = [
        f"{values[name]:.0f} {name} in an idle engine"
        for name in ("running", "waiting", "closing", "pages_leased")
        if values[name]
    ]
    if stats.check_failure is not None:
        found.append(f"the engine's check: {stats.check_failure}")
    if values["audit_alarm"]:
        found.append(f"{values['audit_failures']:.0f} audits failed")
    return found


async def stored_otherwise(door: Door, account: Account) -> list[str]:
    """Each conversation's shown path against what its client was told."""
    found: list[str] = []
    for chat in account.chats:
        status, answer = await door.json("GET", f"/api/conversations/{chat.conversation}")
        if status != 200:
            found.append(f"{chat.conversation}: LOST, {status} for {len(chat.turns)} turns")
            continue
        found += _differences(chat, answer["messages"])
    return found


def _differences(chat: Chat, messages: list[dict[str, Any]]) -> Iterator[str]:
    by_id = {message["id"]: message for message in messages}
    told = [turn.reply_id for turn in chat.turns]
    for number, turn in enumerate(chat.turns):
        reply = by_id.get(turn.reply_id)
        if reply is None:
            yield f"{chat.conversation}: LOST, turn {number} of {len(told)} was acknowledged"
            continue
        said = by_id[reply["parent_id"]]
        if (said["text"], reply["text"]) != (turn.text, turn.reply):
            yield (
                f"{chat.conversation}: turn {number} is stored as {said['text']!r}, "
                f"{reply['text']!r}; told was {turn.text!r}, {turn.reply!r}"
            )
        before = told[number - 1] if number else None
        if said["parent_id"] != before:
            yield f"{chat.conversation}: turn {number} hangs below {said['parent_id']}, not {before}"
    replies = [message["id"] for message in messages if message["role"] == "assistant"]
    if extra := len(replies) - len(told):
        yield f"{chat.conversation}: {extra} replies more than were acknowledged ({len(told)})"


async def answered_otherwise(door: Door, account: Account, *, sample: int, seed: int) -> list[str]:
    """Replies made again by an engine that has cached nothing: greedy, so they have to be the same."""
    turns = [
        (chat, turn)
        for chat in account.chats
        for turn in chat.turns
        if turn.finish_reason in ("stop", "length")
    ]
    found: list[str] = []
    for chat, turn in random.Random(seed).sample(turns, min(sample, len(turns))):
        body = {"message_id": turn.reply_id, "temperature": 0, "max_tokens": REPLY_TOKENS}
        path = f"/api/conversations/{chat.conversation}/regenerate"
        status, events = await door.events(path, body)
        name, data = events[-1]
        if status != 200 or name != "done":
            found.append(f"{chat.conversation}: not made again: {status} {data}")
        elif data["message"]["text"] != turn.reply:
            found.append(
                f"{chat.conversation}: WRONG, {turn.reply!r} and without a cache "
                f"{data['message']['text']!r}"
            )
    return found


def told_in_logs(account: Account, folders: Iterable[Path]) -> list[str]:
    """What users said, word for word, in any log of any process."""
    logs = {
        path: path.read_text(encoding="utf-8", errors="replace")
        for folder in folders
        for path in folder.glob("*.log")
    }
    texts = {turn.text for chat in account.chats for turn in chat.turns}
    said = {text for text in texts if len(text) >= SAID_LETTERS_MIN}
    return [
        f"{path.name} holds what a user said: {text!r}"
        for path, log in logs.items()
        for text in said
        if text in log
    ]


async def _held(door: Door) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{door.url}/metrics") as response:
        return {name: float(value) for name, value in _HELD.findall(await response.text())}

"""The turns that run now: one at most in a conversation. Owns the claims; never starts or stores one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias
from uuid import UUID

from appliance.chat.generation import Generation
from appliance.errors import Conflict

ENDING_WAIT_S_MAX = 35.0

Key: TypeAlias = tuple[str, UUID]
"""(tenant, conversation id)"""


class RunningTurn:
    """A claim on a conversation, from before its prompt is built until its reply is stored.

    Who deletes from the conversation holds such a claim too, without a generation.
    """

    def __init__(self) -> None:
        self._generation: Generation | None = None
        self._released = asyncio.Event()
        self.is_ending = False
        self.is_stopped = False

    def attach(self, generation: Generation) -> None:
        """Name the request that `stop` ends; one that was stopped before does not start."""
        self._generation = generation
        if self.is_stopped:
            generation.stop()

    def stop(self) -> None:
        """End the reply where it was delivered."""
        self.is_stopped = self.is_ending = True
        if self._generation is not None:
            self._generation.stop()

    async def wait_released(self) -> None:
        """Until the turn is stored."""
        await self._released.wait()

    def set_released(self) -> None:
        """The turn is stored, or nothing of it is to be stored."""
        self._released.set()


class RunningTurns:
    """Claims by conversation."""

    def __init__(self) -> None:
        self._turns: dict[Key, RunningTurn] = {}

    async def claim(self, key: Key) -> RunningTurn:
        """Claim a conversation; a turn that is ending is waited for. Raises Conflict."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING_WAIT_S_MAX):
                while (running := self._turns.get(key)) is not None and running.is_ending:
                    await running.wait_released()
        return self._taken(key)

    @asynccontextmanager
    async def none_of(self, key: Key) -> AsyncIterator[None]:
        """Hold a conversation while no turn of it runs: one that does is stopped and waited for.

        Turns that come meanwhile wait. Raises Conflict when the running one is not stored in time.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING_WAIT_S_MAX):
                # A turn that also waited may have been first to take the place of the one that ended.
                while (running := self._turns.get(key)) is not None:
                    running.stop()
                    await running.wait_released()
        self._taken(key).is_ending = True
        try:
            yield
        finally:
            self.release(key)

    def release(self, key: Key) -> None:
        """Give a claim back."""
        self._turns.pop(key).set_released()

    def stop(self, key: Key) -> bool:
        """Stop the running turn of a conversation; False when there is none."""
        running = self._turns.get(key)
        if running is None:
            return False
        running.stop()
        return True

    async def stop_all(self, wait_s: float) -> None:
        """Stop every running turn, and wait at most that long until all are stored."""
        stopped = list(self._turns.values())
        for running in stopped:
            running.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                for running in stopped:
                    await running.wait_released()

    def __len__(self) -> int:
        return len(self._turns)

    def _taken(self, key: Key) -> RunningTurn:
        if key in self._turns:
            raise Conflict("a turn of this conversation is already running")
        claimed = self._turns[key] = RunningTurn()
        return claimed

"""What shipping a version has cost the cache, measured afterwards. Never: foretells it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from appliance.named_sql import read_queries
from appliance.store.pool import Pool, acquired

QUERIES = read_queries("appliance.experiment", "shipping")
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Replies of some chats, with the tokens of their prompts and those of them that were cached.

    `first_computed` are the tokens that the first of these replies computed.
    """

    chats: int
    replies: int
    prompt_tokens: int
    hit_tokens: int
    first_computed: int

    @property
    def computed_each(self) -> float:
        """Prompt tokens that a reply computed."""
        return (self.prompt_tokens - self.hit_tokens) / self.replies

    @property
    def hit_ratio(self) -> float:
        """The share of prompt tokens found in the cache; 1 where there was nothing to find."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """Arm `arm` was shipped `at`. `new`: chats opened since, with its version; `kept`: older ones, with
    the version that they kept. None where nobody had a reply."""

    arm: str
    at: datetime
    new: Served | None
    kept: Served | None


async def shipped(pool: Pool, character: str, version: str, *, arm: str, at: datetime) -> Shipped:
    """What has been served since. Raises TimeoutError, and what the database raises."""
    async with asyncio.timeout(TIMEOUT_S), acquired(pool) as connection:
        rows = await connection.fetch(QUERIES["replies_since"], character, version, at)
    found = {
        row["is_new"]: Served(
            chats=row["chats"],
            replies=row["replies"],
            prompt_tokens=row["prompt_tokens"],
            hit_tokens=row["hit_tokens"],
            first_computed=row["first_computed"],
        )
        for row in rows
    }
    return Shipped(arm=arm, at=at, new=found.get(True), kept=found.get(False))

"""Finished turns a second into the embedded cluster, each answered after its commit, synchronous
commit on.

Chats in a closed loop: each appends its next turn when the last is answered. A turn is a message of
172 characters and a reply of 40 tokens, with their token ids. In groups, and one transaction a turn
for comparison; then the same into the journal, and back. The cluster's data lies in a folder of the
disk that is measured (first argument; else the working directory): in memory, synchronous commit
costs nothing.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import uvloop

from appliance.config import DatabaseConfig
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.store.journal import Journal
from appliance.store.journalled_ledger import JournalledLedger
from appliance.store.migrate import migrate
from appliance.store.pool import Pool, connect
from appliance.store.records import FinishedTurn, NewConversation, NewMessage
from appliance.store.replay import Replay
from appliance.store.turn_batch import BatchLimits
from appliance.store.turn_writer import TurnWriter
from appliance.store.write_gate import WriteGate
from appliance.tokens import pack
from bench import workload

TENANT = "bench"
CHATS = (16, 64, 256)
SECONDS = 8.0
WARM_S = 2.0
REPLY_TOKENS = 40
JOURNAL_BYTES = 4 << 30
NEXT_XID = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
XIDS_LEFT = 2**31 - 3_000_000
DAY_S = 86_400


@dataclass(slots=True, kw_only=True)
class Chat:
    """One conversation."""

    conversation_id: UUID
    messages: list[str]
    parent_id: UUID | None = None
    turns: int = 0

    def next_turn(self) -> FinishedTurn:
        """What it appends next."""
        text = self.messages[self.turns % len(self.messages)]
        self.turns += 1
        ids = pack(random.choices(range(49_000), k=REPLY_TOKENS))
        user = NewMessage(
            message_id=uuid4(), role="user", text=text, token_ids=ids, tokenizer="f" * 64
        )
        reply = NewMessage(
            message_id=uuid4(),
            role="assistant",
            text=text[:160],
            token_ids=ids,
            tokenizer="f" * 64,
            finish_reason="stop",
            prompt_tokens=900,
            prefix_hit_tokens=850,
        )
        return FinishedTurn(
            turn_key=uuid4(),
            tenant=TENANT,
            conversation_id=self.conversation_id,
            parent_id=self.parent_id,
            user=user,
            assistant=reply,
        )


async def load(
    chats: list[Chat], append: Callable[[FinishedTurn], Awaitable[object]], seconds: float
) -> tuple[float, list[float]]:
    """(turns a second, the seconds that each took)."""
    until = time.perf_counter() + seconds
    spent: list[float] = []

    async def talk(chat: Chat) -> None:
        while (began := time.perf_counter()) < until:
            turn = chat.next_turn()
            await append(turn)
            chat.parent_id = turn.assistant.message_id
            spent.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*map(talk, chats))
    return len(spent) / (time.perf_counter() - began), spent


async def new_chats(writer: TurnWriter, count: int) -> list[Chat]:
    """Conversations without a turn."""
    messages = workload.messages(500, seed=11)
    chats = [Chat(conversation_id=uuid4(), messages=messages) for _ in range(count)]
    now = datetime.now(UTC)
    await asyncio.gather(
        *(
            writer.open(
                NewConversation(tenant=TENANT, conversation_id=chat.conversation_id, created_at=now)
            )
            for chat in chats
        )
    )
    return chats


async def measure_writer(pool: Pool, name: str, writer: TurnWriter, count: int) -> None:
    """One line."""
    chats = await new_chats(writer, count)
    await load(chats, writer.append, WARM_S)
    before = await pool.fetchval(NEXT_XID)
    rate, spent = await load(chats, writer.append, SECONDS)
    xids = (await pool.fetchval(NEXT_XID) - before) / len(spent) * 1000
    days = XIDS_LEFT / (rate * xids / 1000) / DAY_S
    print(
        f"{name}, {count} chats: {rate:,.0f} turns/s, {latencies(spent)}, {xids:.1f} transaction IDs "
        f"for 1,000 turns: the whole space would last {days:,.0f} days at this rate",
        flush=True,
    )


def latencies(spent: list[float]) -> str:
    """Half and nearly all."""
    cuts = statistics.quantiles(spent, n=100)
    return f"p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms"


async def measure_journal(pool: Pool, folder: Path, count: int) -> None:
    """Into the journal, and out of it."""
    journal = Journal(folder / "journal", bytes_max=JOURNAL_BYTES)
    gate = WriteGate(in_maintenance=lambda: is_away)
    ledger, is_away = JournalledLedger(pool, journal, gate), False
    chats = await new_chats(ledger._writer, count)
    is_away = True
    rate, spent = await load(chats, ledger.append_turn, SECONDS)
    print(f"into the journal, {count} chats: {rate:,.0f} turns/s, {latencies(spent)}", flush=True)
    is_away = False
    replay = Replay(journal, pool, gate)
    began = time.perf_counter()
    done = await replay.drain(30)
    per_s = done.entries / (time.perf_counter() - began)
    print(
        f"out of it: {per_s:,.0f} turns/s, {replay.tally.batches / done.entries * 1000:.1f} "
        "transaction IDs for 1,000 turns",
        flush=True,
    )
    await journal.close()


async def run(url: str, folder: Path) -> None:
    """Every measurement, over a new cluster; the journal lies in `folder`."""
    pool = await connect(url, DatabaseConfig())
    await migrate(pool)
    for setting in ("synchronous_commit", "fsync", "full_page_writes"):
        assert await pool.fetchval(f"SHOW {setting}") == "on"
    for count in CHATS:
        for lanes, entries in ((1, 64), (2, 32)):
            limits = BatchLimits(entries=entries)
            writer = TurnWriter(pool, patience_s=30, lanes=lanes, limits=limits)
            name = f"in groups of {entries}, {lanes} on their way"
            await measure_writer(pool, name, writer, count)
        alone = TurnWriter(pool, patience_s=30, lanes=4, limits=BatchLimits(entries=1))
        await measure_writer(pool, "a transaction a turn, 4 on their way", alone, count)
    await measure_journal(pool, folder, 64)
    await pool.close()


async def start(cluster: Cluster) -> None:
    """A new cluster, running."""
    await cluster.init(lambda _: None)
    await cluster.start(lambda _: None)


def main() -> None:
    """Measure and print."""
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    with tempfile.TemporaryDirectory(prefix="bench-turns-", dir=place) as name:
        Path(name).chmod(0o755)
        cluster = Cluster(Path(name) / "postgres", find_binaries())
        # The server runs as another user, which uvloop starts no process as.
        with asyncio.Runner() as runner:
            runner.run(start(cluster))
            try:
                uvloop.run(run(cluster.url(), Path(name)))
            finally:
                runner.run(cluster.stop())


if __name__ == "__main__":
    main()

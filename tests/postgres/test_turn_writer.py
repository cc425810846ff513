"""Turns written in groups: few transactions, each answer after its commit, each fault its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import asyncpg

from appliance.errors import Conflict, NotFound
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool
from appliance.store.records import StoredTurn
from appliance.store.turn_writer import TurnWriter
from tests.postgres.turns import TENANT, new_conversation, opening, swipe, talk, turn

NEXT_XID = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


async def test_a_thousand_turns_of_busy_chats_cost_fifty_transactions_at_most(
    pool: Pool, ledger: Ledger
) -> None:
    conversations = await asyncio.gather(*(new_conversation(ledger) for _ in range(50)))
    before = await pool.fetchval(NEXT_XID)
    replies = await asyncio.gather(*(talk(ledger, one, 20) for one in conversations))
    spent = await pool.fetchval(NEXT_XID) - before
    assert sum(map(len, replies)) == 1000
    assert spent <= 50, f"{spent} transaction IDs for 1,000 turns"
    for conversation, ids in zip(conversations, replies, strict=True):
        assert (await ledger.get(TENANT, conversation.conversation_id)).head_id == ids[-1]
        assert len(await ledger.messages(TENANT, conversation.conversation_id)) == 40


async def test_conversations_opened_together_share_a_transaction(
    pool: Pool, ledger: Ledger
) -> None:
    before = await pool.fetchval(NEXT_XID)
    offered = [opening(title=str(number)) for number in range(40)]
    made = await asyncio.gather(*map(ledger.open, offered))
    assert await pool.fetchval(NEXT_XID) - before <= 3
    assert [one.title for one in made] == [str(number) for number in range(40)]


async def test_reads_and_a_turn_that_is_there_already_take_no_id_beyond_its_batch(
    pool: Pool, ledger: Ledger
) -> None:
    conversation = await new_conversation(ledger)
    offered = turn(conversation, None, "q", "a")
    await ledger.append_turn(offered)
    key = (TENANT, conversation.conversation_id)
    before = await pool.fetchval(NEXT_XID)
    await ledger.get(*key)
    await ledger.messages(*key)
    await ledger.path(*key, offered.assistant.message_id)
    await ledger.list(TENANT, limit=5)
    await ledger.turn(*key, None, offered.turn_key)
    assert await pool.fetchval(NEXT_XID) == before
    assert (await ledger.append_turn(offered)).replayed
    assert await pool.fetchval(NEXT_XID) - before <= 1


async def test_an_answer_comes_after_the_commit(database_url: str, ledger: Ledger) -> None:
    other = await asyncpg.connect(database_url)
    conversations = [await new_conversation(ledger) for _ in range(20)]

    async def say_and_look(number: int) -> None:
        offered = turn(conversations[number], None, "q", "a")
        await ledger.append_turn(offered)
        async with looking:
            found = await other.fetchval(
                "SELECT count(*) FROM appliance.messages WHERE message_id = $1",
                offered.assistant.message_id,
            )
        assert found == 1

    looking = asyncio.Lock()
    await asyncio.gather(*map(say_and_look, range(20)))
    await other.close()


async def test_who_is_at_fault_fails_alone_in_its_batch(pool: Pool, ledger: Ledger) -> None:
    conversations = [await new_conversation(ledger) for _ in range(12)]
    taken = await ledger.append_turn(turn(conversations[11], None, "q", "a"))
    await ledger.delete(TENANT, conversations[3].conversation_id)
    good = turn(conversations[0], None, "q", "a")
    odd = turn(conversations[1], None, "q", "a")
    taken_id = replace(good.assistant, message_id=taken.assistant.message_id)
    offers = [
        good,
        replace(odd, assistant=replace(odd.assistant, token_ids=b"odd")),
        turn(conversations[2], uuid4(), "q", "a"),
        turn(conversations[3], None, "q", "a"),
        replace(swipe(conversations[11], None, "b"), assistant=taken_id),
        *(turn(one, None, "q", "a") for one in conversations[4:11]),
    ]
    # One batch for sure: all are there before the writer looks.
    writer = TurnWriter(pool, patience_s=10, linger_s=0.05)
    outcomes = await asyncio.gather(*map(writer.append, offers), return_exceptions=True)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds[:5] == [StoredTurn, asyncpg.CheckViolationError, NotFound, NotFound, Conflict]
    assert kinds[5:] == [StoredTurn] * 7
    for conversation in conversations[4:11]:
        assert len(await ledger.messages(TENANT, conversation.conversation_id)) == 2
    for conversation in conversations[1:4]:
        assert await ledger.messages(TENANT, conversation.conversation_id) == ()


async def test_a_turn_waiting_for_a_locked_conversation_lets_the_others_through(
    database_url: str, pool: Pool, ledger: Ledger
) -> None:
    conversations = [await new_conversation(ledger) for _ in range(6)]
    operator = await asyncpg.connect(database_url)
    transaction = operator.transaction()
    await transaction.start()
    await operator.execute(
        "SELECT FROM appliance.conversations WHERE conversation_id = $1 FOR UPDATE",
        conversations[2].conversation_id,
    )
    writer = TurnWriter(pool, patience_s=30, linger_s=0.05)
    offers = [turn(one, None, "q", "a") for one in conversations]
    tasks = [asyncio.create_task(writer.append(one)) for one in offers]
    await asyncio.wait([task for n, task in enumerate(tasks) if n != 2], timeout=10)
    assert [task.done() for task in tasks] == [True, True, False, True, True, True]
    await transaction.rollback()
    assert not (await tasks[2]).replayed
    await operator.close()


async def test_the_turns_of_one_conversation_are_stored_in_the_order_they_came(
    ledger: Ledger,
) -> None:
    conversation = await new_conversation(ledger)
    first = turn(conversation, None, "q0", "a0")
    offers = [first]
    for number in range(1, 8):
        offers.append(
            turn(conversation, offers[-1].assistant.message_id, f"q{number}", f"a{number}")
        )
    # Each needs the one before it: were one written early, it would find no place.
    await asyncio.gather(*map(ledger.append_turn, offers))
    tree = await ledger.messages(TENANT, conversation.conversation_id)
    assert [message.text for message in tree] == [t for n in range(8) for t in (f"q{n}", f"a{n}")]
    again = await asyncio.gather(*map(ledger.append_turn, offers))
    assert all(one.replayed for one in again)


async def test_no_savepoint_is_used(pool: Pool, ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    seen: set[str] = set()
    async with pool.acquire() as connection:
        connection.add_query_logger(lambda record: seen.add(record.query.split("\n")[0]))
        writer = TurnWriter(_Lending(connection), patience_s=5)  # type: ignore[arg-type]
        await asyncio.gather(
            writer.append(turn(conversation, None, "q", "a")),
            writer.append(swipe(conversation, None, "b")),
        )
    assert seen
    assert not [query for query in seen if "SAVEPOINT" in query.upper()]


class _Lending:
    """A pool of one connection that somebody else holds."""

    def __init__(self, connection: object) -> None:
        self._connection = connection

    def acquire(self, *, timeout: float) -> _Lending:
        return self

    async def __aenter__(self) -> object:
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        return None

"""Each hot statement names the distribution key: its plan touches one partition of each table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any
from uuid import UUID, uuid4

import pytest

from appliance.store.ledger import QUERIES, Ledger
from appliance.store.pool import Pool
from appliance.store.records import NewGreeting
from appliance.store.rows import append_arguments, open_arguments
from tests.ledger_statements import OF_ALL_TENANTS
from tests.postgres.turns import TENANT, new_conversation, opening, swipe, talk, turn

GREETING = NewGreeting(message_id=uuid4(), turn_key=uuid4(), text="Hello")
PARTITION = re.compile(r"(messages|conversations)_\d\d")


def literal(value: object) -> str:
    """A value as SQL, for EXECUTE, which takes no parameters of the protocol."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    if isinstance(value, list):
        return literal(f"{{{','.join(map(element, value))}}}")
    return "'" + str(value).replace("'", "''") + "'"


def element(value: object) -> str:
    """A value within an array's text."""
    if value is None:
        return "NULL"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan node and all below it."""
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


async def explain(pool: Pool, query: str, arguments: tuple[object, ...]) -> list[dict[str, Any]]:
    """The nodes of a statement's plan, run as the pool's sessions run it and rolled back."""
    async with pool.acquire() as connection:
        assert await connection.fetchval("SHOW plan_cache_mode") == "force_generic_plan"
        transaction = connection.transaction()
        await transaction.start()
        try:
            # A table this small is read whole by choice; what counts is whether an index could serve.
            await connection.execute("SET LOCAL enable_seqscan = off")
            await connection.execute(f"PREPARE hot AS {query}")
            values = ", ".join(map(literal, arguments))
            call = f"EXECUTE hot({values})" if arguments else "EXECUTE hot"
            text = await connection.fetchval(f"EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) {call}")
            await connection.execute("DEALLOCATE hot")
        finally:
            await transaction.rollback()
    return list(nodes(json.loads(text)[0]["Plan"]))


@pytest.fixture
async def calls(ledger: Ledger) -> dict[str, tuple[object, ...]]:
    """Arguments for every query of the ledger, in a database with other conversations around."""
    for number in range(20):
        await talk(ledger, await new_conversation(ledger, f"tenant{number}"), 2)
    conversation = await new_conversation(ledger)
    replies = await talk(ledger, conversation, 3)
    key: tuple[object, ...] = (TENANT, conversation.conversation_id)
    page = await ledger.list(TENANT, limit=1)
    place = (page[0].updated_at, page[0].conversation_id)
    leaf: UUID = replies[-1]
    return {
        "open_conversation": open_arguments(
            opening(greetings=(GREETING,), prompt_version="v" * 64)
        ),
        "get_conversation": key,
        "newest_conversations": (TENANT, 10),
        "conversations_before": (TENANT, 10, *place),
        "path": (*key, leaf, None),
        "messages": (*key, 100),
        "get_message": (*key, leaf),
        "append_turn": append_arguments(turn(conversation, leaf, "q", "a", title="t")),
        "get_turn": (*key, uuid4(), leaf),
        "set_head": (*key, replies[0]),
        "rename": (*key, "t"),
        "past": key,
        "set_prompt_version": (*key, "0" * 64),
        "set_scene": (*key, '{"note": {"text": "x"}}'),
        "lock_conversation": key,
        "delete_conversation": key,
        "delete_messages": key,
        "delete_branch": (*key, replies[1]),
        "newest_leaf": (*key, replies[0]),
        "repair_head": (*key, replies[0], None, True),
    }


NOT_HOT = {
    "migrate": "runs once a start",
    "prompt_registry": "the operator's own tables, small and no tenant's, and his questions",
    "experiments": "the operator's own tables, small and no tenant's, and his questions",
    "search": "looked at by test_search.py",
}
"""Files of statements that are not the ledger's, each with the reason why it is not looked at here."""


def test_a_new_file_of_statements_is_looked_at_here_or_says_why_not() -> None:
    files = {path.name for path in (resources.files("appliance.store") / "sql").iterdir()}
    assert files == {f"{name}.sql" for name in ("ledger", *NOT_HOT)}


async def test_every_statement_touches_one_partition_of_each_table_through_an_index(
    pool: Pool, calls: dict[str, tuple[object, ...]]
) -> None:
    assert calls.keys() | OF_ALL_TENANTS == QUERIES.keys()
    for name, arguments in calls.items():
        plan = await explain(pool, QUERIES[name], arguments)
        # A node that writes names the whole table; the rows it writes come from the scans below it.
        touched = {
            n["Relation Name"] for n in plan if "Relation Name" in n and "Scan" in n["Node Type"]
        }
        tables = [partition.rpartition("_")[0] for partition in touched if partition]
        assert all(PARTITION.fullmatch(partition) for partition in touched), f"{name}: {touched}"
        assert len(tables) == len(set(tables)), f"{name} touches {sorted(touched)}"
        assert not [n for n in plan if n["Node Type"] == "Seq Scan"], f"{name} reads a whole table"


async def test_a_turn_under_a_root_and_a_swipe_touch_one_partition_too(
    pool: Pool, ledger: Ledger
) -> None:
    conversation = await new_conversation(ledger)
    for offered in (turn(conversation, None, "q", "a"), swipe(conversation, None, "a")):
        plan = await explain(pool, QUERIES["append_turn"], append_arguments(offered))
        names = {node.get("Relation Name", "") for node in plan}
        assert sum(bool(PARTITION.fullmatch(name)) for name in names) <= 2


def rows_read(plan: list[dict[str, Any]]) -> float:
    """Table rows that a plan looked at, kept or not."""
    rows: list[float] = [
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in plan
        if "Relation Name" in node and "Scan" in node["Node Type"]
    ]
    return sum(rows)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_turn_reads_as_many_rows_as_are_new_however_long_the_conversation(
    pool: Pool, ledger: Ledger, analyzed: bool
) -> None:
    conversation = await new_conversation(ledger)
    replies = await talk(ledger, conversation, 60)
    if analyzed:
        await pool.execute("ANALYZE")
    key = (TENANT, conversation.conversation_id)
    # The conversation for its lock and once more for the head, the parent and the new messages.
    offered = turn(conversation, replies[-1], "q", "a")
    assert rows_read(await explain(pool, QUERIES["append_turn"], append_arguments(offered))) <= 5
    assert rows_read(await explain(pool, QUERIES["get_message"], (*key, replies[5]))) == 1
    assert rows_read(await explain(pool, QUERIES["set_head"], (*key, replies[5]))) <= 2
    stored = await ledger.append_turn(offered)
    path = (*key, stored.assistant.message_id, replies[-1])
    assert rows_read(await explain(pool, QUERIES["path"], path)) == 2
    if analyzed:
        again = (*key, offered.turn_key, replies[-1])
        assert rows_read(await explain(pool, QUERIES["get_turn"], again)) == 2

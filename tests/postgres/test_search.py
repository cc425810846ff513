"""Search over a real PostgreSQL: whatever was said is stored, and what can be found is found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from uuid import uuid4

import pytest

from appliance.errors import InvalidRequest
from appliance.store.ledger import QUERIES as LEDGER
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool
from appliance.store.records import Conversation
from appliance.store.search import BATCH_MESSAGES, QUERIES, Search, SearchPage
from appliance.store.search_terms import SEARCHED_CHARACTERS_MAX, query_terms
from tests.postgres.test_plans import explain
from tests.postgres.turns import TENANT, new_conversation, swipe, talk, turn


@pytest.fixture
def search(pool: Pool) -> Search:
    return Search(pool)


async def say(ledger: Ledger, conversation: Conversation, *texts: str) -> None:
    """A first message for each of the texts."""
    for text in texts:
        await ledger.append_turn(turn(conversation, None, text, "I see."))


def titles(page: SearchPage) -> list[str]:
    return [found.conversation.title for found in page.found]


ODD = {
    "one word of 8 MiB": "x" * (8 << 20),
    "1 MB without spaces": "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=10**6)),
    "100,000 different words": " ".join(f"w{number}" for number in range(100_000)),
    "all of the basic plane": "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x10000)])),
    "other planes": "".join(map(chr, range(0x1F300, 0x1FAFF))) * 5,
    "only marks": "%_\\'\"`;--/*" * 500,
    "combining": "a" + "\u0301" * 50_000,
    "right to left": "\u202eبرد\u202c" * 1000,
    "a null and a lone surrogate": "before\0after \ud83d end",
}


@pytest.mark.parametrize("kind", ODD)
async def test_no_text_is_refused_and_its_beginning_is_found(
    ledger: Ledger, search: Search, kind: str
) -> None:
    text = ODD[kind]
    conversation = await new_conversation(ledger, title=kind)
    await say(ledger, conversation, text)
    stored = (await ledger.messages(TENANT, conversation.conversation_id))[0].text
    asked = stored[:40]
    page = await search.find(TENANT, asked, limit=10)
    assert page.is_complete
    assert titles(page) == [kind]
    assert page.found[0].match is not None
    assert asked.lower() in page.found[0].match.excerpt.lower()


async def test_words_are_found_in_messages_replies_swipes_and_titles_whatever_their_case(
    ledger: Ledger, search: Search
) -> None:
    first = await new_conversation(ledger, title="Dragons")
    replies = await talk(ledger, first, 3)
    second = await new_conversation(ledger, title="Плов")
    await say(ledger, second, "Как готовить ПЛОВ из баранины?")
    third = await new_conversation(ledger, title="天気")
    await say(ledger, third, "今日は天気がいいから散歩しましょう")
    await ledger.append_turn(swipe(first, replies[0], "An entirely Other answer"))
    assert titles(await search.find(TENANT, "entirely other", limit=10)) == ["Dragons"]
    assert titles(await search.find(TENANT, "баранин", limit=10)) == ["Плов"]
    assert titles(await search.find(TENANT, "плов", limit=10)) == ["Плов"]
    assert titles(await search.find(TENANT, "散歩", limit=10)) == ["天気"]
    await say(ledger, third, "ΟΔΥΣΣΕΥΣ και οδός")
    for asked in ("οδυσσευς", "ΟΔΥΣΣΕΥΣ", "Οδυσσευσ κ", "οδόσ", "ΟΔΌΣ"):
        assert titles(await search.find(TENANT, asked, limit=10)) == ["天気"], asked
    title_only = await search.find(TENANT, "dragon", limit=10)
    assert titles(title_only) == ["Dragons"]
    assert title_only.found[0].match is None
    assert titles(await search.find(TENANT, "never said", limit=10)) == []
    # The letter groups are all there, the text is not.
    await say(ledger, second, "abcd bcde")
    assert titles(await search.find(TENANT, "abcde", limit=10)) == []


async def test_a_turn_is_found_as_soon_as_it_is_stored_and_not_once_it_is_deleted(
    ledger: Ledger, search: Search, pool: Pool
) -> None:
    conversation = await new_conversation(ledger)
    for number in range(3):
        await say(ledger, conversation, f"token number {number}")
        assert len((await search.find(TENANT, f"number {number}", limit=5)).found) == 1
    other = await new_conversation(ledger)
    await say(ledger, other, "token number 9")
    branch = (await search.find(TENANT, "number 1", limit=5)).found[0].match
    assert branch is not None
    await ledger.delete_branch(TENANT, conversation.conversation_id, branch.message_id)
    assert (await search.find(TENANT, "number 1", limit=5)).found == ()
    await ledger.delete(TENANT, conversation.conversation_id)
    page = await search.find(TENANT, "token number", limit=5)
    assert [found.conversation.conversation_id for found in page.found] == [other.conversation_id]
    assert await pool.fetchval("SELECT count(*) FROM appliance.search_messages") == 2


async def test_pages_follow_each_other_without_gap_or_repetition(
    ledger: Ledger, search: Search
) -> None:
    expected = []
    for number in range(7):
        conversation = await new_conversation(ledger, title=f"t{number}")
        await say(ledger, conversation, "a needle" if number % 3 else "hay")
        expected += [conversation.title] if number % 3 else []
    seen: list[str] = []
    page = await search.find(TENANT, "needle", limit=2)
    while page.found:
        seen += titles(page)
        cursor = page.found[-1].conversation.cursor
        page = await search.find(TENANT, "needle", limit=2, before=cursor)
    assert seen == expected[::-1]


async def test_no_tenant_finds_what_another_said(ledger: Ledger, search: Search) -> None:
    theirs = await new_conversation(ledger, "theirs", title="secret plan")
    await say(ledger, theirs, "a secret plan")
    assert (await search.find("theirs", "secret plan", limit=5)).found
    assert not (await search.find(TENANT, "secret plan", limit=5)).found


async def test_a_long_past_is_indexed_in_batches_and_the_answer_says_when_some_is_left(
    ledger: Ledger, search: Search, pool: Pool
) -> None:
    conversation = await new_conversation(ledger)
    await pool.execute(
        """
        INSERT INTO appliance.messages (tenant, conversation_id, message_id, turn_key, depth, role, text)
        SELECT $1, $2, gen_random_uuid(), gen_random_uuid(), 0, 'user', 'old words ' || n
        FROM generate_series(1, $3::integer) AS n
        """,
        TENANT,
        conversation.conversation_id,
        3 * BATCH_MESSAGES + 7,
    )
    assert not await search.catch_up(TENANT, budget_s=0)
    count = "SELECT count(*) FROM appliance.search_messages"
    assert await pool.fetchval(count) == BATCH_MESSAGES
    page = await search.find(TENANT, "old words 60", limit=5)
    assert page.is_complete
    assert len(page.found) == 1
    assert await pool.fetchval(count) == 3 * BATCH_MESSAGES + 7


async def test_a_database_that_takes_no_writes_still_answers_with_what_it_knows(
    ledger: Ledger, search: Search, pool: Pool
) -> None:
    await say(ledger, await new_conversation(ledger, title="old"), "known words")
    assert (await search.find(TENANT, "known words", limit=5)).is_complete
    await say(ledger, await new_conversation(ledger, title="new"), "known words too")
    name = await pool.fetchval("SELECT current_database()")
    await pool.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await pool.expire_connections()
    page = await search.find(TENANT, "known words", limit=5)
    assert titles(page) == ["old"]
    assert not page.is_complete


async def test_a_search_touches_one_partition_of_what_is_indexed_and_the_tenants_conversations(
    pool: Pool, ledger: Ledger, search: Search
) -> None:
    for number in range(20):
        tenant = f"tenant{number}"
        await say(ledger, await new_conversation(ledger, tenant), "some words here")
        await search.catch_up(tenant)
    terms = query_terms("tenant3", "words")
    arguments = ("tenant3", terms, "words", 10, None, None, SEARCHED_CHARACTERS_MAX)
    plan = await explain(pool, QUERIES["search"], arguments)
    touched = scanned(plan)
    assert len({n for n in touched if n.startswith("search_messages")}) == 1, touched
    assert len({n for n in touched if n.startswith("conversations")}) == 1, touched


async def test_catching_up_touches_one_partition_of_each_table(pool: Pool, ledger: Ledger) -> None:
    for number in range(20):
        await say(ledger, await new_conversation(ledger, f"tenant{number}"), "some words here")
    conversation = await new_conversation(ledger)
    await say(ledger, conversation, "some words here")
    message = (await ledger.messages(TENANT, conversation.conversation_id))[0].message_id
    ids = [conversation.conversation_id]
    calls = {
        "unsearched": (TENANT, BATCH_MESSAGES, SEARCHED_CHARACTERS_MAX),
        "add_searched": (TENANT, ids, [message], ["{1,2}"], ids, [99]),
    }
    # The search itself is looked at above.
    assert calls.keys() | {"search"} == QUERIES.keys()
    for name, arguments in calls.items():
        touched = set(scanned(await explain(pool, QUERIES[name], arguments)))
        tables = sorted(partition.rpartition("_")[0] for partition in touched)
        assert tables == sorted(set(tables)), f"{name} touches {sorted(touched)}"
        assert "messages" in tables, f"{name} touches {sorted(touched)}"


def scanned(plan: Sequence[dict[str, object]]) -> list[str]:
    """Tables that a plan has read, those it was only ready to read left out."""
    return [
        str(node["Relation Name"])
        for node in plan
        if "Scan" in str(node["Node Type"]) and "Relation Name" in node and node["Actual Loops"]
    ]


async def test_a_deleted_message_is_not_indexed_behind_its_back(ledger: Ledger, pool: Pool) -> None:
    conversation = await new_conversation(ledger)
    await say(ledger, conversation, "gone soon")
    messages = await ledger.messages(TENANT, conversation.conversation_id)
    await ledger.delete(TENANT, conversation.conversation_id)
    key = (TENANT, [conversation.conversation_id], [messages[0].message_id], ["{1}"])
    await pool.execute(QUERIES["add_searched"], *key, [], [])
    assert await pool.fetchval("SELECT count(*) FROM appliance.search_messages") == 0


async def test_a_search_text_is_data_to_the_database(ledger: Ledger, search: Search) -> None:
    await say(ledger, await new_conversation(ledger), "it's 100% \\ fine_ly; -- done")
    for asked in ("it's 100%", "% \\ f", "e_ly;", "; -- d"):
        assert len((await search.find(TENANT, asked, limit=5)).found) == 1
    for asked in ("%%%", "___", "'; DROP"):
        assert (await search.find(TENANT, asked, limit=5)).found == ()
    with pytest.raises(InvalidRequest, match="3 characters"):
        await search.find(TENANT, "it", limit=5)


async def test_what_is_said_while_a_batch_is_indexed_is_found_the_next_time(
    ledger: Ledger, search: Search, pool: Pool
) -> None:
    conversation = await new_conversation(ledger)
    key = (TENANT, conversation.conversation_id)
    await say(ledger, conversation, "before it")
    rows = await pool.fetch(QUERIES["unsearched"], TENANT, 10, 1000)
    await say(ledger, conversation, "meanwhile")
    ids = [row["message_id"] for row in rows]
    seen = [key[1]], [rows[0]["written"]]
    held = await pool.acquire()
    transaction = held.transaction()
    await transaction.start()
    await held.execute(LEDGER["lock_conversation"], *key)
    columns = (TENANT, [key[1]] * len(ids), ids, ["{1}"] * len(ids))
    # A conversation that is being written to is not waited for: the lock's own timeout would tell.
    await pool.execute(QUERIES["add_searched"], *columns, *seen)
    await transaction.rollback()
    await pool.release(held)
    await pool.execute(QUERIES["add_searched"], *columns, *seen)
    assert titles(await search.find(TENANT, "meanwhile", limit=5)) == [conversation.title]
    assert await pool.fetch(QUERIES["unsearched"], TENANT, 10, 1000) == []


async def test_two_searches_at_once_index_each_message_once(
    ledger: Ledger, search: Search, pool: Pool
) -> None:

    conversation = await new_conversation(ledger)
    for number in range(5):
        await say(ledger, conversation, f"word {uuid4()} {number}")
    await asyncio.gather(*(search.find(TENANT, "word", limit=5) for _ in range(4)))
    assert await pool.fetchval("SELECT count(*) FROM appliance.search_messages") == 10


async def test_nothing_is_indexed_while_the_database_is_not_to_be_written_to(
    ledger: Ledger, pool: Pool
) -> None:
    conversation = await new_conversation(ledger, title="garden")
    await say(ledger, conversation, "a purple gate")
    allowed = False
    search = Search(pool, may_write=lambda: allowed)
    page = await search.find(TENANT, "purple", limit=5)
    assert (page.found, page.is_complete) == ((), False)
    assert await pool.fetchval("SELECT count(*) FROM appliance.search_messages") == 0
    allowed = True
    page = await search.find(TENANT, "purple", limit=5)
    assert (titles(page), page.is_complete) == (["garden"], True)

"""Turns that the database cannot take: journalled, read, replayed in order, once each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from appliance.errors import InvalidRequest, NotFound, StorageUnavailable
from appliance.store.entries import Entry, Key
from appliance.store.journal_aside import REFUSED_NAME
from appliance.store.journal_file import read_journal
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool
from appliance.store.records import (
    Conversation,
    ConversationChange,
    Cursor,
    Member,
    NewGreeting,
    Past,
    Scene,
)
from appliance.store.search import Search
from appliance.store.turn_batch import Outcome, Tally, write_batch
from appliance.store.write_gate import Writes
from tests.postgres.journalled import Chat, Kept, eventually, keeping
from tests.postgres.turns import TENANT, new_conversation, opening, swipe, turn

GREETINGS = tuple(
    NewGreeting(message_id=uuid4(), turn_key=uuid4(), text=text) for text in ("Hello", "You?")
)


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def kept(database_url: str, tmp_path: Path) -> AsyncIterator[Kept]:
    async with keeping(database_url, tmp_path / "journal") as opened:
        yield opened


async def refuse_writes(
    operator: asyncpg.Connection[asyncpg.Record], kept: Kept, *, refused: bool = True
) -> None:
    """Make every new transaction of the database read-only, or end that."""
    name = await operator.fetchval("SELECT current_database()")
    await operator.execute("SET default_transaction_read_only = off")
    value = "on" if refused else "off"
    await operator.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')
    # A database's setting is for new sessions.
    await operator.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'appliance'"
    )


async def test_turns_of_a_database_that_takes_no_writes_are_read_like_all_and_stored_once_it_does(
    kept: Kept, operator: asyncpg.Connection[asyncpg.Record], ledger: Ledger
) -> None:
    chat = await Chat.begin(kept.ledger)
    for _ in range(2):
        await chat.say()
    await refuse_writes(operator, kept)
    started = asyncio.get_running_loop().time()
    await chat.say(title="Tea")
    assert asyncio.get_running_loop().time() - started < 3
    await chat.say()
    assert kept.gate.closed_for is not None
    assert kept.waiting == 2
    await chat.is_whole_in(kept.ledger)
    newest = chat.done[-1]
    shown = await kept.ledger.get(*chat.key)
    assert shown.title == "Tea"
    assert (await kept.ledger.list(TENANT, limit=1)) == (shown,)
    reply = await kept.ledger.message(*chat.key, newest.assistant.message_id)
    assert reply.parent_id == (newest.user.message_id if newest.user else None)
    assert reply.token_ids == newest.assistant.token_ids
    found = await kept.ledger.turn(*chat.key, newest.parent_id, newest.turn_key)
    assert found is not None
    assert found.replayed
    assert found.assistant == reply
    assert (await kept.ledger.append_turn(newest)).replayed
    tail = await kept.ledger.path(
        *chat.key, reply.message_id, after=chat.done[1].assistant.message_id
    )
    assert [message.text for message in tail] == ["q2", "a2", "q3", "a3"]
    assert len(await ledger.messages(*chat.key)) == 4
    await refuse_writes(operator, kept, refused=False)
    await kept.drained()
    await chat.is_whole_in(ledger)
    # The same times and ids as were told while it waited.
    assert await ledger.message(*chat.key, reply.message_id) == reply
    assert await ledger.get(*chat.key) == shown
    await chat.say()
    assert kept.gate.closed_for is None
    await chat.is_whole_in(ledger)


async def test_a_new_conversation_goes_on_whole_in_the_journal_and_is_listed_in_its_place(
    kept: Kept, operator: asyncpg.Connection[asyncpg.Record], ledger: Ledger
) -> None:
    old = [await Chat.begin(kept.ledger) for _ in range(5)]
    await refuse_writes(operator, kept)
    offered = opening(
        title="New", greetings=GREETINGS, scene=Scene(members=(Member(id="a", version="v"),))
    )
    made = await kept.ledger.open(offered)
    assert await kept.ledger.open(offered) == made
    chat = Chat(kept.ledger, made)
    below = await chat.say()
    await old[1].say()
    key = chat.key
    assert (await kept.ledger.get(*key)).head_id == below.assistant.message_id
    tree = await kept.ledger.messages(*key)
    assert [message.text for message in tree] == ["Hello", "You?", "q0", "a0"]
    path = await kept.ledger.path(*key, below.assistant.message_id)
    assert [message.text for message in path] == ["Hello", "q0", "a0"]
    assert await kept.ledger.past(*key) == Past()
    expected = [old[1], chat, old[4], old[3], old[2], old[0]]
    ids = [one.conversation.conversation_id for one in expected]
    assert await listed(kept.ledger, 2) == ids
    assert await listed(kept.ledger, 100) == ids
    with pytest.raises(InvalidRequest):
        await kept.ledger.open(opening(title="x" * 500))
    await refuse_writes(operator, kept, refused=False)
    await kept.drained()
    assert await listed(ledger, 2) == ids
    assert await ledger.messages(*key) == tree
    assert (await ledger.get(*key)).scene == Scene(members=(Member(id="a", version="v"),))
    with pytest.raises(NotFound):
        await ledger.get("mallory", key[1])


async def listed(ledger: Ledger, limit: int) -> list[object]:
    """The ids of all conversations, page by page."""
    found: list[Conversation] = []
    before: Cursor | None = None
    while page := await ledger.list(TENANT, limit=limit, before=before):
        found += page
        if len(page) < limit:
            break
        before = Cursor.parse(str(page[-1].cursor))
    return [one.conversation_id for one in found]


async def test_what_cannot_wait_is_refused_clearly_until_it_can_be_written(
    kept: Kept, operator: asyncpg.Connection[asyncpg.Record], ledger: Ledger
) -> None:
    chat, other = await Chat.begin(kept.ledger), await Chat.begin(kept.ledger)
    first = await chat.say()
    await refuse_writes(operator, kept)
    await chat.say()
    for key, words in ((chat.key, "wait to be written"), (other.key, "takes no changes now")):
        for attempt in (
            kept.ledger.change(*key, ConversationChange(head_id=first.assistant.message_id)),
            kept.ledger.change(*key, ConversationChange(title="x")),
            kept.ledger.change(*key, ConversationChange(scene=Scene())),
            kept.ledger.change(*key, ConversationChange(prompt_version="v" * 64)),
            kept.ledger.delete_branch(*key, first.assistant.message_id),
            kept.ledger.delete(*key),
        ):
            with pytest.raises(StorageUnavailable, match=words):
                await attempt
    await refuse_writes(operator, kept, refused=False)
    await kept.drained()
    await kept.ledger.delete(*chat.key)
    assert await ledger.messages(*chat.key) == ()
    with pytest.raises(NotFound):
        await kept.ledger.get(*chat.key)


async def test_a_journalled_turn_of_a_conversation_that_is_gone_brings_nothing_back(
    kept: Kept, operator: asyncpg.Connection[asyncpg.Record], ledger: Ledger, tmp_path: Path
) -> None:
    gone, other = await Chat.begin(kept.ledger), await Chat.begin(kept.ledger)
    await gone.say()
    kept.is_maintenance = True
    await gone.say()
    await other.say()
    await ledger.delete(*gone.key)  # by another hand than this server's
    kept.is_maintenance = False
    await kept.drained()
    assert await ledger.messages(*gone.key) == ()
    with pytest.raises(NotFound):
        await ledger.get(*gone.key)
    await other.is_whole_in(ledger)
    # It was acknowledged, so a person can read it, and why it is not in the database.
    (line,) = (tmp_path / "journal" / REFUSED_NAME).read_text().splitlines()
    assert "no conversation" in line
    assert '"a1"' in line


async def test_a_send_that_comes_twice_at_once_is_journalled_once_and_told_so(
    kept: Kept, ledger: Ledger
) -> None:
    chat = await Chat.begin(kept.ledger)
    kept.is_maintenance = True
    offered = turn(chat.conversation, None, "q", "a")
    answers = await asyncio.gather(*(kept.ledger.append_turn(offered) for _ in range(3)))
    assert sorted(answer.replayed for answer in answers) == [False, True, True]
    assert kept.waiting == 1
    new = opening(title="t")
    made = await asyncio.gather(*(kept.ledger.open(new) for _ in range(2)))
    assert made[0] == made[1]
    assert kept.waiting == 2
    kept.is_maintenance = False
    await kept.drained()
    assert len(await ledger.messages(*chat.key)) == 2


async def test_a_text_that_no_bytes_can_be_made_of_is_stored_alike_through_the_journal(
    kept: Kept, ledger: Ledger
) -> None:
    broken = "half \ud83d, \0"

    async def live() -> list[str]:
        greeting = NewGreeting(message_id=uuid4(), turn_key=uuid4(), text=broken)
        chat = Chat(kept.ledger, await kept.ledger.open(opening(greetings=(greeting,))))
        await kept.ledger.append_turn(
            turn(chat.conversation, chat.parent_id, broken, broken, title=broken)
        )
        waiting = [message.text for message in await kept.ledger.messages(*chat.key)]
        title = (await kept.ledger.get(*chat.key)).title
        kept.is_maintenance = False
        await kept.drained()
        assert [message.text for message in await ledger.messages(*chat.key)] == waiting
        assert (await ledger.get(*chat.key)).title == title
        return [*waiting, title]

    straight = await live()
    kept.is_maintenance = True
    assert await live() == straight


async def test_what_cannot_be_kept_aside_keeps_no_other_turn_in_the_journal(
    kept: Kept,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("appliance.store.replay.HELD_S", 0.1)
    gone, other = await Chat.begin(kept.ledger), await Chat.begin(kept.ledger)
    kept.is_maintenance = True
    for _ in range(3):
        await gone.say()
        await other.say()
    await ledger.delete(*gone.key)
    refused = tmp_path / "journal" / REFUSED_NAME
    refused.mkdir()  # as little can be written there as on a full disk
    kept.is_maintenance = False
    await eventually(lambda: kept.waiting == 3)
    await other.is_whole_in(ledger)
    refused.rmdir()
    await kept.drained()
    assert len(refused.read_text().splitlines()) == 3


async def test_a_conversation_that_the_database_fails_at_keeps_no_other_one_waiting(
    kept: Kept, operator: asyncpg.Connection[asyncpg.Record], ledger: Ledger
) -> None:
    failing, other = await Chat.begin(kept.ledger), await Chat.begin(kept.ledger)
    await operator.execute(
        f"""
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'cache lookup failed' USING ERRCODE = 'XX000'; END $$;
        CREATE TRIGGER fail BEFORE INSERT ON appliance.messages FOR EACH ROW
            WHEN (NEW.conversation_id = '{failing.conversation.conversation_id}')
            EXECUTE FUNCTION fail()
        """
    )
    kept.is_maintenance = True
    await failing.say()
    await other.say()
    kept.is_maintenance = False
    await eventually(lambda: kept.waiting == 1)
    assert kept.gate.writes is Writes.OPEN
    await other.is_whole_in(ledger)
    await failing.is_whole_in(kept.ledger)


async def test_an_entry_stored_but_not_marked_is_stored_once_and_a_later_deletion_stays(
    database_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    folder = tmp_path / "journal"
    async with keeping(database_url, folder, replays=False) as kept:
        chat = await Chat.begin(kept.ledger)
        first = await chat.say()
        kept.is_maintenance = True
        for _ in range(3):
            await chat.say()
        # The commit came through, and the process died before it could mark the entry.
        await ledger.append_turn(chat.done[1])
    for _ in range(2):
        async with keeping(database_url, folder) as kept:
            await kept.drained()
            await chat.is_whole_in(ledger)
    async with keeping(database_url, folder) as kept:
        assert kept.waiting == 0
        await kept.ledger.delete_branch(*chat.key, chat.done[2].assistant.message_id)
    async with keeping(database_url, folder) as kept:
        await asyncio.sleep(0.3)
        texts = [message.text for message in await ledger.messages(*chat.key)]
        assert texts == ["q0", "a0", "q1", "a1", "q2"]
        assert first.assistant.message_id in {
            m.message_id for m in await ledger.messages(*chat.key)
        }


async def test_in_maintenance_all_turns_wait_though_the_database_would_take_them(
    kept: Kept, ledger: Ledger
) -> None:
    chat = await Chat.begin(kept.ledger)
    kept.is_maintenance = True
    await chat.say()
    new = await Chat.begin(kept.ledger)
    await new.say()
    await asyncio.sleep(0.5)
    assert kept.waiting == 3
    assert await ledger.messages(*chat.key) == ()
    await chat.is_whole_in(kept.ledger)
    with pytest.raises(StorageUnavailable):
        await kept.ledger.change(*chat.key, ConversationChange(title="x"))
    kept.is_maintenance = False
    await kept.drained()
    await chat.is_whole_in(ledger)
    await new.is_whole_in(ledger)


async def test_reads_during_a_replay_miss_nothing(kept: Kept, ledger: Ledger) -> None:
    chats = [await Chat.begin(kept.ledger) for _ in range(4)]
    kept.is_maintenance = True
    for chat in chats:
        for _ in range(25):
            await chat.say()
    looks = 0

    async def look(chat: Chat) -> None:
        nonlocal looks
        while kept.waiting:
            await chat.is_whole_in(kept.ledger)
            looks += 1

    kept.is_maintenance = False
    await asyncio.gather(*map(look, chats))
    assert looks > 8
    for chat in chats:
        await chat.is_whole_in(ledger)
    # One batch for each turn in a row of its conversation, and few more.
    assert kept.replay.tally.turns == 100
    assert kept.replay.tally.batches <= 40


async def test_turns_and_swipes_and_branches_keep_their_order_through_the_journal(
    kept: Kept, ledger: Ledger
) -> None:
    plain, through = [await new_conversation(ledger, title="t") for _ in range(2)]

    async def live(where: Ledger, conversation: Conversation) -> list[str]:
        first = await where.append_turn(turn(conversation, None, "q0", "a0"))
        assert first.user is not None
        second = await where.append_turn(swipe(conversation, first.user.message_id, "a0b"))
        third = await where.append_turn(
            turn(conversation, second.assistant.message_id, "q1", "a1", title="no")
        )
        await where.append_turn(turn(conversation, None, "q0 edited", "a9"))
        await where.append_turn(
            turn(
                conversation,
                third.assistant.message_id,
                "q2",
                "a2",
                anchor_id=third.assistant.message_id,
            )
        )
        return [
            message.text for message in await where.messages(TENANT, conversation.conversation_id)
        ]

    expected = await live(ledger, plain)
    kept.is_maintenance = True
    assert await live(kept.ledger, through) == expected
    merged = await kept.ledger.get(TENANT, through.conversation_id)
    kept.is_maintenance = False
    await kept.drained()
    tree = await ledger.messages(TENANT, through.conversation_id)
    assert [message.text for message in tree] == expected
    assert await ledger.get(TENANT, through.conversation_id) == merged
    assert merged.title == "t"
    assert merged.anchor_id is not None


async def test_a_turn_is_found_whatever_its_time_and_while_searches_go_on(
    database_url: str, tmp_path: Path
) -> None:
    ahead = datetime.now(UTC) + timedelta(hours=1)
    times = [ahead, ahead - timedelta(days=400)]
    async with keeping(database_url, tmp_path / "journal", clock=lambda: times[-1]) as kept:
        search = Search(kept.pool)
        for word in ("purple", "orange"):
            # Of another chat, whose last change is in a search already.
            chat = await Chat.begin(kept.ledger)
            await chat.say()
            assert (await search.find(TENANT, "nothing yet", limit=5)).is_complete
            kept.is_maintenance = True
            await kept.ledger.append_turn(turn(chat.conversation, chat.parent_id, word, "yes"))
            assert not (await search.find(TENANT, word, limit=5)).found
            kept.is_maintenance = False
            await kept.drained()
            assert len((await search.find(TENANT, word, limit=5)).found) == 1
            times.pop()


async def test_a_clock_that_is_behind_the_databases_hides_no_turn(
    database_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    late = datetime.now(UTC) - timedelta(hours=1)
    async with keeping(database_url, tmp_path / "journal", clock=lambda: late) as kept:
        chat = await Chat.begin(kept.ledger)
        await chat.say()
        kept.is_maintenance = True
        for _ in range(3):
            await chat.say()
            await chat.is_whole_in(kept.ledger)
        kept.is_maintenance = False
        await kept.drained()
        await chat.is_whole_in(ledger)


async def test_a_held_conversation_sends_its_own_turns_to_the_journal_and_no_others(
    database_url: str,
    tmp_path: Path,
    operator: asyncpg.Connection[asyncpg.Record],
    ledger: Ledger,
) -> None:
    async with keeping(database_url, tmp_path / "journal", replays=False) as kept:
        chats = [await Chat.begin(kept.ledger) for _ in range(2)]
        async with operator.transaction():
            await operator.execute(
                "SELECT FROM appliance.conversations WHERE conversation_id = $1 FOR UPDATE",
                chats[1].conversation.conversation_id,
            )
            held = asyncio.create_task(chats[1].say())
            await asyncio.sleep(0.2)  # its batch waits for the lock
            said = 0
            while not held.done():
                await chats[0].say()
                said += 1
                await asyncio.sleep(0.02)
            await held
            assert said > 1
            assert kept.gate.writes is Writes.OPEN
            assert kept.waiting == 1
            # What is no turn is taken as ever.
            await kept.ledger.change(
                TENANT, chats[0].conversation.conversation_id, ConversationChange(title="another")
            )
        await chats[0].is_whole_in(ledger)
        await chats[1].is_whole_in(kept.ledger)


async def test_a_held_conversation_waits_alone_while_the_others_are_replayed(
    database_url: str,
    tmp_path: Path,
    operator: asyncpg.Connection[asyncpg.Record],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("appliance.store.pool.LOCK_TIMEOUT_MS", 300)
    monkeypatch.setattr("appliance.store.replay.HELD_S", 0.0)
    tried: list[list[Key]] = []

    async def write(pool: Pool, entries: Sequence[Entry], tally: Tally) -> list[Outcome]:
        tried.append([entry.key for entry in entries])
        return await write_batch(pool, entries, tally)

    monkeypatch.setattr("appliance.store.replay.write_batch", write)
    async with keeping(database_url, tmp_path / "journal") as kept:
        chats = [await Chat.begin(kept.ledger) for _ in range(4)]
        transaction = operator.transaction()
        await transaction.start()
        await operator.execute(
            "SELECT FROM appliance.conversations WHERE conversation_id = $1 FOR UPDATE",
            chats[1].conversation.conversation_id,
        )
        kept.is_maintenance = True
        for chat in chats:
            for _ in range(5):
                await chat.say()
        kept.is_maintenance = False
        await eventually(lambda: kept.waiting == 5, 30)
        # Its lock was waited for with the first batch, and not with each of the others'.
        assert [len(keys) for keys in tried[:5]] == [4, 3, 3, 3, 3]
        for number in (0, 2, 3):
            await chats[number].is_whole_in(ledger)
        await chats[1].is_whole_in(kept.ledger)
        # Its next turn waits behind them, and the others' go to the database.
        await chats[1].say()
        await chats[0].say()
        assert kept.waiting == 6
        await transaction.rollback()
        await kept.drained()
        await chats[1].is_whole_in(ledger)


async def test_a_full_journal_refuses_turns_before_they_begin_and_keeps_what_it_has(
    database_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    async with keeping(database_url, tmp_path / "journal", bytes_max=1 << 20) as kept:
        chat = await Chat.begin(kept.ledger)
        kept.ledger.require_room(1000)  # the database takes writes, so the journal is of no concern
        kept.is_maintenance = True
        kept.ledger.require_room(15)
        with pytest.raises(StorageUnavailable, match="full"):
            kept.ledger.require_room(17)
        long = "x" * 100_000
        for _ in range(9):
            await chat.say()
            offered = turn(chat.conversation, chat.parent_id, long, "y")
            await kept.ledger.append_turn(offered)
            await kept.ledger.append_turn(swipe(chat.conversation, chat.parent_id, "z"))
        offers = [turn(chat.conversation, chat.parent_id, long, "y") for _ in range(3)]
        with pytest.raises(StorageUnavailable, match="full"):
            await asyncio.gather(*map(kept.ledger.append_turn, offers))
        with pytest.raises(StorageUnavailable, match="full"):
            kept.ledger.require_room(2)
        with pytest.raises(StorageUnavailable, match="full"):
            await kept.ledger.open(opening())
        waiting = kept.waiting
        kept.is_maintenance = False
        await kept.drained()
        kept.ledger.require_room(1000)
        assert len(await ledger.messages(*chat.key)) >= waiting
        assert kept.journal.used_bytes < 1000


async def test_a_journal_found_at_the_start_is_read_at_once_and_replayed(
    database_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    folder = tmp_path / "journal"
    async with keeping(database_url, folder, replays=False) as kept:
        chat = await Chat.begin(kept.ledger)
        await chat.say()
        kept.is_maintenance = True
        new = await Chat.begin(kept.ledger)
        for _ in range(3):
            await chat.say()
            await new.say()
    async with keeping(database_url, folder, replays=False) as kept:
        assert kept.waiting == 7
        chat.ledger = new.ledger = kept.ledger
        await chat.is_whole_in(kept.ledger)
        await new.is_whole_in(kept.ledger)
        # Although the database takes writes, those of these conversations come behind what waits.
        await chat.say()
        assert kept.waiting == 8
        assert len(await listed(kept.ledger, 10)) == 2
    async with keeping(database_url, folder) as kept:
        await kept.drained()
    await chat.is_whole_in(ledger)
    await new.is_whole_in(ledger)


async def test_finished_entries_do_not_fill_the_file(
    database_url: str, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.store.journal.SLACK_BYTES", 10_000)
    folder = tmp_path / "journal"
    async with keeping(database_url, folder, replays=False) as kept:
        stuck, chat = await Chat.begin(kept.ledger), await Chat.begin(kept.ledger)
        kept.is_maintenance = True
        await stuck.say()
        largest = 0
        for number in range(30):
            await kept.ledger.append_turn(turn(chat.conversation, None, "x" * 3000, str(number)))
            numbers = [number for number, entry in kept.journal.overlay.pending()]
            await kept.journal.settle(numbers[1:])
            largest = max(largest, kept.journal.used_bytes)
        assert largest < 20_000
        assert kept.waiting == 1
    found = read_journal(folder)
    assert found is not None
    async with keeping(database_url, folder) as kept:
        await kept.drained()
        await stuck.is_whole_in(ledger)


@pytest.mark.parametrize("seed", range(2))
async def test_random_outages_and_restarts_leave_each_acknowledged_turn_once_and_in_order(
    database_url: str, tmp_path: Path, ledger: Ledger, seed: int
) -> None:
    random_ = random.Random(seed)
    folder = tmp_path / "journal"
    chats: list[Chat] = []
    for _ in range(5):
        async with keeping(database_url, folder) as kept:
            for chat in chats:
                chat.ledger = kept.ledger

            async def live(chat: Chat, kept: Kept = kept) -> None:
                for _ in range(random_.randint(2, 8)):
                    if random_.random() < 0.2:
                        kept.is_maintenance = not kept.is_maintenance
                    await chat.say()
                    if random_.random() < 0.3:
                        await chat.is_whole_in(kept.ledger)

            chats += [await Chat.begin(kept.ledger) for _ in range(2)]
            await asyncio.gather(*map(live, chats))
    async with keeping(database_url, folder) as kept:
        await kept.drained()
    for chat in chats:
        await chat.is_whole_in(ledger)

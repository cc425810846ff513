"""Which entries share a batch: of one kind, one a conversation, in their order, within the bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.store.entries import (
    ConversationEntry,
    DoneEntry,
    Entry,
    TurnEntry,
    decode,
    encode,
)
from appliance.store.records import (
    FinishedTurn,
    FrozenText,
    Member,
    NewConversation,
    NewGreeting,
    NewMessage,
    Note,
    Persona,
    Scene,
)
from appliance.store.turn_batch import BatchLimits, choose
from appliance.store.write_faults import Fault, fault_of, is_out_of_ids
from appliance.tokens import pack

NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def turn(conversation: int, text: str = "") -> TurnEntry:
    said = NewMessage(message_id=uuid4(), role="assistant", text=text)
    finished = FinishedTurn(
        turn_key=uuid4(),
        tenant="acme",
        conversation_id=UUID(int=conversation),
        parent_id=None,
        user=None,
        assistant=said,
    )
    return TurnEntry(turn=finished, at=NOW)


def opening(conversation: int) -> ConversationEntry:
    opened = NewConversation(tenant="acme", conversation_id=UUID(int=conversation), created_at=NOW)
    return ConversationEntry(opened=opened)


def entry(code: int) -> Entry:
    return turn(code) if code >= 0 else opening(-code)


@given(
    st.lists(st.integers(-4, 4), max_size=30),
    st.sets(st.integers(0, 4), max_size=3),
    st.integers(1, 6),
)
def test_a_batch_is_of_one_kind_one_a_conversation_and_passes_nobody(
    codes: list[int], busy_ids: set[int], most: int
) -> None:
    waiting = [entry(code) for code in codes]
    busy = {("acme", UUID(int=one)) for one in busy_ids}
    places = choose(waiting, busy=busy, limits=BatchLimits(entries=most))
    chosen = [waiting[place] for place in places]
    assert list(places) == sorted(set(places))
    assert len(chosen) <= most
    assert len({type(one) for one in chosen}) <= 1
    keys = [one.key for one in chosen]
    assert len(set(keys)) == len(keys)
    assert not busy & set(keys)
    for place in places:
        assert waiting[place].key not in {one.key for one in waiting[:place]}
    free = [one for one in waiting if one.key not in busy]
    assert bool(chosen) == bool(free)
    if free:
        assert chosen[0] is free[0]


def test_a_batch_is_bounded_by_bytes_and_a_large_entry_goes_alone() -> None:
    waiting = [turn(1, "x" * 60), turn(2, "x" * 30), turn(3, "x" * 30), turn(4, "x" * 900)]
    limits = BatchLimits(entries=9, bytes=100)
    assert choose(waiting, busy=(), limits=limits) == (0, 1)
    assert choose(waiting[3:], busy=(), limits=limits) == (0,)


def test_an_entry_is_the_same_after_the_journal_whatever_it_holds() -> None:
    user = NewMessage(
        message_id=uuid4(),
        role="user",
        text="Salut \N{TEAPOT}\n",
        token_ids=pack([1, 2**32 - 1]),
        tokenizer="t",
        lore=(FrozenText(name="n", text="t", entry="e"),),
    )
    reply = NewMessage(
        message_id=uuid4(),
        role="assistant",
        text="",
        finish_reason="cancelled",
        prompt_tokens=7,
        prefix_hit_tokens=0,
    )
    finished = FinishedTurn(
        turn_key=uuid4(),
        tenant="acme",
        conversation_id=uuid4(),
        parent_id=uuid4(),
        user=user,
        assistant=reply,
        title="T",
        anchor_id=uuid4(),
        prompt_version="v" * 64,
        scene_digest=b"d" * 16,
    )
    opened = NewConversation(
        tenant="\N{SNOWMAN}",
        conversation_id=uuid4(),
        created_at=NOW,
        title="t",
        character="sage",
        scene=Scene(
            persona=Persona(name="Mara"),
            note=Note(text="n", every=2),
            members=(Member(id="a", version="v"),),
        ),
        greetings=(NewGreeting(message_id=uuid4(), turn_key=uuid4(), text="Hi"),),
        prompt_version="v" * 64,
    )
    for one in (
        TurnEntry(turn=finished, at=NOW),
        ConversationEntry(opened=opened),
        DoneEntry(numbers=(1, 2**40)),
    ):
        assert decode(encode(one)) == one


def failure(kind: type[asyncpg.PostgresError], code: str, routine: str) -> asyncpg.PostgresError:
    return kind.new({"C": code, "M": "in any language", "R": routine})


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (failure(asyncpg.PostgresError, "54000", "GetNewTransactionId"), Fault.DATABASE),
        (failure(asyncpg.PostgresError, "54000", "GetNewMultiXactId"), Fault.DATABASE),
        (failure(asyncpg.PostgresError, "54000", "index_form_tuple_context"), Fault.ENTRY_HELD),
        (asyncpg.LockNotAvailableError("55P03"), Fault.ENTRY_HELD),
        (failure(asyncpg.PostgresError, "58030", "mdreadv"), Fault.ENTRY_HELD),
        (failure(asyncpg.PostgresError, "58P01", "mdopenfork"), Fault.ENTRY_HELD),
        (failure(asyncpg.PostgresError, "XX000", "elog"), Fault.ENTRY_HELD),
        (failure(asyncpg.PostgresError, "XX001", "verify_page"), Fault.ENTRY_HELD),
        (failure(asyncpg.PostgresError, "P0001", "exec_stmt_raise"), Fault.ENTRY_HELD),
        (asyncpg.CheckViolationError("23514"), Fault.ENTRY_BUG),
        (asyncpg.CharacterNotInRepertoireError("22021"), Fault.ENTRY_BUG),
        (asyncpg.DiskFullError("53100"), Fault.DATABASE),
        (asyncpg.TooManyConnectionsError("53300"), Fault.DATABASE),
        (asyncpg.ReadOnlySQLTransactionError("25006"), Fault.DATABASE),
        (asyncpg.UndefinedTableError("42P01"), Fault.DATABASE),
        (asyncpg.InsufficientPrivilegeError("42501"), Fault.DATABASE),
        (ConnectionRefusedError(), Fault.DATABASE),
        (TimeoutError(), Fault.DATABASE),
        (asyncpg.InterfaceError("connection is closed"), Fault.DATABASE),
        (ValueError("no such value"), Fault.ENTRY_BUG),
    ],
)
def test_a_failure_is_an_entrys_or_the_databases(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault


def test_running_out_of_ids_is_told_by_code_and_routine_alone() -> None:
    assert is_out_of_ids(failure(asyncpg.PostgresError, "54000", "GetNewTransactionId"))
    assert not is_out_of_ids(failure(asyncpg.PostgresError, "54000", "elsewhere"))
    assert not is_out_of_ids(failure(asyncpg.PostgresError, "53100", "GetNewTransactionId"))
    assert not is_out_of_ids(OSError())

"""What a turn costs on the wire to PostgreSQL, counted at the socket: its own text, and little more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import pytest

from appliance.chat.conversations import Conversations
from appliance.store.ledger import Ledger
from appliance.wire.client import EngineClient
from tests.model_fixtures import tiny_model, write_directory
from tests.postgres.turns import turn
from tests.socket_relay import Wire, relayed
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.chat.test_over_a_real_engine import SHORT, client, engine_socket, turns_of

__all__ = ["client", "engine_socket"]

MESSAGES = 180
SAID = "What is said is about this long. And now?"
BESIDE_TEXT_BYTES_MAX = 4096
MESSAGES_PER_S = 30_000


@pytest.fixture
async def wire(database_url: str, tmp_path: Path) -> AsyncIterator[Wire]:
    """The counted way to the test's database."""
    async with relayed(database_url, tmp_path) as passing:
        yield passing


@pytest.fixture
async def pool(wire: Wire) -> AsyncIterator[object]:
    """The pool that all of the chat layer uses here."""
    from appliance.config import DatabaseConfig
    from appliance.store.pool import connect

    opened = await connect(wire.url, DatabaseConfig(pool_max=1))
    yield opened
    opened.terminate()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context has room for all of a conversation: none of it is cut."""
    model = tiny_model(max_position_embeddings=16_384)
    return write_directory(tmp_path_factory.mktemp("tiny-model"), model)


async def long_conversation(ledger: Ledger, conversations: Conversations) -> UUID:
    """A conversation of MESSAGES messages, each about as long as SAID, with their token ids."""
    conversation = await conversations.open(tenant=TENANT)
    parent_id = None
    for number in range(MESSAGES // 2):
        offered = turn(conversation, parent_id, f"{number} {SAID}", f"{number} {SAID}")
        stored = await ledger.append_turn(offered)
        parent_id = stored.assistant.message_id
    return conversation.conversation_id


async def test_a_warm_turn_of_a_long_conversation_moves_its_own_text_and_under_4_kb(
    wire: Wire,
    ledger: Ledger,
    conversations: Conversations,
    client: EngineClient,
    directory: Path,
    record_property: Callable[[str, object], None],
) -> None:
    conversation_id = await long_conversation(ledger, conversations)
    turns = turns_of(ledger, client, directory)
    wire.reset()
    await read(send(turns, conversation_id, SAID, params=SHORT))
    cold = wire.total
    assert cold > MESSAGES * len(SAID)  # The relay sees the history, where there is one to see.
    beside = []
    for number in range(5):
        said = f"{number} {SAID}"
        wire.reset()
        _, _, done = await read(send(turns, conversation_id, said, params=SHORT))
        beside.append(wire.total - len(said.encode()) - len(done.text.encode()))
    told = (
        f"a warm turn of {MESSAGES} messages: {max(beside)} bytes beside its text, the first one "
        f"{cold}; at {MESSAGES_PER_S} messages a second {max(beside) * MESSAGES_PER_S / 2 / 1e6:.0f} "
        f"MB/s instead of {cold * MESSAGES_PER_S / 2 / 1e6:.0f} MB/s"
    )
    print(told)
    record_property("wire", told)
    assert max(beside) <= BESIDE_TEXT_BYTES_MAX, told


async def test_what_a_turn_moves_does_not_grow_with_the_conversation(
    wire: Wire,
    ledger: Ledger,
    conversations: Conversations,
    client: EngineClient,
    directory: Path,
) -> None:
    turns = turns_of(ledger, client, directory)
    short = (await conversations.open(tenant=TENANT)).conversation_id
    long = await long_conversation(ledger, conversations)
    moved = []
    for conversation_id in (short, long):
        for _ in range(3):
            wire.reset()
            await read(send(turns, conversation_id, SAID, params=SHORT))
        moved.append(wire.total)
    assert abs(moved[1] - moved[0]) <= 64

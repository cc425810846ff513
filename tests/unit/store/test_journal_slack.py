"""A journal lets go of what is finished, also where its limit is small."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from appliance.store.entries import TurnEntry
from appliance.store.journal import Journal
from appliance.store.records import FinishedTurn, NewMessage

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
SMALLEST = 4 << 20


def turn(conversation: int, text: str) -> TurnEntry:
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


async def test_the_smallest_journal_is_not_filled_by_finished_entries(tmp_path: Path) -> None:
    journal = Journal(tmp_path, bytes_max=SMALLEST)
    try:
        await journal.append(turn(1, "stuck"))
        for _ in range(12):
            await journal.append(turn(2, "x" * (1 << 19)))
            *_, (newest, _) = journal.overlay.pending()
            await journal.settle([newest])
            assert journal.used_bytes < SMALLEST // 2
        assert [entry.key[1].int for _, entry in journal.overlay.pending()] == [1]
    finally:
        await journal.close()
    journal = Journal(tmp_path, bytes_max=SMALLEST)
    try:
        assert [entry.key[1].int for _, entry in journal.overlay.pending()] == [1]
    finally:
        await journal.close()

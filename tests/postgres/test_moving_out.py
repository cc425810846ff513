"""The way from the embedded database to a larger server, as docs/database.md has it."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

from appliance.config import DatabaseConfig
from appliance.dbops.cluster.binaries import Binaries
from appliance.store.ledger import Ledger
from appliance.store.migrate import migrate
from appliance.store.pool import connect
from appliance.store.search import Search
from tests.postgres.turns import TENANT, new_conversation, talk, turn

DOC = Path(__file__).parents[2] / "docs" / "database.md"


async def test_chats_go_on_in_a_server_of_ones_own(
    database_url: str, empty_database: str, ledger: Ledger, binaries: Binaries
) -> None:
    conversation = await new_conversation(ledger, title="moved")
    replies = await talk(ledger, conversation, 4)
    (command,) = re.findall(r"^    (pg_dump .*)$", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    command = command.replace("EMBEDDED", shlex.quote(database_url))
    command = command.replace("postgresql://chat@db.example/app", shlex.quote(empty_database))
    moving = await asyncio.create_subprocess_exec(
        *("/bin/bash", "-o", "pipefail", "-c", command),
        env={"PATH": f"{binaries.program('psql').parent}:/usr/bin:/bin"},
    )
    assert await moving.wait() == 0
    pool = await connect(empty_database, DatabaseConfig())
    await migrate(pool)
    moved = Ledger(pool)
    key = (TENANT, conversation.conversation_id)
    assert await moved.messages(*key) == await ledger.messages(*key)
    await moved.append_turn(turn(conversation, replies[-1], "and on", "yes"))
    page = await Search(pool).find(TENANT, "and on", limit=5)
    assert [found.conversation.title for found in page.found] == ["moved"]
    await pool.close()

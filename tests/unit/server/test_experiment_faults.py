"""What an experiment cannot show: no data, an arm without users, users in two arms. Each is told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

from appliance.store.pool import Pool, connect
from tests.unit.server.test_experiments import CROWD, Team, started, team

__all__ = ["team"]


@pytest.fixture
async def pool(team: Team) -> AsyncIterator[Pool]:
    """The database of a team whose experiment has 200 users in each arm."""
    config = team.door.services.config.database
    assert config.url is not None
    opened = await connect(config.url, config)
    await opened.execute(CROWD, *await started(team))
    yield opened
    opened.terminate()


CROSS = """
INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, user_id, experiment,
                                     arm, created_at, updated_at, exposed_at)
SELECT tenant, gen_random_uuid(), '', 'ada', user_id, experiment,
       CASE arm WHEN 'birds' THEN 'ships' ELSE 'birds' END, now(), now(), now()
FROM appliance.conversations
WHERE user_id LIKE 'one of many 1_'
"""


async def test_users_in_two_arms_are_counted_in_none_and_shown_everywhere(
    team: Team, pool: Pool
) -> None:
    await pool.execute(CROSS)
    page = team.folder / "page.html"
    report = await team.run("experiment", "report", "ships", "--page", str(page))
    assert "Users in two arms: 10, left out of every figure." in report
    assert "10, left out of every figure." in page.read_text()
    figures = (await team.ask("experiment", "report", "ships"))["analysis"]
    assert (figures["crossed"], figures["counts"]) == (10, [195, 195])
    assert "in two arms: 10 users, whom no report counts" in await team.run(
        "experiment", "status", "ships"
    )
    await team.run("experiment", "stop", "ships", "-m", "enough")
    await pool.execute("DELETE FROM appliance.conversations")
    assert "when it was ended." in await team.run("experiment", "report", "ships"), "it is kept"


async def test_a_metric_without_data_says_so_and_an_arm_without_users_voids_the_report(
    team: Team, pool: Pool
) -> None:
    await pool.execute("UPDATE appliance.messages SET ttft_ms = NULL")
    report = await team.ask("experiment", "report", "ships")
    lacking = {
        finding["metric"]["name"]: finding["lacks"]
        for finding in report["analysis"]["results"][0]["findings"]
        if finding["value"] is None
    }
    assert lacking["ttft_p50"] == lacking["messages_sent"] == "nothing was measured yet"
    assert "hit_ratio" not in lacking
    assert "Messages sent: nothing was measured yet." in await team.run(
        "experiment", "report", "ships"
    )
    await pool.execute("DELETE FROM appliance.conversations WHERE arm = 'ships'")
    report_text = await team.run("experiment", "report", "ships")
    assert "Did it help? It cannot be said." in report_text
    assert re.search(r"The split is wrong: p = \S+ for 200 to 0", report_text)
    assert "cannot be judged: the split is wrong" in await team.run(
        "experiment", "ship", "ships", "ships", "-m", "all the same", code=2
    )


async def test_the_salt_and_the_place_of_what_has_started_stay(team: Team, pool: Pool) -> None:
    for change in ("salt = 'x'", "layer = 'x'", "range_start = 0.1"):
        with pytest.raises(asyncpg.RestrictViolationError, match="has started are never changed"):
            await pool.execute(f"UPDATE appliance.experiments SET {change}")

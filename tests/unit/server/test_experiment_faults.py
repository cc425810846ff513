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
    status = await team.run("experiment", "status", "ships")
    assert "in two arms: 10 users, whom no report counts" in status
    assert re.search(r"birds  \w+  50.0%: 195 users, 205 conversations, seen in 205", status)
    await team.run("experiment", "stop", "ships", "-m", "enough")
    await pool.execute("DELETE FROM appliance.conversations")
    assert "when it was ended." in await team.run("experiment", "report", "ships"), "it is kept"


TESTERS = """
INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, user_id, experiment,
                                     arm, created_at, updated_at, exposed_at)
SELECT 'local', gen_random_uuid(), '', 'ada', 'one of us ' || i % 5, 'ships',
       CASE i % 2 WHEN 0 THEN 'birds' ELSE 'ships' END, now(), now(), now()
FROM generate_series(1, 20) AS i
"""
EXCLUDED = """
WITH other AS (
    INSERT INTO appliance.experiments (experiment, character_id, hypothesis, layer, salt, range_start,
                                       range_end, coverage, excludes, overrides, options, state)
    SELECT 'older', character_id, hypothesis, layer, salt, range_start, range_end, coverage, excludes,
           '{"local/one of us 0": "birds", "local/one of us 1": "ships"}', options, 'stopped'
    FROM appliance.experiments
)
UPDATE appliance.experiments
SET excludes = '{older}', overrides = '{"local/one of us 2": "birds", "local/one of us 3": "birds",
                                        "local/one of us 4": "ships"}'
"""


async def test_testers_and_those_of_what_is_excluded_count_nowhere_in_whatever_arms_they_are(
    team: Team, pool: Pool
) -> None:
    before = (await team.ask("experiment", "report", "ships"))["analysis"]
    await pool.execute(EXCLUDED)
    await pool.execute(TESTERS)
    after = (await team.ask("experiment", "report", "ships"))["analysis"]
    assert (after["crossed"], after["counts"]) == (0, before["counts"])
    assert after["results"][0]["users"] == before["results"][0]["users"]
    status = await team.ask("experiment", "status", "ships")
    assert (status["testers"], status["crossed"]) == (5, 0)
    assert [one["conversations"] for one in status["counts"]] == [200, 200]
    assert "testers: 5 users, whom no report counts" in await team.run(
        "experiment", "status", "ships"
    )
    ledger = team.door.services.storage.ledger
    for row in await pool.fetch(
        "SELECT conversation_id FROM appliance.conversations WHERE user_id LIKE 'one of us%'"
    ):
        await ledger.delete("local", row["conversation_id"])
    assert not await pool.fetchval("SELECT count(*) FROM appliance.experiment_deletions")


async def test_chats_that_were_deleted_are_counted_by_arm_and_a_report_warns_of_more_in_one(
    team: Team, pool: Pool
) -> None:
    page = team.folder / "page.html"
    ledger = team.door.services.storage.ledger

    async def delete(arm: str, chats: int) -> str:
        for row in await pool.fetch(
            "SELECT conversation_id FROM appliance.conversations WHERE arm = $1 "
            "ORDER BY user_id LIMIT $2",
            *(arm, chats),
        ):
            await ledger.delete("local", row["conversation_id"])
        return await team.run("experiment", "report", "ships", "--page", str(page))

    await delete("birds", 4)
    assert "Beware" not in await delete("ships", 6)
    assert "birds 4 (by 4 of its users), ships 6 (by 6 of its users)" in page.read_text()
    report = await delete("ships", 30)
    assert "Beware: users delete their chats more often in one arm than in another" in report
    assert "Beware" in page.read_text()
    assert ", 36 deleted" in await team.run("experiment", "status", "ships")
    gone = (await team.ask("experiment", "report", "ships"))["analysis"]["deleted"]
    assert (gone["chats"], gone["p_value"] < 0.001) == ([4, 36], True)


async def test_an_arm_whose_every_reply_fails_before_its_first_token_is_paused(
    team: Team, pool: Pool
) -> None:
    # Nothing else is stored of such a reply.
    await pool.execute(
        "UPDATE appliance.conversations SET failed_at = array_fill(now(), '{3}') WHERE arm = 'ships'"
    )
    await pool.execute(
        "DELETE FROM appliance.messages AS m USING appliance.conversations AS c "
        "WHERE c.conversation_id = m.conversation_id AND c.arm = 'ships'"
    )
    (paused,) = (await team.ask("experiment", "check"))["paused"]
    assert paused["arm"] == "ships"
    assert "Replies that failed or broke off: +100\N{NO-BREAK SPACE}%-points" in paused["why"]


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

"""An experiment over real HTTP, a real PostgreSQL and the admin socket, as a product team runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.cli.admin_client import Answered, ask_socket
from appliance.errors import Conflict
from appliance.prompt.bundle import Bundle
from appliance.store.pool import Connection, connect
from tests.unit.server.command_line import CommandLine, admin_door
from tests.unit.server.door import Door, Streamed
from tests.unit.server.test_conversations import create, get, send

EXPERIMENT = """
name: ships
hypothesis: Ships are better company than birds.
character: ada
primary: [messages_sent]
looks: planned
warm_up_minutes: 0
arms:
  - {name: birds, version: production}
  - {name: ships, version: SHIPS}
"""


REPORT = "appliance experiment report ships"


@dataclass(slots=True, kw_only=True)
class Team(CommandLine):
    """A product team, with a folder for its files."""

    folder: Path
    door: Door

    async def publish(self, counted: str) -> str:
        path = self.folder / "ada.yaml"
        path.write_text(f"id: ada\nname: Ada\nsystem: You are Ada, who counts {counted}.\n")
        return str((await self.ask("prompt", "publish", str(path), "-m", counted))["version"])

    def write(self, text: str) -> str:
        path = self.folder / "experiment.yaml"
        path.write_text(text)
        return str(path)


@pytest.fixture
async def team(
    stored_door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Team]:
    async with admin_door(stored_door, tmp_path) as config:
        yield Team(config=config, folder=tmp_path, door=stored_door, capsys=capsys)


async def started(team: Team) -> tuple[str, str]:
    """The versions of two arms of an experiment that runs."""
    birds = await team.publish("birds")
    await team.run("prompt", "label", "ada", "production", birds, "-m", "go")
    ships = await team.publish("ships")
    text = EXPERIMENT.replace("SHIPS", ships[:12])
    await team.run("experiment", "create", team.write(text), "-m", "let us see")
    await team.run("experiment", "start", "ships", "-m", "go")
    return birds, ships


async def test_a_draft_whose_control_was_replaced_does_not_start(team: Team) -> None:
    birds = await team.publish("birds")
    await team.run("prompt", "label", "ada", "production", birds, "-m", "go")
    ships, owls = await team.publish("ships"), await team.publish("owls")
    text = EXPERIMENT.replace("SHIPS", ships[:12])
    await team.run("experiment", "create", team.write(text), "-m", "let us see")
    await team.run("prompt", "label", "ada", "production", owls, "-m", "better")
    refused = await team.run("experiment", "start", "ships", "-m", "go", code=2)
    assert (
        f"arm birds was production when it was created, and production has moved to {owls[:12]}"
        in refused
    )
    await team.run("prompt", "label", "ada", "production", ships, "-m", "best")
    await team.run("experiment", "start", "ships", "-m", "production is an arm")


async def test_an_arm_that_takes_a_later_production_back_is_shipped_knowingly(team: Team) -> None:
    _, ships = await started(team)
    owls = await team.publish("owls")
    await team.run("prompt", "label", "ada", "production", owls, "-m", "better")
    deed = ("experiment", "ship", "ships", "ships", "-m", "they were right")
    refused = await team.run(*deed, code=2)
    assert f"production has moved to {owls[:12]} since ships was created" in refused
    assert f"production -> {ships[:12]}" in await team.run(*deed, "--anyway")


async def test_a_guardrail_that_paused_an_arm_meanwhile_is_not_shipped_past(team: Team) -> None:
    """The command looked before the pause; whoever moves the label looks again."""
    _, ships = await started(team)
    await team.run("experiment", "pause", "ships", "ships", "-m", "it harms")
    socket = team.door.services.config.paths.admin_socket
    body: dict[str, object] = {"arm": "ships", "author": "tests", "message": "x", "report": {}}
    with pytest.raises(Answered, match="arm ships of ships is paused: --anyway ships it"):
        await asyncio.to_thread(ask_socket, socket, "POST", "/experiments/ships/ship", body)
    body["anyway"] = True
    told = await asyncio.to_thread(ask_socket, socket, "POST", "/experiments/ships/ship", body)
    assert told["version"] == ships


async def test_from_a_file_to_figures_by_arm_and_on_to_production(team: Team) -> None:
    door = team.door
    door.say("one", " two")
    birds, ships = await started(team)
    opened: dict[str, str] = {}
    for number in range(12):
        user = f"user {number}"
        opened[user] = await create(door, character="ada", user=user)
        for _ in range(1 + number % 3):
            await send(door, opened[user], "Hello")
    pinned = {
        user: (await get(door, f"/api/conversations/{id}"))["prompt_version"]
        for user, id in opened.items()
    }
    assert set(pinned.values()) == {birds, ships}
    report = await team.ask("experiment", "report", "ships")
    by_arm = [list(pinned.values()).count(version) for version in (birds, ships)]
    assert report["analysis"]["counts"] == by_arm
    figures = {
        finding["metric"]["name"]: (finding["control"], finding["value"])
        for finding in report["analysis"]["results"][0]["findings"]
    }
    for place, version in enumerate((birds, ships)):
        mine = [number for number, own in enumerate(pinned.values()) if own == version]
        sent = sum(1 + number % 3 for number in mine)
        assert figures["messages_sent"][place] == pytest.approx(sent / len(mine))
        assert figures["conversations"][place] == 1
        assert figures["regenerations"][place] == 0
    text = await team.run("experiment", "report", "ships")
    assert "Did it help? Too early to say." in text
    assert "Shipped, new chats compute the new front once (" in text, "what shipping would cost"
    birds_alive = (
        f"{by_arm[0]} live chat{'' if by_arm[0] == 1 else 's'} of production keep their version"
    )
    assert birds_alive in text
    assert (
        f" {by_arm[1]} live chat{'' if by_arm[1] == 1 else 's'} of other versions keep theirs"
        in text
    )
    status = await team.run("experiment", "status", "ships")
    assert "let us see" in status

    async def refuse(_: Connection) -> None:
        raise Conflict("somebody else ended it")

    registry = door.services.catalog.registry
    with pytest.raises(Conflict, match="somebody else"):
        # The label moves and the experiment ends, or neither.
        await registry.move(
            "ada", "production", ships, seen=birds, author="ana", message="m", also=refuse
        )
    assert await registry.resolve("ada", "production") == birds

    later = await create(door, character="ada")  # The tenant itself is the user.
    await send(door, later, "Hello")
    shipped = await team.run("experiment", "ship", "ships", "ships", "-m", "they were right")
    assert f"production -> {ships[:12]}" in shipped
    history = await team.run("prompt", "history", "ada")
    assert "experiment ships, arm ships: they were right" in history
    new = await create(door, character="ada", user="somebody new")
    turn = (await send(door, new, "Hello")).chunks[0]
    assert turn["prompt_version"] == ships
    for user, conversation in opened.items():
        turn = (await send(door, conversation, "And now?")).chunks[0]
        assert turn["prompt_version"] == pinned[user], "who has begun keeps the version"
    kept = await team.ask("experiment", "status", "ships")
    assert kept["experiment"]["state"] == "shipped"
    assert kept["events"][-1]["has_report"]

    assert f"as arm ships of experiment ships; why: {REPORT}" in await team.run(
        "prompt", "history", "ada"
    )
    after = await team.ask("experiment", "report", "ships")
    assert after["subject"]["state"] == "shipped"
    looked_at, shipped_at = after["subject"]["looked_at"], after["shipped"]["at"]
    assert looked_at < shipped_at, "the report it was shipped with"
    assert sum(after["analysis"]["counts"]) == len(opened) + 1
    others = list(pinned.values()).count(birds)
    served = {name: after["shipped"][name] for name in ("new", "kept")}
    assert [(one["chats"], one["replies"]) for one in served.values()] == [(1, 1), (others, others)]
    tokens = turn_tokens(await send(door, new, "Again"))
    again = (await team.ask("experiment", "report", "ships"))["shipped"]["new"]
    assert again["prompt_tokens"] == served["new"]["prompt_tokens"] + tokens[0]
    assert again["hit_tokens"] == served["new"]["hit_tokens"] + tokens[1]
    page = team.folder / "after.html"
    told = await team.run("experiment", "report", "ships", "--page", str(page))
    for words in (
        "Foretold: Shipped, new chats compute",
        "Measured since: 2 replies of 1 chat opened since",
    ):
        assert words in told
        assert words in page.read_text()


def turn_tokens(turn: Streamed) -> tuple[int, int]:
    """Of the prompt, and of them in the cache."""
    told = turn.chunks[0]
    return told["prompt_tokens"], told["prefix_hit_tokens"]


CROWD = """
WITH people AS (
    INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, user_id,
                                         experiment, arm, created_at, updated_at, exposed_at)
    SELECT 'local', gen_random_uuid(), '', 'ada', 'one of many ' || i, 'ships',
           CASE i % 2 WHEN 0 THEN 'birds' ELSE 'ships' END, now(), now(), now()
    FROM generate_series(1, 400) AS i
    RETURNING tenant, conversation_id, arm
)
INSERT INTO appliance.messages (tenant, conversation_id, message_id, turn_key, depth, role, text,
                                created_at, prompt_version, finish_reason, prompt_tokens,
                                prefix_hit_tokens, token_ids, ttft_ms, reply_ms)
SELECT tenant, conversation_id, gen_random_uuid(), gen_random_uuid(), 0, 'assistant', 'x', now(),
       CASE arm WHEN 'birds' THEN $1 ELSE $2 END, 'stop', 1000,
       ((CASE arm WHEN 'birds' THEN 900 ELSE 500 END) + 50 * random())::integer, '', 100 + n, 200 + n
FROM people CROSS JOIN generate_series(1, 6) AS n
"""


LATER = """
INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, user_id, experiment,
                                     arm, created_at, updated_at, exposed_at)
SELECT 'local', gen_random_uuid(), '', 'ada', 'one of the later ' || i, 'ships', 'birds', now(), now(),
       now()
FROM generate_series(1, 160) AS i
"""


async def page_of(team: Team, name: str) -> str:
    """One of the operator's pages."""
    async with team.door.session.get(f"{team.door.url}/experiments/{name}") as answer:
        assert answer.status == 200
        return await answer.text()


async def test_a_check_pauses_what_empties_the_cache_and_its_page_says_so(team: Team) -> None:
    birds, ships = await started(team)
    pages = team.folder / "pages"
    assert "Nobody has looked since the server started" in await page_of(team, "")
    assert "nobody" in await team.run("experiment", "check", "--pages", str(pages))
    assert "nobody has had a prompt" in (pages / "index.html").read_text()
    config = team.door.services.config.database
    assert config.url is not None
    pool = await connect(config.url, config)
    await pool.execute(CROWD, birds, ships)

    checked = await team.ask("experiment", "check", "--pages", str(pages))
    (paused,) = checked["paused"]
    assert (paused["experiment"], paused["arm"]) == ("ships", "ships")
    assert "Prompt tokens found in the cache" in paused["why"]
    assert checked["experiments"][0]["verdicts"] == {"ships": "harms"}
    page = (pages / "ships.html").read_text()
    assert "No, it harms" in page
    assert "Arm ships was paused at" in page
    assert 'href="ships.html"' in (pages / "index.html").read_text()
    assert await page_of(team, "ships.html") == page, "the server shows what was looked at"
    assert await page_of(team, "") == (pages / "index.html").read_text()
    # Paused once; the control, and open chats, go on.
    assert (await team.ask("experiment", "check"))["paused"] == []
    status = await team.ask("experiment", "status", "ships")
    assert [arm["paused_at"] is None for arm in status["experiment"]["arms"]] == [True, False]
    assert status["events"][-1]["author"] == "guardrail"

    # The control goes on to let users in; who comes to it alone is no wrong split, and changes nothing.
    await pool.execute(LATER)
    await pool.close()
    report = await team.ask(
        "experiment", "report", "ships", "--page", str(team.folder / "one.html")
    )
    assert report["analysis"]["counts"] == [200, 200]
    (result,) = report["analysis"]["results"]
    assert result["verdict"] == "harms"
    hits = next(one for one in result["findings"] if one["metric"]["name"] == "hit_ratio")
    assert hits["relative"]["high"] < -0.05
    assert hits["guard"] == "breached"
    assert report["analysis"]["plan"]["looks"] == "planned", "a guardrail waits for no plan"
    assert "What does it cost?" in (team.folder / "one.html").read_text()
    await team.run("experiment", "stop", "ships", "-m", "it empties the cache")
    assert "no experiment runs" in await team.run("experiment", "check", "--pages", str(pages))
    assert "There are none yet" in (pages / "index.html").read_text()


OWN = """
- {name: own, title: Own, unit: x, direction: up, numerator: own.x, group: quality}
"""


async def test_a_metric_of_ones_own_at_fault_is_no_reason_to_look_away(team: Team) -> None:
    birds, ships = await started(team)
    config = team.door.services.config.database
    assert config.url is not None
    pool = await connect(config.url, config)
    await pool.execute(CROWD, birds, ships)
    await pool.close()
    own = team.folder / "own"
    own.mkdir()
    (own / "metrics.yaml").write_text(OWN)
    (own / "own.sql").write_text(
        "SELECT person, NULL::float8 AS x FROM appliance.experiment_people($1::text)"
    )
    for command in (("check",), ("report", "ships"), ("stop", "ships", "-m", "enough")):
        told = await team.run("experiment", *command, "--metrics", str(own), code=2)
        assert "own.sql: a value of 'x' is null; use coalesce" in told
    (own / "own.sql").write_text(
        "SELECT person, 1 AS x FROM appliance.experiment_people($1::text);"
    )
    checked = await team.ask("experiment", "check", "--metrics", str(own))
    assert [one["arm"] for one in checked["paused"]] == ["ships"]
    ship = ("experiment", "ship", "ships", "ships", "-m", "all the same", "--metrics", str(own))
    assert "arm ships is paused and harms" in await team.run(*ship, code=2)

    # One that decides is asked for by name, and not taken for too few users.
    await team.run("experiment", "stop", "ships", "-m", "enough")
    text = EXPERIMENT.replace("SHIPS", ships[:12]).replace("messages_sent", "own")
    path = team.write(text.replace("name: ships\n", "name: two\n", 1))
    await team.run("experiment", "create", path, "-m", "two", "--metrics", str(own))
    await team.run("experiment", "start", "two", "-m", "go")
    refused = await team.run("experiment", "report", "two", code=2)
    assert "two is decided by own, which the program does not measure: say --metrics" in refused
    assert "nobody" in await team.run("experiment", "report", "two", "--metrics", str(own), code=2)
    assert "nobody" in await team.run("experiment", "check"), "guardrails need it not"
    # Where it is not measured, a page has no other answer in its place.
    pool = await connect(config.url, config)
    await pool.execute(
        CROWD.replace("'ships',", "'two',").replace("one of many", "another"), birds, ships
    )
    await pool.close()
    checked = await team.ask("experiment", "check")
    assert [one["arm"] for one in checked["paused"]] == ["ships"], "guardrails are judged"
    assert checked["experiments"][0]["verdicts"] == {}
    assert "decided by own, which" in checked["experiments"][0]["lacks"]
    assert "decided by own, which" in await page_of(team, "")
    checked = await team.ask("experiment", "check", "--metrics", str(own))
    assert checked["experiments"][0]["verdicts"] == {"ships": "harms"}


async def test_a_plan_is_made_of_what_users_did_before_anybody_is_in_it(team: Team) -> None:
    birds, ships = await started(team)
    text = EXPERIMENT.replace("SHIPS", ships[:12]).replace("messages_sent", "hit_ratio")
    path = team.write(
        text.replace("looks: planned\n", "").replace("name: ships\n", "name: two\n", 1)
    )
    nobody = await team.run("experiment", "plan", path, code=2)
    assert "nobody opened a chat with ada in the last 14 days" in nobody
    config = team.door.services.config.database
    assert config.url is not None
    pool = await connect(config.url, config)
    await pool.execute(CROWD, birds, ships)
    await pool.close()
    plan = await team.ask("experiment", "plan", path)
    assert (plan["came"], plan["let_in"]) == (400, 400)
    assert plan["metrics"][0]["value"] == pytest.approx(0.725, abs=0.01)
    assert plan["users"] == plan["metrics"][0]["users"] >= 200
    told = await team.run("experiment", "plan", path)
    assert "Prompt tokens found in the cache: 72" in told
    assert f"write `users: {plan['users']}` into {path}" in told
    status = await team.ask("experiment", "status")
    assert [one["name"] for one in status["experiments"]] == ["ships"]


async def test_what_is_wrong_is_told_with_what_to_do_before_anybody_is_in_it(team: Team) -> None:
    _, ships = await started(team)
    good = EXPERIMENT.replace("SHIPS", ships[:12])
    told = await team.run("experiment", "create", team.write(good), "-m", "again", code=2)
    assert "there is an experiment 'ships' already (running)" in told
    salted = good + "salt: another\n"
    told = await team.run("experiment", "create", team.write(salted), "-m", "again", code=2)
    assert "'ships' runs with salt 'ships': another one would give its users other arms" in told
    lacking = good.replace(f", version: {ships[:12]}", "").replace("name: ships\n", "name: two\n")
    told = await team.run("experiment", "create", team.write(lacking), "-m", "two", code=2)
    assert "'ships' has no version: name a label" in told
    wrong = good.replace("messages_sent", "love").replace("name: ships\n", "name: two\n")
    told = await team.run("experiment", "lint", team.write(wrong), code=2)
    assert "there is no metric 'love' (there are: " in told
    unknown = good.replace(ships[:12], "ffff0000").replace("name: ships\n", "name: two\n")
    told = await team.run("experiment", "lint", team.write(unknown), code=2)
    assert "no version of ada begins with 'ffff0000'" in told
    aa = good.replace(ships[:12], "production").replace("name: ships\n", "name: two\n", 1)
    told = await team.run("experiment", "lint", team.write(aa))
    assert "note: arms: some have the same version: this shows what chance does (A/A)" in told
    registry, files = team.door.services.catalog.registry, {"character.yaml": b"id: ada\nlater: 1"}
    later = Bundle(name="ada", files=files).version
    await registry.publish("ada", later, files, author="ana", message="by a later program")
    unusable = good.replace(ships[:12], later).replace("name: ships\n", "name: two\n", 1)
    told = await team.run("experiment", "lint", team.write(unusable), code=2)
    assert "arms: 'ships': the conversation's version of the character is unusable" in told
    told = await team.run("experiment", "lint", team.write(f"{aa}excludes: [whales]\n"), code=2)
    assert "error: excludes: there is no experiment 'whales'" in told
    told = await team.run("experiment", "lint", team.write("name: [1]"), code=2)
    assert "Expected `str`, got `array` - at `$.name`" in told
    for name in ("..", ".", "Ships", ""):
        told = await team.run("experiment", "status", name, code=2)
        assert f"NAME: {name!r} is not 1 to 64 of a-z 0-9 _ -" in told
    # Also a word that an address has for something else.
    lacking = await team.run("experiment", "status", "lint", code=2)
    assert "no experiment 'lint' (there are: ships)" in lacking
    for share in ("0", "10", "nan"):
        told = await team.run(
            "experiment", "start", "ships", "--coverage", share, "-m", "x", code=2
        )
        assert f"--coverage: {share} is no share: above 0 and at most 1" in told
    nobody = await team.run("experiment", "report", "ships", code=2)
    assert "nobody has had a prompt of it yet: 0 conversations" in nobody
    assert "no experiment 'x' (there are: ships)" in await team.run(
        "experiment", "report", "x", code=2
    )


async def test_two_experiments_share_a_layer_side_by_side_and_never_the_same_users(
    team: Team,
) -> None:
    _, ships = await started(team)
    second = EXPERIMENT.replace("SHIPS", ships[:12]).replace("name: ships\n", "name: two\n", 1)
    told = await team.run("experiment", "create", team.write(second), "-m", "two")
    assert "note: layer 'ada': [0, 1) overlaps with 'ships', which runs in [0, 1)" in told
    refused = await team.run("experiment", "start", "two", "-m", "go", code=2)
    assert "overlaps with 'ships'" in refused
    elsewhere = second.replace("name: two\n", "name: three\nlayer: other\n", 1)
    await team.run("experiment", "create", team.write(elsewhere), "-m", "three")
    refused = await team.run("experiment", "start", "three", "-m", "go", code=2)
    assert "experiments on a character share a layer; take layer 'ada'" in refused
    smaller = await team.run("experiment", "start", "ships", "--coverage", "0.5", "-m", "x", code=2)
    assert "a ramp only adds users" in smaller
    await team.run("experiment", "stop", "ships", "-m", "enough")
    start = ("experiment", "start", "two", "-m", "go")
    assert "two: runs, with 10% of the users" in await team.run(*start, "--coverage", "0.1")
    assert "a ramp only adds users" in await team.run(*start, "--coverage", "0.05", code=2)
    assert "two: runs, with 50% of the users" in await team.run(*start, "--coverage", "0.5")
    assert "two runs already, with 50%" in await team.run(*start, code=2)
    apart = second.replace("name: two\n", "name: four\nexcludes: [two]\n", 1)
    apart = apart.replace(ships[:12], "production").replace(
        "character: ada", "character: lighthouse"
    )
    await team.run("experiment", "create", team.write(apart), "-m", "four")
    await team.run("experiment", "start", "four", "-m", "go")
    told = await team.run(*start, "--coverage", "0.9", code=2)
    assert "letting any in now would throw them out of four" in told
    await team.run("experiment", "stop", "four", "-m", "enough")
    events = (await team.ask("experiment", "status", "two"))["events"]
    assert [event["kind"] for event in events] == ["created", "started", "ramped"]
    again = await team.run("experiment", "start", "ships", "-m", "go", code=2)
    assert "only a draft can be started" in again


async def test_an_arm_that_nobody_is_in_is_told_and_no_figure_is_made_up(team: Team) -> None:
    team.door.say("one")
    await started(team)
    for number in range(6):
        user = f"user {number}"
        opened = await create(team.door, character="ada", user=user)
        arm = (await get(team.door, f"/api/conversations/{opened}"))["prompt_version"]
        if number == 0:
            first = arm
        if arm == first:
            await send(team.door, opened, "Hello")
    report = await team.ask("experiment", "report", "ships")
    (result,) = report["analysis"]["results"]
    assert all("no users in" in finding["lacks"] for finding in result["findings"])
    assert all(finding["value"] is None for finding in result["findings"])


TURNS = """
WITH moves AS (
    SELECT i, CASE i / 2 % 2 WHEN 0 THEN i % 2 ELSE 1 - i % 2 END = 1 AS is_after,
           now() - (20 - i) * interval '1 hour' AS starts
    FROM generate_series(0, 19) AS i
), moved AS (
    INSERT INTO appliance.prompt_moves (name, label, to_version, protected, author, message, moved_at)
    SELECT 'ada', 'production', CASE WHEN is_after THEN $2 ELSE $1 END, false, 'ana', 'turn', starts
    FROM moves ORDER BY i
), opened AS (
    INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, created_at,
                                         updated_at)
    SELECT 'local', gen_random_uuid(), 'turn ' || i, 'ada', starts + interval '15 minutes', now()
    FROM moves
    RETURNING tenant, conversation_id, title
)
INSERT INTO appliance.messages (tenant, conversation_id, message_id, turn_key, depth, role, text,
                                created_at, prompt_version, finish_reason, prompt_tokens,
                                prefix_hit_tokens, token_ids, ttft_ms)
SELECT tenant, conversation_id, gen_random_uuid(), gen_random_uuid(), 0, 'assistant', 'x',
       starts + (CASE n WHEN 0 THEN 5 ELSE 15 + n END) * interval '1 minute',
       CASE WHEN is_after THEN $2 ELSE $1 END, 'stop', 100, 90, '',
       -- A tide over the day, a little noise, and what the second version costs; cold at first.
       ((1000 + 90 * i) * (CASE WHEN is_after THEN 1.3 ELSE 1.0 END)
        * (CASE n WHEN 0 THEN 9 ELSE 1 + 0.01 * (n % 3) END))::integer
FROM opened JOIN moves ON title = 'turn ' || i CROSS JOIN generate_series(0, 30) AS n
"""


async def test_latency_is_compared_by_turns_of_the_label(team: Team) -> None:
    birds, ships = await team.publish("birds"), await team.publish("ships")
    command = ("experiment", "switchback", "ada", birds[:12], ships[:12])
    assert "stood at no version" in await team.run(*command, code=2)
    config = team.door.services.config.database
    assert config.url is not None
    pool = await connect(config.url, config)
    await pool.execute(TURNS, birds, ships)
    await pool.close()
    told = await team.ask(*command)
    assert (told["periods"], told["paired"]) == (20, 20)
    median, tail, reply = told["turns"]
    assert median["blocks"] == 10
    # Neighbours are nine per cent of a period's tide apart, to both sides alike.
    assert median["effect"]["low"] < 0.3 < median["effect"]["high"]
    assert median["effect"]["high"] - median["effect"]["low"] < 0.2
    assert tail["effect"]["low"] > 0.15
    assert reply["effect"] is None, "nothing was measured"
    assert "Time to first token, median: +" in await team.run(*command)
    assert "no time in ISO 8601" in await team.run(*command, "--since", "noon", code=2)
    assert (await team.ask(*command, "--since", "2999-01-01"))["periods"] == 0

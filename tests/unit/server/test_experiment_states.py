"""Every command on an experiment in every state, as a team types it: it works, or says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from appliance.cli.admin_client import Answered, ask_socket
from appliance.server.admin import serving_admin
from appliance.server.auth import Keys
from appliance.store.experiment_records import Experiment, Options
from tests.experiment_drafts import a_draft
from tests.unit.server.door import open_door
from tests.unit.server.test_conversations import create, get, send
from tests.unit.server.test_experiments import EXPERIMENT, Team, team

__all__ = ["team"]

SLICES = 32
"""Experiments of a test, each with its part of the character's layer."""


@dataclass(slots=True)
class Bench:
    """A team with two versions, and experiments in whatever state."""

    team: Team
    versions: tuple[str, str]
    made: int = 0

    @property
    def store(self) -> Any:
        return self.team.door.services.experimenting.experiments

    async def in_state(self, state: str) -> str:
        """The name of a new experiment."""
        name, place = f"one-{self.made}", self.made
        self.made += 1
        who = {"author": "ana", "message": "let us see"}
        experiment = a_draft(
            dict(zip(("birds", "ships"), self.versions, strict=True)),
            name=name,
            salt=name,
            range_start=place / SLICES,
            range_end=(place + 1) / SLICES,
            coverage=0.1,
            overrides={"local/tester": "ships"},
            options=Options(primary=("messages_sent",)),
        )
        await self.store.create(experiment, **who)
        if state not in ("draft", "withdrawn"):
            await self.store.start(name, check=lambda others: None, **who)
        if state == "paused":
            await self.store.pause(name, "ships", **who)
        if state in ("stopped", "shipped"):
            arm = "birds" if state == "shipped" else None
            report = '{"nothing": "it was short"}'
            await self.store.end(name, state, arm=arm, report=report, **who)
        if state == "withdrawn":
            await self.store.end(name, state, arm=None, report=None, **who)
        await self.team.door.services.experimenting.trials.reload(self.store)
        return name

    def file(self, name: str) -> str:
        """Its definition."""
        text = EXPERIMENT.replace("SHIPS", self.versions[1][:12])
        return self.team.write(text.replace("name: ships\n", f"name: {name}\n", 1))

    async def known(self, name: str) -> tuple[Any, Any, str]:
        """All that a command could have changed."""
        registry = self.team.door.services.catalog.registry
        return (
            await self.store.get(name),
            await self.store.events(name),
            await registry.resolve("ada", "production"),
        )


@pytest.fixture
async def bench(team: Team) -> Bench:
    birds = await team.publish("birds")
    await team.run("prompt", "label", "ada", "production", birds, "-m", "go")
    return Bench(team, (birds, await team.publish("ships")))


WHY = ("-m", "so it is")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "lint": ("lint", "FILE"),
    "create": ("create", "FILE", *WHY),
    "plan": ("plan", "FILE"),
    "status": ("status", "NAME"),
    "report": ("report", "NAME"),
    "check": ("check",),
    "less": ("start", "NAME", "--coverage", "0.01", *WHY),
    "start": ("start", "NAME", *WHY),
    "more": ("start", "NAME", "--coverage", "0.5", *WHY),
    "pause": ("pause", "NAME", "ships", *WHY),
    "pause nothing": ("pause", "NAME", "whales", *WHY),
    "stop": ("stop", "NAME", *WHY),
    "withdraw": ("withdraw", "NAME", *WHY),
    "ship": ("ship", "NAME", "ships", *WHY),
    "ship anyway": ("ship", "NAME", "ships", "--anyway", *WHY),
    "ship nothing": ("ship", "NAME", "whales", *WHY),
}
NOBODY = (2, "nobody has had a prompt of it yet: 0 conversations were opened in it", "")
NO_DRAFT = (2, "NAME is no draft: only a draft is withdrawn; `stop` ends what runs", "")
NO_ARM = (2, "has no arm 'whales' (there are: birds, ships)", "")
TABLE: Mapping[str, Mapping[str, tuple[int, str, str]]] = {
    "draft": {
        "lint": (2, "there is an experiment 'NAME' already (draft)", ""),
        "create": (2, "there is an experiment 'NAME' already (draft)", ""),
        "status": (0, "NAME  draft  not started", ""),
        "report": (2, "NAME has not started: there is nothing to measure", ""),
        "check": (0, "NAME: has not started: there is nothing to measure", ""),
        "less": (0, "NAME: runs, with 1% of the users", "started"),
        "start": (0, "NAME: runs, with 10% of the users", "started"),
        "more": (0, "NAME: runs, with 50% of the users", "started"),
        "pause": (2, "NAME is draft: only an arm of what runs is paused", ""),
        "pause nothing": NO_ARM,
        "stop": (2, "NAME does not run: only a running experiment can be stopped", ""),
        "withdraw": (0, "NAME: withdrawn; it is never started", "withdrawn"),
        "ship": (2, "NAME is draft: only what has run is shipped", ""),
        "ship anyway": (2, "NAME is draft: only what has run is shipped", ""),
        "ship nothing": NO_ARM,
    },
    "running": {
        "lint": (2, "there is an experiment 'NAME' already (running)", ""),
        "create": (2, "there is an experiment 'NAME' already (running)", ""),
        "status": (0, "NAME  running  since", ""),
        "report": NOBODY,
        "check": (0, "NAME: nobody has had a prompt of it yet", ""),
        "less": (2, "NAME lets in 10% of its users already: a ramp only adds users", ""),
        "start": (2, "NAME runs already, with 10% of its users", ""),
        "more": (0, "NAME: runs, with 50% of the users", "ramped"),
        "pause": (0, "NAME, arm ships: no more chats are opened in it", "paused"),
        "pause nothing": NO_ARM,
        "stop": (0, "NAME: stopped; open chats keep their version", "stopped"),
        "withdraw": NO_DRAFT,
        "ship": (0, "NAME, arm ships", "shipped"),
        "ship anyway": (0, "production is at", "shipped"),
        "ship nothing": NO_ARM,
    },
    "paused": {
        "lint": (2, "there is an experiment 'NAME' already (running)", ""),
        "create": (2, "there is an experiment 'NAME' already (running)", ""),
        "status": (0, "ships (paused)", ""),
        "report": NOBODY,
        "check": (0, "NAME: nobody has had a prompt of it yet", ""),
        "less": (2, "NAME lets in 10% of its users already: a ramp only adds users", ""),
        "start": (2, "NAME runs already, with 10% of its users", ""),
        "more": (0, "NAME: runs, with 50% of the users", "ramped"),
        "pause": (0, "NAME, arm ships: was paused before", ""),
        "pause nothing": NO_ARM,
        "stop": (0, "NAME: stopped; open chats keep their version", "stopped"),
        "withdraw": NO_DRAFT,
        "ship": (2, "arm ships is paused", ""),
        "ship anyway": (0, "NAME, arm ships", "shipped"),
        "ship nothing": NO_ARM,
    },
    "stopped": {
        "lint": (2, "there is an experiment 'NAME' already (stopped)", ""),
        "create": (2, "there is an experiment 'NAME' already (stopped)", ""),
        "status": (0, "NAME  stopped  since", ""),
        "report": NOBODY,
        "check": (0, "no experiment runs", ""),
        "less": (2, "NAME is stopped: only a draft can be started", ""),
        "start": (2, "NAME is stopped: only a draft can be started", ""),
        "more": (2, "NAME is stopped: only a draft can be started", ""),
        "pause": (2, "NAME is stopped: only an arm of what runs is paused", ""),
        "pause nothing": NO_ARM,
        "stop": (2, "NAME does not run: only a running experiment can be stopped", ""),
        "withdraw": NO_DRAFT,
        "ship": (0, "NAME, arm ships", "shipped"),
        "ship anyway": (0, "production is at", "shipped"),
        "ship nothing": NO_ARM,
    },
    "shipped": {
        "lint": (2, "there is an experiment 'NAME' already (shipped)", ""),
        "create": (2, "there is an experiment 'NAME' already (shipped)", ""),
        "status": (0, "NAME  shipped  since", ""),
        "report": NOBODY,
        "check": (0, "no experiment runs", ""),
        "less": (2, "NAME is shipped: only a draft can be started", ""),
        "start": (2, "NAME is shipped: only a draft can be started", ""),
        "more": (2, "NAME is shipped: only a draft can be started", ""),
        "pause": (2, "NAME is shipped: only an arm of what runs is paused", ""),
        "pause nothing": NO_ARM,
        "stop": (2, "NAME does not run: only a running experiment can be stopped", ""),
        "withdraw": NO_DRAFT,
        "ship": (2, "NAME is shipped: only what has run is shipped", ""),
        "ship anyway": (2, "NAME is shipped: only what has run is shipped", ""),
        "ship nothing": NO_ARM,
    },
    "withdrawn": {
        "lint": (2, "there is an experiment 'NAME' already (withdrawn)", ""),
        "create": (2, "there is an experiment 'NAME' already (withdrawn)", ""),
        "status": (0, "NAME  withdrawn  not started", ""),
        "report": (2, "NAME was withdrawn as a draft: there is nothing to measure", ""),
        "check": (0, "no experiment runs", ""),
        "less": (2, "NAME is withdrawn: only a draft can be started", ""),
        "start": (2, "NAME is withdrawn: only a draft can be started", ""),
        "more": (2, "NAME is withdrawn: only a draft can be started", ""),
        "pause": (2, "NAME is withdrawn: only an arm of what runs is paused", ""),
        "pause nothing": NO_ARM,
        "stop": (2, "only a running experiment can be stopped; a draft is withdrawn", ""),
        "withdraw": NO_DRAFT,
        "ship": (2, "NAME is withdrawn: only what has run is shipped", ""),
        "ship anyway": (2, "NAME is withdrawn: only what has run is shipped", ""),
        "ship nothing": NO_ARM,
    },
}
"""By state and command: the exit code, words of what is printed, and the event that is added."""


@pytest.mark.parametrize("state", TABLE)
async def test_each_command_works_in_each_state_or_says_why_not_and_then_nothing_is_done(
    bench: Bench, state: str
) -> None:
    team, expected = bench.team, dict(TABLE[state])
    expected["plan"] = (2, "nobody opened a chat with ada in the last 14 days", "")
    assert expected.keys() == COMMANDS.keys()
    # What changes nothing goes first, on one experiment.
    shared = await bench.in_state(state)
    for command in sorted(COMMANDS, key=lambda command: bool(expected[command][2])):
        code, words, event = expected[command]
        name = await bench.in_state(state) if event else shared
        arguments = [
            {"NAME": name, "FILE": bench.file(name)}.get(word, word) for word in COMMANDS[command]
        ]
        before = await bench.known(name)
        told = await team.run("experiment", *arguments, code=code)
        assert words.replace("NAME", name) in told, (state, command)
        assert "Traceback" not in told
        after = await bench.known(name)
        if not event:
            assert after == before, (state, command)
            continue
        assert [one.kind for one in after[1][len(before[1]) :]] == [event], (state, command)
        if event == "shipped":
            assert after[2] == bench.versions[1]
            assert after[0].state == "shipped"
        if state == "stopped":
            assert after[0].stopped_at == before[0].stopped_at, "from then on nothing counts"


async def test_a_tester_has_the_arm_while_it_is_open_and_production_else(bench: Bench) -> None:
    door = bench.team.door
    door.say("one")
    birds, ships = bench.versions
    expected = {
        "draft": birds,
        "paused": birds,
        "stopped": birds,
        "shipped": birds,
        "running": ships,
    }
    for state, version in expected.items():
        name = await bench.in_state(state)
        opened = await create(door, character="ada", user="tester")
        found = await get(door, f"/api/conversations/{opened}")
        assert found["prompt_version"] in (None, version), state
        assert (await send(door, opened, "Hello")).chunks[0]["prompt_version"] == version, state
        assert (await bench.store.apart(name)).testers == (state == "running")
        assert await bench.store.counts(name) == (), "and counts in no figure"
        if state == "paused":
            await bench.store.end(name, "stopped", arm=None, author="ana", message="m", report=None)


async def test_a_protected_label_is_shipped_to_only_where_it_is_named_again(bench: Bench) -> None:
    team, (birds, ships) = bench.team, bench.versions
    label = ("prompt", "label", "ada", "production", birds, "--protect", "-m", "careful")
    await team.run(*label)
    name = await bench.in_state("running")
    before = await bench.known(name)
    command = ("experiment", "ship", name, "ships", *WHY)
    assert "name it again to move it (--confirm production)" in await team.run(*command, code=2)
    told = await team.run(*command, "--confirm", "canary", code=2)
    assert "--confirm names 'canary', the label is 'production': nothing is done" in told
    assert await bench.known(name) == before
    await team.run(*command, "--confirm", "production")
    assert (await bench.known(name))[2] == ships


AT_ONCE: Mapping[str, tuple[str, tuple[tuple[str, dict[str, Any]], ...]]] = {
    "started": ("draft", (("start", {}),) * 2),
    "ramped": ("running", (("start", {"coverage": 0.5}),) * 2),
    "stopped": ("running", (("stop", {"report": {}}),) * 2),
    "withdrawn": ("draft", (("withdraw", {}),) * 2),
    "shipped": (
        "running",
        (("ship", {"arm": "birds", "report": {}}), ("ship", {"arm": "ships", "report": {}})),
    ),
}
"""What one of two operators does, from which state, and what the two ask for at once."""


async def test_of_two_operators_at_once_one_does_it_and_the_other_is_told(bench: Bench) -> None:
    services = bench.team.door.services
    socket = services.config.paths.admin_socket

    async def deed(name: str, author: str, what: str, fields: dict[str, Any]) -> Any:
        body = {"author": author, "message": "m", **fields}
        path = f"/experiments/{name}/{what}"
        try:
            return await asyncio.to_thread(ask_socket, socket, "POST", path, body)
        except Answered as refused:
            return refused

    for kind, (state, asked) in AT_ONCE.items():
        name = await bench.in_state(state)
        before = len(await bench.store.events(name))
        told = await asyncio.gather(
            *(deed(name, who, *one) for who, one in zip("ab", asked, strict=True))
        )
        (refused,) = [one for one in told if isinstance(one, Answered)]
        assert refused.code == "conflict"
        (event,) = (await bench.store.events(name))[before:]
        assert event.kind == kind
        if kind == "shipped":
            version = bench.versions[("birds", "ships").index(event.arm)]
            at = await services.catalog.registry.resolve("ada", "production")
            assert at == version, "the label and the event agree"


async def test_two_that_overlap_are_not_started_at_once(bench: Bench) -> None:
    team = bench.team
    for name in ("left", "right"):
        await team.run("experiment", "create", bench.file(name), *WHY)
    deeds = team.door.services.experimenting
    who = {"author": "ana", "message": "m"}
    told = await asyncio.gather(
        *(deeds.start(name, coverage=None, **who) for name in ("left", "right")),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Experiment) for one in told) == 1
    assert len(await bench.store.running()) == 1


async def test_after_a_restart_of_the_server_chats_users_and_commands_go_on(
    bench: Bench, database_url: str
) -> None:
    team = bench.team
    name = await bench.in_state("running")
    opened = await create(team.door, character="ada", user="tester")
    async with open_door(url=database_url) as door:
        # As the server's start does.
        services = door.services
        await services.catalog.reload()
        await services.experimenting.trials.reload(services.experimenting.experiments)
        team.config.write_text(
            team.config.read_text().replace(
                str(team.door.services.config.paths.run_dir), str(services.config.paths.run_dir)
            )
        )
        async with serving_admin(services, Keys.from_config(services.config.server)):
            door.say("one")
            turn = (await send(door, opened, "Hello")).chunks[0]
            assert turn["prompt_version"] == bench.versions[1]
            again = await create(door, character="ada", user="tester")
            turn = (await send(door, again, "Hello")).chunks[0]
            assert turn["prompt_version"] == bench.versions[1]
            told = await team.ask("experiment", "status", name)
            assert (told["counts"], told["testers"]) == ([], 1)
            await team.run("experiment", "stop", name, *WHY)
    await team.door.services.experimenting.trials.reload(bench.store)
    assert await bench.store.running() == (), "the first server sees it, too"

"""The prompt commands over the admin socket of a real server, with a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.prompt.bundle_folder import read_bundles
from appliance.server.main import PROMPTS_DIR
from tests.card_fixtures import v2
from tests.unit.prompt.template_files import HISTORY
from tests.unit.server.command_line import CommandLine, admin_door
from tests.unit.server.door import Door
from tests.unit.server.test_conversations import create, get, send

MOOD = (
    "name: mood\ninputs:\n  character: {type: map, scope: character}\n---\n"
    "- {name: system, zone: character, role: system, content: '{{ character.system }}'}\n"
    "- {name: mood, zone: persona, role: system, content: 'The mood is MOOD.'}\n" + HISTORY
)
SYSTEM = "You are Ada. You count and you are patient with everybody who asks you anything."


@dataclass(slots=True, kw_only=True)
class Operator(CommandLine):
    """Somebody who runs `appliance prompt …`, with a folder of characters."""

    area = ("prompt",)
    folder: Path
    door: Door

    async def run(self, *words: str, code: int = 0) -> str:
        """What a command printed, to stderr when, and only when, it failed."""
        out, err = await self.printed(*words, code=code)
        assert bool(err) == (code != 0)
        return err or out

    def write(self, mood: str, *, system: str = SYSTEM) -> str:
        """Ada's file with a template of hers, in this mood."""
        (self.folder / "templates").mkdir(parents=True, exist_ok=True)
        (self.folder / "templates" / "mood.yaml").write_text(MOOD.replace("MOOD", mood))
        path = self.folder / "ada.yaml"
        path.write_text(f"id: ada\nname: Ada\nsystem: {system}\ntemplate: mood\n")
        return str(path)

    async def publish(self, mood: str, **fields: str) -> str:
        answer = await self.ask("publish", self.write(mood, **fields), "-m", f"mood {mood}")
        return str(answer["version"])

    async def label(self, label: str, version: str, *words: str, code: int = 0) -> str:
        return await self.run("label", "ada", label, version, "-m", "because", *words, code=code)


@pytest.fixture
async def operator(
    stored_door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Operator]:
    async with admin_door(stored_door, tmp_path) as config:
        folder = tmp_path / "prompts"
        yield Operator(config=config, folder=folder, door=stored_door, capsys=capsys)


async def front_of(door: Door, conversation: str) -> str:
    """The text of the newest prompt of a conversation."""
    stored = await get(door, f"/api/conversations/{conversation}")
    path = f"/api/conversations/{conversation}/messages/{stored['head_id']}/prompt"
    return str((await get(door, path))["text"])


async def test_from_a_file_to_a_chat_and_on_to_the_next_version(operator: Operator) -> None:
    door = operator.door
    door.say("one")
    calm = await operator.publish("calm")
    again = await operator.run("publish", operator.write("calm"), "-m", "again")
    assert again == f"ada {calm[:12]}: the same content is published already\n"
    status, _ = await door.post("/api/conversations", {"character": "ada"})
    assert status == 404, "published is not served"
    said = await operator.label("production", calm[:8], "--protect")
    assert said == f"ada@production: nowhere -> {calm[:12]} (protected)\n"
    first = await create(door, character="ada")
    turn = (await send(door, first, "Hello")).chunks[0]
    assert turn["prompt_version"] == calm
    assert "The mood is calm." in await front_of(door, first)

    angry = await operator.publish("angry")
    refused = await operator.label("production", angry, code=2)
    assert "label production of ada is protected" in refused
    assert "--confirm production" in refused
    refused = await operator.label("production", angry, "--confirm", "canary", code=2)
    assert "--confirm names 'canary', the label is 'production'" in refused
    await operator.label("production", angry, "--confirm", "production")
    second = await create(door, character="ada")
    await send(door, second, "Hello")
    assert "The mood is angry." in await front_of(door, second)
    assert (await send(door, first, "And now?")).chunks[0]["prompt_version"] == calm
    assert "The mood is calm." in await front_of(door, first)

    async with door.session.patch(
        f"{door.url}/api/conversations/{first}", json={"prompt_version": "production"}
    ) as answer:
        moved = await answer.json()
    assert (moved["prompt_version_before"], moved["prompt_version"]) == (calm, angry)
    assert (await send(door, first, "Go on")).chunks[0]["prompt_version"] == angry
    assert "The mood is angry." in await front_of(door, first)

    told = await operator.run("history", "ada")
    assert f"{angry[:12]}" in told.splitlines()[1]
    assert "production (protected)" in told.splitlines()[1]
    assert f"production: {calm[:12]} -> {angry[:12]}" in told
    assert ": because" in told
    assert re.search(r"  \d{4}-\d\d-\d\d \d\d:\d\d UTC  production: ", told)

    said = await operator.label("production", angry, "--unprotect", "--confirm", "production")
    assert said == f"ada@production is no longer protected, at {angry[:12]}\n"
    lines = (await operator.run("history", "ada")).splitlines()
    moves = [line.split("production: ")[1] for line in lines[lines.index("labels moved") + 1 :]]
    assert [move.split("  ")[0] for move in moves] == [
        f"no longer protected, at {angry[:12]}",
        f"{calm[:12]} -> {angry[:12]}",
        f"nowhere -> {calm[:12]} (protected)",
    ]


async def test_what_a_command_cannot_do_is_said_with_names_and_nothing_is_done(
    operator: Operator,
) -> None:
    calm = await operator.publish("calm")
    path = operator.write("calm")
    early = await operator.run("diff", "ada@production", path, code=2)
    assert (
        f"ada has no label 'production' (it has none yet; its newest version is {calm[:12]})"
        in early
    )
    await operator.label("canary", calm)
    cases: list[tuple[tuple[str, ...], str]] = [
        (("history", "bob"), "no prompt 'bob' (there are: ada, assistant, gardener, lighthouse)"),
        (("publish", path, "-m", "  "), "message: is empty"),
        (("label", "ada", "Prod", calm, "-m", "x"), "label: 'Prod' is not 1 to 64"),
        (("label", "ada", "canary", "0000", "-m", "x"), "no version of ada begins with '0000'"),
        (
            ("label", "ada", "canary", "nightly", "-m", "x"),
            "ada has no label 'nightly' (labels: can",
        ),
        (("label", "ada", "canary", calm, "-m", ""), "message: is empty"),
        (("diff", "ada@canary", "gardener@production"), "A is a version of ada, B one of gardener"),
        (
            ("diff", "ada", "ada@canary"),
            "'ada': there is no such file or folder; expected NAME@LABEL",
        ),
        (("diff", "ada@", "ada@canary"), "'ada@': expected NAME@LABEL"),
        (("diff", "ada@canary", "ada@canary", "--days", "0"), "days"),
        (("replay", "ada@canary", "ada@canary", "--conversations", "0"), "conversations"),
        (("export", str(operator.folder), "ada@nightly"), "ada has no label 'nightly'"),
    ]
    for words, said in cases:
        assert said in await operator.run(*words, code=2), words
    (operator.folder / "templates" / "mood.yaml").write_text("name: mood\n---\n[]\n")
    assert "templates/mood.yaml" in await operator.run("publish", path, "-m", "x", code=2)
    assert len((await operator.ask("history", "ada"))["moves"]) == 1


async def test_the_loser_of_two_who_move_a_label_is_told(operator: Operator) -> None:
    calm, angry, sad = [await operator.publish(mood) for mood in ("calm", "angry", "sad")]
    await operator.label("canary", calm)
    await operator.label("canary", angry)
    lost = await operator.label("canary", sad, "--from", calm, code=2)
    assert f"was at {calm[:12]} and is at {angry[:12]} now: somebody else moved it" in lost
    assert "is at" in await operator.label("canary", angry)


async def test_a_folder_is_imported_and_exported_without_loss(operator: Operator) -> None:
    operator.write("calm")
    imported = await operator.ask("import", str(operator.folder), "-m", "all")
    assert [(one["name"], one["is_new"]) for one in imported] == [("ada", True)]
    await operator.label("production", imported[0]["version"])
    draft = operator.folder.parent / "draft.yaml"
    draft.write_text("id: draft\nname: Draft\n")
    await operator.run("publish", str(draft), "-m", "for later")
    out = operator.folder.parent / "out"
    written = await operator.ask("export", str(out))
    assert [one["name"] for one in written] == ["ada", "assistant", "gardener", "lighthouse"]
    assert {bundle.name: bundle.version for _, bundle in read_bundles(out)} == {
        one["name"]: one["version"] for one in written
    }
    shipped = {bundle.name: bundle.version for _, bundle in read_bundles(PROMPTS_DIR)}
    assert shipped.items() <= {one["name"]: one["version"] for one in written}.items()
    again = await operator.ask("import", str(out), "-m", "back")
    assert not any(one["is_new"] for one in again)


async def test_an_export_writes_over_nothing_that_was_not_published(operator: Operator) -> None:
    calm = await operator.publish("calm")
    await operator.label("production", calm)
    out = operator.folder.parent / "out"
    ada = out / "ada"
    await operator.run("export", str(out))
    (ada / "notes.txt").write_text("mine")
    template = ada / "templates" / "mood.yaml"
    template.write_text(template.read_text().replace("calm", "cross"))
    (out / "gardener.yaml").write_text("id: gardener\nname: Another\n")
    edited = {path: path.read_text() for path in out.rglob("*") if path.is_file()}
    refused = await operator.run("export", str(out), code=2)
    assert f"{template}, {out}/gardener.yaml: what stands there was never published" in refused
    assert "--overwrite; nothing is written" in refused
    assert {path: path.read_text() for path in edited} == edited
    # Published, they are there to come back to.
    await operator.run("publish", str(out / "gardener.yaml"), "-m", "kept")
    template.write_text(template.read_text().replace("cross", "angry"))
    refused = await operator.run("export", str(out), code=2)
    assert refused.startswith(f"appliance: {template}: what stands there")
    told = await operator.run("export", str(out), "--overwrite")
    assert f"ada {calm[:12]} -> {ada}\n{ada}/notes.txt stays: no version has it\n" in told
    assert "The mood is calm." in template.read_text()
    assert (ada / "notes.txt").read_text() == "mine"
    assert "gardener" in (await operator.run("export", str(out), "gardener"))
    written = await operator.ask("export", str(out), "ada")
    assert written[0]["stay"] == [str(ada / "notes.txt")]
    no_folder = await operator.run("export", str(ada / "notes.txt"), code=2)
    assert no_folder == f"appliance: {ada}/notes.txt: no folder\n"


@pytest.mark.parametrize("is_protected", [False, True])
async def test_the_command_that_publish_names_next_works_as_it_is_printed(
    operator: Operator, is_protected: bool
) -> None:
    if is_protected:
        await operator.label("production", await operator.publish("cross"), "--protect")
    said = await operator.run("publish", operator.write("calm"), "-m", "calmer")
    version = said.split()[1].rstrip(":")
    command = shlex.split(said.partition("before a label does: ")[2])
    assert command[0] == "appliance"
    assert await asyncio.to_thread(main, command[1:]) == 0
    assert f"-> {version}" in operator.capsys.readouterr().out


async def test_a_diff_says_where_the_prefix_changes_and_what_live_chats_pay(
    operator: Operator,
) -> None:
    door = operator.door
    door.say("one")
    calm = await operator.publish("calm")
    await operator.label("production", calm)
    for text in ("Hello", "Hello there"):
        await send(door, await create(door, character="ada"), text)
    path = operator.write("cross")
    found = await operator.ask("diff", "ada@production", path)
    (change,) = found["changes"]
    assert (change["part"], change["zone"], change["where"]) == ("mood", "persona", "")
    assert (found["live"]["chats"], found["live"]["cold"]) == (2, 2)
    # The model's own tokenizer says where: up to there both prompts are alike.
    conversations = (await get(door, "/api/conversations"))["conversations"]
    total, alike = 0, set()
    for conversation in conversations:
        stored = await get(door, f"/api/conversations/{conversation['id']}")
        prompt = await get(
            door,
            f"/api/conversations/{conversation['id']}/messages/{stored['head_id']}/prompt",
        )
        # The reply is one token, and two close it.
        total += len(prompt["token_ids"]) + 3
        front = door.services.tokenizer.decode(
            b"".join(t.to_bytes(4, "little") for t in prompt["token_ids"][: change["position"]])
        )
        alike.add(front.partition("The mood is")[2])
    assert alike == {" c"}, "`calm` and `cross` begin alike"
    longer = found["tokens_after"] - found["tokens_before"]
    assert found["live"]["tokens"] == total + 2 * (longer - change["position"])
    said = await operator.run("diff", "ada@production", path)
    at = change["position"]
    assert f"prefix changes at token {at}, in `mood`: 2 live chats go cold when moved" in said
    assert f"about {found['live']['tokens']:,} tokens to recompute" in said
    assert "-- {name: mood, zone: persona, role: system, content: 'The mood is calm.'}" in said
    same = await operator.run("diff", "ada@production", f"ada@{calm[:6]}")
    assert same.splitlines()[0] == "prompts stay the same, token for token"
    other = await operator.ask("diff", path, "ada@production")
    assert (other["live"]["chats"], other["live"]["tokens"], other["elsewhere"]) == (0, 0, 2)


async def test_a_replay_compares_tokens_cuts_and_hits_of_recorded_conversations(
    operator: Operator,
) -> None:
    door = operator.door
    door.say("one", " two")
    calm = await operator.publish("calm")
    await operator.label("production", calm)
    opened = await create(door, character="ada")
    turns = [(await send(door, opened, f"Message {n}")).chunks[0] for n in range(5)]
    longer = operator.write("calm", system=SYSTEM + " " + "Be exact. " * 136)
    found = await operator.ask("replay", "ada@production", longer, "--conversations", "3")
    assert [one["conversation_id"] for one in found["conversations"]] == [opened]
    before, after = found["before"], found["after"]
    assert (before["turns"], after["turns"]) == (5, 5)
    assert before["tokens"] == sum(turn["prompt_tokens"] for turn in turns)
    # Every prompt begins with the one before and its reply: what is found is all of them but the last.
    assert before["hit_tokens"] > sum(turn["prompt_tokens"] for turn in turns[:-1])
    assert after["tokens"] > before["tokens"] + 5 * 1000
    assert after["cuts"] > before["cuts"] == 0
    table = await operator.run("replay", "ada@production", longer)
    assert f"prompt tokens  {before['tokens']:>15}{after['tokens']:>14}" in table
    assert "predicted hits" in table
    huge = operator.write("calm", system="Be exact. " * 400)
    assert (await operator.ask("replay", "ada@production", huge))["after"]["refused"] == 5
    assert json.loads(json.dumps(found))["versions"][0] == calm


async def test_a_card_in_a_folder_is_published_compared_and_replayed_like_any_character(
    operator: Operator,
) -> None:
    door = operator.door
    door.say("one")
    folder = operator.folder / "zoe"
    folder.mkdir(parents=True)

    def write(greeting: str, description: str) -> None:
        card = v2(name="Zoe", description=description, first_mes=greeting)
        (folder / "card.json").write_text(json.dumps(card))

    write("Come in!", "Zoe keeps bees.")
    published = await operator.ask("publish", str(folder), "-m", "a card")
    moved = await operator.ask("label", "zoe", "production", published["version"], "-m", "go")
    assert moved["move"]["to_version"] == published["version"]
    opened = await create(door, character="zoe")
    turn = (await send(door, opened, "Hello")).chunks[0]
    assert turn["prompt_version"] == published["version"]
    write("Welcome!", "Zoe keeps bees.")
    found = await operator.ask("diff", "zoe@production", str(folder))
    # A chat keeps its greeting, which is then no longer everybody's: it is computed as private text.
    assert (found["live"]["cold"], found["changes"][0]["part"]) == (1, "message 1")
    assert found["tokens_before"] == found["tokens_after"]
    write("Come in!", "Zoe keeps cats.")
    found = await operator.ask("diff", "zoe@production", str(folder))
    assert found["changes"][0]["zone"] == "character"
    replayed = await operator.ask("replay", "zoe@production", str(folder))
    assert replayed["before"]["tokens"] == turn["prompt_tokens"]
    assert replayed["after"]["turns"] == 1

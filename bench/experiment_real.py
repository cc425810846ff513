"""An experiment end to end on the real model: `python -m bench.experiment_real`.

Scripted users talk to two versions of a character: the hour, which the application says anew with every
message, stands after the history, or before it, where it makes the model compute the history again. What
the team does goes through the command line. Fails unless the report shows that by intervals that exclude
zero, the guardrail pauses the arm, shipping the other one moves the label, and open chats keep their
version. The machine must be quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench import workload
from bench.peer_servers import ENTRY, KV_BYTES, ApplianceServe, Places, running

USERS = 400
TURNS = 4
AT_ONCE = 16
NEW_TOKENS = 4
MESSAGE_CHARACTERS = 120
LIVE_EACH = 10
"""Open chats of each arm that go on after the shipping."""

CHARACTER = """
id: ada
name: Ada
template: hour
system: |-
  You are Ada, the keeper of a small lighthouse in the north. You are calm and curious, you notice
  weather, birds and ships, you answer in one short sentence, and you never speak for the visitor.
"""
FRONT = """
name: hour
inputs:
  character: {type: map, scope: character, sample: {system: You are Ada.}}
  note: {sample: It is noon.}
---
- {name: system, zone: character, role: system, content: "{{ character.system }}"}
"""
HOUR = '- {name: hour, zone: ZONE, role: system, if: note, content: "{{ note }}"}\n'
HISTORY = "- {name: history, zone: history}\n"
RULE = '- {name: rule, zone: volatile, role: system, content: "Mind the hour. {{ note }}"}\n'
TEMPLATES = {
    "plain": FRONT + HISTORY + RULE,
    "after": FRONT + HISTORY + HOUR.replace("ZONE", "volatile"),
    "before": FRONT + HOUR.replace("ZONE", "persona") + HISTORY,
}
"""What everybody has at first, and the two arms."""

DEFINITION = """
name: hour
hypothesis: Ada minds the hour better where it is said before the history.
character: ada
primary: [computed_tokens]
warm_up_minutes: 0
arms:
  - {name: after, version: AFTER}
  - {name: before, version: BEFORE}
"""


@dataclass(slots=True, kw_only=True)
class Team:
    """The product team at its command line, in a folder of its own."""

    folder: Path
    config: Path

    def run(self, *words: str) -> str:
        """What `appliance …` prints. Raises CalledProcessError."""
        command = [sys.executable, "-m", ENTRY, *words, "--config", str(self.config)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def ask(self, *words: str) -> Any:
        """The same as JSON."""
        return json.loads(self.run(*words, "--json"))

    def publish(self, name: str) -> str:
        """A version with one of the templates."""
        folder = self.folder / name
        (folder / "templates").mkdir(parents=True)
        (folder / "ada.yaml").write_text(CHARACTER.strip() + "\n")
        (folder / "templates" / "hour.yaml").write_text(TEMPLATES[name].strip() + "\n")
        published = self.ask("prompt", "publish", str(folder / "ada.yaml"), "-m", name)
        return str(published["version"])

    def begin(self) -> dict[str, str]:
        """An experiment that runs; the versions by template."""
        versions = {name: self.publish(name) for name in TEMPLATES}
        self.run("prompt", "label", "ada", "production", versions["plain"], "-m", "as it is")
        file = self.folder / "hour.yaml"
        text = DEFINITION.replace("AFTER", versions["after"]).replace("BEFORE", versions["before"])
        file.write_text(text)
        self.run("experiment", "create", str(file), "-m", "the hour is overheard")
        self.run("experiment", "start", "hour", "-m", "go")
        return versions

    def production(self) -> str:
        """Where the label stands."""
        labels = self.ask("prompt", "history", "ada")["labels"]
        return str(next(one["version"] for one in labels if one["label"] == "production"))


@dataclass(slots=True, kw_only=True)
class Visitors:
    """Scripted users of the product, over its conversation API."""

    url: str
    session: aiohttp.ClientSession
    messages: Sequence[str]

    async def open(self, user: int) -> str:
        """A new conversation."""
        body = {"character": "ada", "user": f"user {user}"}
        async with self.session.post(f"{self.url}/api/conversations", json=body) as answer:
            answer.raise_for_status()
            return str((await answer.json())["id"])

    async def say(self, conversation: str, user: int, turn: int) -> str:
        """One turn, with the hour; the version that its prompt was made with."""
        address = f"{self.url}/api/conversations/{conversation}"
        note = {
            "text": f"It is {8 + turn % 12}:{(7 * user + 13 * turn) % 60:02} at the lighthouse."
        }
        async with self.session.patch(address, json={"note": note}) as answer:
            answer.raise_for_status()
        text = self.messages[(user * TURNS + turn) % len(self.messages)]
        body = {"text": text, "max_tokens": NEW_TOKENS, "temperature": 0}
        version, is_done = None, False
        async with self.session.post(f"{address}/messages", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                is_done = is_done or line.startswith(b"event: done")
                if line.startswith(b"data:") and b'"prompt_version"' in line:
                    version = json.loads(line[len(b"data:") :])["prompt_version"]
        assert is_done, "a reply did not end"
        return str(version)

    async def visit(self, user: int, gate: asyncio.Semaphore) -> tuple[str, str]:
        """A whole chat: its conversation, and its version."""
        async with gate:
            conversation = await self.open(user)
            versions = {await self.say(conversation, user, turn) for turn in range(TURNS)}
        assert len(versions) == 1, "a chat keeps its version"
        return conversation, versions.pop()


async def tried(team: Team, url: str, users: int) -> list[str]:
    """The whole story; what of it did not come true."""
    versions = await asyncio.to_thread(team.begin)
    wrong: list[str] = []
    messages = workload.messages(500, seed=3, chars=MESSAGE_CHARACTERS)
    async with aiohttp.ClientSession() as session:
        visitors = Visitors(url=url, session=session, messages=messages)
        gate = asyncio.Semaphore(AT_ONCE)
        begun = time.perf_counter()
        chats = await asyncio.gather(*(visitors.visit(user, gate) for user in range(users)))
        by_version = {name: [c for c, v in chats if v == own] for name, own in versions.items()}
        counts = {name: len(found) for name, found in by_version.items()}
        print(
            f"{users} users, {users * TURNS} turns in {time.perf_counter() - begun:.0f} s: {counts}"
        )
        wrong += await asyncio.to_thread(judged, team)
        before_ship = await asyncio.to_thread(team.production)
        told = await asyncio.to_thread(
            team.run, "experiment", "ship", "hour", "after", "-m", "the hour goes last"
        )
        print(told)
        moved = (before_ship, await asyncio.to_thread(team.production))
        if moved != (versions["plain"], versions["after"]):
            wrong.append(f"the label moved from {moved[0][:12]} to {moved[1][:12]}")
        for name in ("after", "before"):
            live = by_version[name][:LIVE_EACH]
            kept = {await visitors.say(one, user, TURNS) for user, one in enumerate(live)}
            if kept != {versions[name]}:
                wrong.append(f"live chats of {name} went on with {kept}")
        new = [await visitors.open(users + number) for number in range(LIVE_EACH)]
        given = {await visitors.say(one, users, 0) for one in new}
        if given != {versions["after"]}:
            wrong.append(f"new chats got {given}")
    print(await asyncio.to_thread(team.run, "experiment", "report", "hour"))
    return wrong


def judged(team: Team) -> list[str]:
    """What the report and the guardrails do not show of the arm that empties the cache."""
    checked = team.ask("experiment", "check")
    wrong = []
    if [(one["experiment"], one["arm"]) for one in checked["paused"]] != [("hour", "before")]:
        wrong.append(f"the guardrail paused {checked['paused']}")
    begun = time.perf_counter()
    report = team.ask("experiment", "report", "hour", "--page", str(team.folder / "report.html"))
    print(f"the report in {time.perf_counter() - begun:.1f} s")
    (result,) = report["analysis"]["results"]
    print(f"verdict on {result['arm']}: {result['verdict']}")
    findings = {one["metric"]["name"]: one for one in result["findings"]}
    for name, way in (("hit_ratio", -1), ("computed_tokens", 1), ("cost", 1)):
        one = findings[name]
        relative = one["relative"]
        if relative is None:
            wrong.append(f"{name}: {one['lacks'] or 'no interval'}")
            continue
        print(
            f"{name}: {one['control']:.4g} after, {one['value']:.4g} before: "
            f"{relative['change']:+.1%} ({relative['low']:+.1%} to {relative['high']:+.1%})"
        )
        if min(way * relative["low"], way * relative["high"]) <= 0:
            wrong.append(f"{name}: the interval holds zero, or is on the other side")
    print(team.run("experiment", "report", "hour"))
    return wrong


def main() -> int:
    """Run it; 1 when something did not come true."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--page", type=Path, default=None, help="keep the report's page there")
    options = parser.parse_args()
    # A killed run must not leave a server behind: the way out goes through its context.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="bench-experiment-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        places = Places(
            model=workload.model_directory(), gguf=None, peers=None, work=folder, threads=cores
        )
        recipe = ApplianceServe(places, {"kv_cache_bytes": KV_BYTES})
        with running(recipe, folder / "log") as server:
            team = Team(folder=folder, config=folder / "appliance" / "box.toml")
            wrong = asyncio.run(tried(team, server.url, options.users))
        if options.page is not None:
            options.page.write_bytes((folder / "report.html").read_bytes())
    print("\n".join([f"WRONG: {one}" for one in wrong] or ["all of it came true"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

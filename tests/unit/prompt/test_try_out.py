"""What a template needs beyond all limits ends a child process, and nobody waits for it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.chat.publishing import publish
from appliance.errors import TemplateError
from appliance.prompt import try_out as module
from appliance.prompt.bundle import Bundle
from appliance.prompt.templates import guard
from appliance.prompt.templates.poet import PoetTemplate
from appliance.prompt.templates.template import Template
from appliance.prompt.try_out import Job, run, try_out, try_out_file
from appliance.store.prompt_registry import PromptRegistry
from tests.characters import bundle_of
from tests.unit.prompt.template_files import HISTORY

PLAIN = "name: own\ninputs:\n  persona: {default: ''}\n---\n" + HISTORY
ENDLESS = (
    "from appliance.prompt.try_out import *\n"
    "import appliance.prompt.try_out as m\n"
    "m.run = lambda job: 'a' * 2_000_000 and ('a' * 2_000_000).strip('b' * 4_000_000 + 'a')\n"
    "m.main()\n"
)
GREEDY = (
    "from appliance.prompt.try_out import *\n"
    "import appliance.prompt.try_out as m\n"
    "m.run = lambda job: bytearray(1 << 31)\n"
    "m.main()\n"
)


def own(template: str = PLAIN) -> Bundle:
    return bundle_of("assistant", template="own", templates={"own": template})


def instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> list[int]:
    """A child that runs into what no guard has seen; how it ended is in the list."""
    script = tmp_path / "child.py"
    script.write_text(code)
    monkeypatch.setattr(module, "__name__", "child")
    monkeypatch.setattr(module, "CPU_SECONDS_MAX", 1)
    real = subprocess.run

    def started(command: list[str], **settings: Any) -> object:
        assert command == [sys.executable, "-P", "-m", "child"]
        done = real([sys.executable, str(script)], **settings)
        statuses.append(done.returncode)
        return done

    statuses: list[int] = []
    monkeypatch.setattr(subprocess, "run", started)
    return statuses


def test_what_makes_a_prompt_or_is_only_wrong_passes(tmp_path: Path) -> None:
    try_out(own())
    try_out(own("name: own\n"))  # whoever asked is told what is wrong
    path = tmp_path / "a.yml.j2"
    path.write_text("- name: a\n  content: {{ text }}\n")
    try_out_file(path, {"text": "x"})
    try_out_file(path, {})
    try_out_file(tmp_path / "nothing.yaml", {})


def test_the_child_renders_what_whoever_asked_renders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, own_kind = tmp_path / "a.yml.j2", tmp_path / "a.yaml"
    whole.write_text("- name: a\n  content: {{ token_limit }}\n")
    own_kind.write_text(PLAIN)
    seen: list[object] = []
    monkeypatch.setattr(PoetTemplate, "render", lambda _, __, token_limit: seen.append(token_limit))
    monkeypatch.setattr(Template, "render", lambda _, given, __: seen.append(given["persona"]))
    run(Job(path=str(whole), token_limit=7))
    run(Job(path=str(own_kind), data={"persona": "A sailor."}))
    assert seen == [7, "A sailor.", ""]


def test_only_templates_are_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instead(monkeypatch, tmp_path, "raise SystemExit(1)")
    try_out(bundle_of("assistant", system="You are Ada."))
    with pytest.raises(TemplateError, match="assistant: template error: trying it out took more"):
        try_out(own())


@pytest.mark.parametrize("code", [ENDLESS, GREEDY], ids=["time", "memory"])
def test_a_call_that_nothing_interrupts_ends_the_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    code = code.replace("m.main()", "m.CPU_SECONDS_MAX = 1\nm.main()")
    statuses = instead(monkeypatch, tmp_path, code)
    with pytest.raises(TemplateError, match=r"a\.j2: template error: trying it out took more than"):
        try_out_file(tmp_path / "a.j2", {})
    # Ended by its own limit, not by whoever waits for it: killed, or without memory.
    assert statuses == [1 if "bytearray" in code else -signal.SIGKILL]


def test_a_child_tries_long_texts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a persona makes run on is found before any user has one."""
    seen: list[int] = []

    def result_chars(method: Any, _: object) -> int:
        seen.append(len(method.__self__))
        return 0

    monkeypatch.setattr(guard, "_result_chars", result_chars)
    template = PLAIN.replace(
        HISTORY,
        HISTORY + "- {name: p, zone: volatile, role: system, content: '{{ persona.strip() }}x'}\n",
    )
    run(Job(name="assistant", files=dict(own(template).files)))
    assert max(seen) > 90_000


async def test_nothing_waits_while_a_template_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    instead(monkeypatch, tmp_path, ENDLESS.replace("m.main()", "m.CPU_SECONDS_MAX = 1\nm.main()"))

    async def ticks() -> int:
        count = 0
        while True:
            await asyncio.sleep(0.01)
            count += 1
            counted.append(count)

    counted: list[int] = []
    ticking = asyncio.create_task(ticks())
    registry = PromptRegistry.__new__(PromptRegistry)  # never asked
    begun = time.monotonic()
    with pytest.raises(TemplateError, match="trying it out took more than"):
        await publish(registry, own(), author="ana", message="x")
    ticking.cancel()
    assert time.monotonic() - begun > 0.5
    assert len(counted) > 10

"""Runs a chat template over many message lists in one short-lived child process with limits.

Owns the child's life. Never: what the templates' output means (`chat_format`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from appliance.errors import ModelError
from appliance.prompt.chat_format import template_sandbox

WALL_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One message list to render: (role, content) pairs, with or without the reply's header."""

    messages: tuple[tuple[str, str], ...]
    add_generation_prompt: bool


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """What the template made of one case: exactly one of text, refusal and error is set.

    `refusal` is the template's own sentence (`raise_exception`); `line` is where an error arose.
    """

    text: str | None = None
    refusal: str | None = None
    error: str | None = None
    line: int | None = None


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    results: list[Rendered] = []
    texts: list[str] = []
    numbers: list[int] = []
    error: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRunner:
    """A chat template with its variables (`bos_token`, ...) and the date it may write.

    `origin` is the file the template comes from. The date stays that of the start of the process:
    a date that moved would make every cached prompt worthless at midnight.
    """

    template: str
    origin: str
    variables: Mapping[str, str]
    now: datetime

    def render(self, cases: Sequence[Case]) -> list[Rendered]:
        """Render the cases, in order. Raises ModelError when the template does not compile or goes
        past the limits on time, memory or output."""
        return self._run(cases).results

    def constants(self) -> tuple[list[str], list[int]]:
        """The constants in the template's code: texts, which it could look for in a content, and
        whole numbers (folded, without their sign), which it could count or measure up to."""
        answer = self._run(())
        return answer.texts, answer.numbers

    def _run(self, cases: Sequence[Case]) -> _Answer:
        job = msgspec.json.encode(
            {
                "template": self.template,
                "variables": dict(self.variables),
                "now": self.now.isoformat(),
                "cases": [
                    {
                        "messages": [{"role": r, "content": c} for r, c in case.messages],
                        "add_generation_prompt": case.add_generation_prompt,
                    }
                    for case in cases
                ],
            }
        )
        # -P: the script's folder must not become an import path (its neighbours have common names).
        command = [sys.executable, "-P", template_sandbox.__file__]
        limits = "more than it may use in time or memory"
        try:
            done = subprocess.run(
                command,
                input=job,
                capture_output=True,
                timeout=WALL_SECONDS_MAX,
                check=False,
                env={"PATH": os.defpath},
            )
        except subprocess.TimeoutExpired as error:
            raise ModelError(f"{self.origin}: template error: it needs {limits}") from error
        if done.returncode != 0:
            raise ModelError(f"{self.origin}: template error: it needs {limits}")
        answer = msgspec.json.decode(done.stdout, type=_Answer)
        if answer.error is not None:
            raise ModelError(f"{self.origin}, line {answer.line}: template error: {answer.error}")
        return answer

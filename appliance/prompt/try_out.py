"""Tries a stranger's template out in a child process with limits, before this one compiles or renders it.

What the guard of templates does not see (a call that nothing interrupts, memory taken while compiling)
ends the child and nothing else. What a template does wrong within the limits is no affair of the child's:
whoever asked does the same, and is told. Never: keeps what was made.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import appliance
from appliance.errors import ApplianceError, TemplateError
from appliance.prompt.bundle import TEMPLATES_FOLDER, Bundle
from appliance.prompt.characters import NO_INPUTS, CharacterVersion
from appliance.prompt.templates.compiling import load_template
from appliance.prompt.templates.lint import SAMPLE
from appliance.prompt.templates.poet import POET_SUFFIXES, PoetTemplate

CPU_SECONDS_MAX = 10
WALL_SECONDS_MAX = 30
MEMORY_BYTES_MAX = 1024 * 1024 * 1024
LONG_CHARS = 100_000
"""Of the texts that a user may set: what they make run on is found before any user sets them."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried: the files of a character, else the template at `path` with `data`."""

    name: str = ""
    files: dict[str, bytes] = {}
    path: str | None = None
    data: dict[str, Any] = {}
    token_limit: int = -1
    """Of a whole-file template, which may read it."""


def try_out(bundle: Bundle) -> None:
    """Try a character with templates of its own; of another one nothing is a stranger's code.

    Blocks for as long as that takes. Raises TemplateError for one that needs more than the limits.
    """
    if any(path.startswith(TEMPLATES_FOLDER) for path in bundle.files):
        _in_child(Job(name=bundle.name, files=dict(bundle.files)), bundle.name)


def try_out_file(path: Path, data: Mapping[str, Any], *, token_limit: int = -1) -> None:
    """The same for a template's file, of either kind."""
    job = Job(path=str(path.absolute()), data=dict(data), token_limit=token_limit)
    _in_child(job, str(path))


def _in_child(job: Job, named: str) -> None:
    # The child finds the package where this process has it.
    root = str(Path(appliance.__file__).parent.parent)
    limits = f"{CPU_SECONDS_MAX} s or {MEMORY_BYTES_MAX >> 20} MiB"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=msgspec.json.encode(job),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=WALL_SECONDS_MAX,
            check=False,
            env={"PATH": os.defpath, "PYTHONPATH": root},
        )
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode != 0:
        raise TemplateError(f"{named}: template error: trying it out took more than {limits}")


def run(job: Job) -> None:
    """What the parent is about to do, and a rendering with long texts."""
    with suppress(ApplianceError):
        if job.path is None:
            version = CharacterVersion.of(Bundle(name=job.name, files=job.files))
            text = "word, " * (LONG_CHARS // 6)
            given = {
                **NO_INPUTS,
                "user": text,
                "persona": text,
                "note": text,
                "pinned": (text,) * 8,
            }
            version.render(SAMPLE, user=text, inputs=given)
        elif job.path.endswith(POET_SUFFIXES):
            PoetTemplate.load(Path(job.path)).render(job.data, token_limit=job.token_limit)
        else:
            template = load_template(Path(job.path))
            if job.data:
                # Lint looks at the samples alone, too, whatever becomes of the data.
                with suppress(ApplianceError):
                    template.render({**template.front.samples(), **job.data}, SAMPLE)
            template.render(template.front.samples(), SAMPLE)


def main() -> None:
    """Read one job from standard input and try it, under limits."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run(msgspec.json.decode(sys.stdin.buffer.read(), type=Job))


if __name__ == "__main__":
    main()

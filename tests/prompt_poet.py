"""The prompt-poet package itself, to compare with: fetched once per user, checked, never installed.

Its wheel is unpacked beside the demo's model; the version and checksum are those of `bench/peers.txt`.
What it makes of a template is asked in a process of its own, because it puts modules named `template`
and `tokenizer` at the top level of the process that imports it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.cli.demo_model import demo_cache_dir
from bench.peers import PINS

ROOT = Path(__file__).parent.parent

_ASK = """
import json, sys
from bench import stand_ins
sys.path.append(sys.argv[1])
with stand_ins.borrowed(("google", "tiktoken"), {}) as import_module:
    import_module("google.cloud.storage")
    poet = import_module("prompt_poet")
    loaders = import_module("template_loaders")
    helpers = import_module("prompt_poet.examples.cai_helpers")
job = json.load(sys.stdin)
data = job["data"]
data["cai_messages"] = [helpers.CAIMessage(**message) for message in data.get("cai_messages", [])]
data.update({name: getattr(helpers, name) for name in job["helpers"]})
answers = []
for path in job["templates"]:
    prompt = poet.Prompt(data, template_loader=loaders.LocalFSTemplateLoader(path))
    answers.append([[p.name, p.role, p.content, p.truncation_priority] for p in prompt.parts])
print(json.dumps(answers))
"""

Part = tuple[str, str, str, int]


def folder() -> Path:
    """Where the unpacked wheel lies; fetches it when it is not there."""
    (pin,) = (line for line in PINS.read_text().splitlines() if line.startswith("prompt-poet=="))
    target = demo_cache_dir().parent / "tests" / pin.split()[0]
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the rename at the end is one step and two fetches do not mix.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheels, unpacked = Path(scratch, "wheels"), Path(scratch, "site")
        Path(scratch, "pin.txt").write_text(pin + "\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pins = ["--no-deps", "--require-hashes", "--only-binary=:all:", "-r", f"{scratch}/pin.txt"]
        subprocess.run([*pip, *pins, "--dest", str(wheels)], check=True)
        (wheel,) = wheels.iterdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        try:
            unpacked.rename(target)
        except OSError:
            # Another run of the tests was first; its folder has the same checksum.
            assert target.is_dir()
    return target


def examples() -> Path:
    """The folder of its example templates."""
    return folder() / "prompt_poet" / "examples"


def parts_of(
    templates: list[Path], data: Mapping[str, Any], helpers: list[str]
) -> list[list[Part]]:
    """What the package makes of templates: name, role, content and priority of each part."""
    job = {"templates": [str(path) for path in templates], "data": data, "helpers": helpers}
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(folder())],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return [[tuple(part) for part in parts] for parts in json.loads(done.stdout)]

"""A booted box with the appliance installed, once for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box.booted import Box, booted, make_root, why_not
from tests.model_fixtures import tiny_model, write_directory

MODEL = Path("/srv/models/tiny")
CONTEXT_TOKENS = 4096
SETTINGS = {
    "drain_s": "drain_s = 2",
    "kv_cache_bytes": "kv_cache_bytes = 134217728",
    "threads": "threads = 1",
    "running_max": "running_max = 4",
    "step_tokens_max": "step_tokens_max = 64",
}
IMPATIENT = """[Service]
WatchdogSec=2
TimeoutAbortSec=3
"""


@pytest.fixture(scope="module")
def bare_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A system without an appliance, but with its program and a tiny model."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("box")
    root = folder / "root"
    make_root(root)
    model = tiny_model(kv_heads=1, max_position_embeddings=CONTEXT_TOKENS)
    for file in write_directory(root / MODEL.relative_to("/"), model).iterdir():
        file.chmod(0o644)
    try:
        with booted(folder, root) as box:
            yield box
    except RuntimeError as error:
        pytest.skip(f"this machine boots no systemd: {error}")


@pytest.fixture(scope="module")
def box(bare_box: Box) -> Box:
    """The appliance installed by its own command, and started."""
    install = ("/opt/appliance/release/bin/appliance", "system", "install", "--execute")
    bare_box.run(*install, "--model", str(MODEL), "--name", "tiny")
    toml = bare_box.root / "etc/appliance/appliance.toml"
    lines = toml.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        name = line.removeprefix("#").partition(" ")[0]
        lines[number] = SETTINGS.get(name, line)
    # Written in place: the file keeps its owner and mode.
    toml.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for unit in ("appliance-server.service", "appliance-engine@.service"):
        drop_in = bare_box.root / f"etc/systemd/system/{unit}.d/impatient.conf"
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text(IMPATIENT, encoding="utf-8")
    bare_box.run("systemctl", "daemon-reload")
    bare_box.run("appliance", "system", "install", "--start", "--execute")
    return bare_box

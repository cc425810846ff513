"""A booted box with the appliance installed from its package, once for the tests of a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deb.build import build, version_of_checkout
from deb.tree import SITE
from tests.box.booted import Box, booted
from tests.box.system_folder import PACKAGES, make_root, not_here, why_not
from tests.model_fixtures import tiny_model, write_directory

MODEL = Path("/srv/models/tiny")
CONTEXT_TOKENS = 4096
RELEASE = Path("/opt/appliance") / version_of_checkout()
SETTINGS = {
    "drain_s": "drain_s = 2",
    "body_timeout_s": "body_timeout_s = 3",
    "kv_cache_bytes": "kv_cache_bytes = 134217728",
    "disk_cache_bytes": "disk_cache_bytes = 67108864",
    "threads": "threads = 1",
    "running_max": "running_max = 4",
    "step_tokens_max": "step_tokens_max = 64",
}
IMPATIENT = """[Service]
WatchdogSec=3
TimeoutAbortSec=3
"""


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The .deb without libraries, which a box has from this environment instead."""
    reason = why_not()
    if reason is not None:
        not_here(reason)
    out = tmp_path_factory.mktemp("package")
    return build(out, version=RELEASE.name, compression="none", with_libraries=False)


@pytest.fixture(scope="module")
def bare_box(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Iterator[Box]:
    """A system without an appliance, but with a package of it and a tiny model."""
    folder = tmp_path_factory.mktemp("box")
    root = folder / "root"
    make_root(root)
    shutil.copyfile(package, root / "root" / package.name)
    model = tiny_model(kv_heads=1, max_position_embeddings=CONTEXT_TOKENS)
    for file in write_directory(root / MODEL.relative_to("/"), model).iterdir():
        file.chmod(0o644)
    try:
        with booted(folder, root) as box:
            yield box
    except RuntimeError as error:
        not_here(f"this machine boots no systemd: {error}")


@pytest.fixture(scope="module")
def installed(bare_box: Box, package: Path) -> Box:
    """The appliance, installed by its own command from its package, not started."""
    box = bare_box
    box.run("dpkg", "--install", f"/root/{package.name}")
    (box.root / RELEASE.relative_to("/") / SITE / "packages.pth").write_text(f"{PACKAGES}\n")
    install = (f"{RELEASE}/bin/appliance", "system", "install", "--execute")
    box.run(*install, "--model", str(MODEL), "--name", "tiny")
    configure(box, SETTINGS)
    for unit in ("appliance-server.service", "appliance-engine@.service"):
        drop_in = box.root / f"etc/systemd/system/{unit}.d/impatient.conf"
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text(IMPATIENT, encoding="utf-8")
    box.run("systemctl", "daemon-reload")
    return box


@pytest.fixture(scope="module")
def box(installed: Box) -> Box:
    """The appliance, installed and started."""
    installed.run("appliance", "system", "install", "--start", "--execute")
    return installed


def configure(box: Box, settings: dict[str, str]) -> None:
    """Set lines of the box's configuration, by the names of what they set, each in one section."""
    toml = box.root / "etc/appliance/appliance.toml"
    lines = toml.read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines):
        name = line.removeprefix("#").partition(" ")[0]
        if name in settings:
            lines[number] = settings[name]
            found.append(name)
    assert sorted(found) == sorted(settings)
    # Written in place: the file keeps its owner and mode.
    toml.write_text("\n".join(lines) + "\n", encoding="utf-8")

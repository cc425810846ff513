"""The whole package, libraries and all, in a box that has nothing else of it. Nightly: it is 5 GB."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from deb.build import build
from tests.box.booted import booted
from tests.box.chats import begin, is_ready, until
from tests.box.conftest import MODEL, RELEASE
from tests.box.system_folder import make_root, not_here, why_not
from tests.model_fixtures import tiny_model, write_directory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "APPLIANCE_TESTS_NIGHTLY" not in os.environ, reason="takes minutes and 15 GB of disk"
    ),
]


def test_the_package_alone_is_enough_for_a_chat(tmp_path: Path) -> None:
    reason = why_not()
    if reason is not None:
        not_here(reason)
    root = tmp_path / "root"
    make_root(root)
    package = build(tmp_path / "out", version=RELEASE.name, compression="none")
    shutil.move(package, root / "root" / package.name)
    for file in write_directory(root / MODEL.relative_to("/"), tiny_model(kv_heads=1)).iterdir():
        file.chmod(0o644)
    with booted(tmp_path, root) as box:
        box.run("umount", "/opt/packages")
        unpack = ("dpkg", "--force-unsafe-io", "--install", f"/root/{package.name}")
        box.run(*unpack, timeout_s=500)
        verified = box.run("dpkg", "--verify", f"appliance-{RELEASE.name}", timeout_s=300)
        assert verified.stdout == ""
        words = (
            "system",
            "install",
            "--model",
            str(MODEL),
            "--name",
            "tiny",
            "--start",
            "--execute",
        )
        box.run(f"{RELEASE}/bin/appliance", *words, timeout_s=300)
        until(lambda: box.in_network(is_ready), "ready")
        box.in_network(begin)
        box.run("dpkg", "--remove", f"appliance-{RELEASE.name}", check=False)
        assert (root / RELEASE.relative_to("/") / "bin/appliance").exists()

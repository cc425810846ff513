"""The cache commands against a running demo, as its user types them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from typing import Any

from tests.e2e.box import Box


def cache(box: Box, *words: str) -> Any:
    command = [sys.executable, "-m", "appliance.cli.main", "cache", *words]
    command += ["--data-dir", str(box.data_dir), "--json"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150)
    return json.loads(asked.stdout)


def test_a_chat_is_explained_and_audited_while_the_appliance_runs(box: Box) -> None:
    opened = box.create_conversation()
    for text in ("What is a tide?", "And what makes it?"):
        box.send(opened, text, max_tokens=8)
    explained = cache(box, "explain", opened)
    assert explained["cached_tokens"] >= explained["tokens"] - 3
    assert explained["last_hit_tokens"] > 0
    audited = cache(box, "audit", opened)
    assert [path["cause"] for path in audited["paths"]] == [None]
    assert audited["paths"][0]["top1_agrees"]
    shares = cache(box, "stats")["index_coverage"]
    assert shares["user"] > 0.9
    socket = box.data_dir / "run" / "admin.sock"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600

"""A service's unit under another name, with another program: its sandbox, without it itself."""

from __future__ import annotations

import re

from tests.box.booted import Box

UNITS = "etc/systemd/system"
CREATED = "Type=oneshot\nRestart=no\nTimeoutStartSec=60\n"


def copy_unit(box: Box, unit: str, name: str, command: str) -> str:
    """Install NAME.service, a unit with another `command`; gives its name."""
    text = (box.root / UNITS / unit).read_text(encoding="utf-8")
    text = re.sub(r"^(PartOf|Requires|Wants|After|WantedBy|WatchdogSec)=.*\n", "", text, flags=re.M)
    text = re.sub(r"^(Type|Restart|RestartSec|TimeoutStartSec)=.*\n", "", text, flags=re.M)
    text = re.sub(r"^ExecStart=.*$", f"{CREATED}ExecStart={command}", text, flags=re.M)
    (box.root / UNITS / f"{name}.service").write_text(text, encoding="utf-8")
    box.run("systemctl", "daemon-reload")
    return f"{name}.service"


def run_copy(box: Box, unit: str, name: str, command: str) -> tuple[bool, str]:
    """Whether the copy's program worked, and what it said."""
    copy = copy_unit(box, unit, name, command)
    ended = box.run("systemctl", "start", copy, check=False)
    return ended.returncode == 0, box.journal("-u", copy)

"""What is missing where an extra of pyproject.toml is not installed. Never: installs anything."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import requires, version


def install_command(extra: str) -> str:
    """The command that brings an extra's libraries into the environment of this program.

    A package has all of them and names none: what it lacks, it has lost.
    """
    of_extra = re.compile(rf"""([^;]+);.*\bextra == ['"]{extra}['"]""")
    found = [
        match[1].strip() for line in requires("appliance") or () if (match := of_extra.match(line))
    ]
    if not found:
        return f"dpkg -i appliance-{version('appliance')}_*.deb (once more)"
    return f"{sys.executable} -m pip install {shlex.join(found)}"

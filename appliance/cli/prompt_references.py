"""What a person writes for a version: NAME@LABEL, NAME@VERSION, or a file or folder. Asks nobody."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.errors import InvalidRequest

if TYPE_CHECKING:
    from appliance.prompt.bundle import Bundle

REFERENCE_HELP = "NAME@LABEL, NAME@VERSION, or a character's file or folder"


def sent_reference(text: str) -> dict[str, Any]:
    """The reference as the appliance is asked for it; raises what reading a file or folder raises."""
    name, at, reference = text.rpartition("@")
    if at and "/" not in text:
        if not name or not reference:
            raise InvalidRequest(f"{text!r}: expected {REFERENCE_HELP}")
        return {"name": name, "at": reference}
    if not Path(text).exists():
        raise InvalidRequest(
            f"{text!r}: there is no such file or folder; expected {REFERENCE_HELP}"
        )
    return {"bundle": sent_bundle(read_path(Path(text)))}


def read_path(path: Path) -> Bundle:
    """The bundle of a character's file or folder."""
    from appliance.prompt.bundle_folder import read_bundle

    return read_bundle(path)


def sent_bundle(bundle: Bundle) -> dict[str, Any]:
    """A bundle as JSON holds it."""
    files = {path: b64encode(content).decode() for path, content in bundle.files.items()}
    return {"name": bundle.name, "files": files}

"""The journal's label, a small file beside it: the key of its frames once more, and whose they are.

A damaged begin of the journal's file costs nothing while the label is there; a damaged label costs only
what it says of the database. Owns the file. Never: reads a frame.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from appliance.durable import replace_file

LABEL_NAME = "label"


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """`key` is the frames'; `database` is where they belong (None: not known yet)."""

    key: bytes
    database: str | None = None


def read_label(folder: Path) -> Label | None:
    """The label of a journal's folder; None where there is none, or a damaged one. Raises OSError."""
    try:
        told, _, digest = (folder / LABEL_NAME).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if digest.strip() != _digest(told):
        return None
    try:
        return msgspec.json.decode(told, type=Label)
    except msgspec.DecodeError:
        return None


def write_label(folder: Path, label: Label) -> None:
    """Replace it, durably. Raises OSError."""
    told = msgspec.json.encode(label)
    replace_file(folder / LABEL_NAME, told + b"\n" + _digest(told) + b"\n")


def _digest(told: bytes) -> bytes:
    return hashlib.blake2b(told, digest_size=16).hexdigest().encode()

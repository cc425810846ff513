"""Whose an archive is, and on which line of history its database was at what time.

A copy of a database has its system identifier and segments of the same names, and goes on differently:
two in one archive would lead every later restore astray. So a data folder and its archive hold one
token; the server archives only where it finds it, and a copy that is restored elsewhere has none.
Owns `owner.json` in an archive and `appliance.archive` in a data folder. Never: speaks to a database.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.durable import replace_file
from appliance.errors import DatabaseError

OWNER_FILE = "owner.json"
MARK_FILE = "appliance.archive"

Kind = TypeVar("Kind")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The timeline from `since` (UTC) on: a restore begins one, its undo goes back to another."""

    timeline: int
    since: datetime


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The database that an archive is of; `folder` is for people, `lines` are oldest first."""

    token: str
    folder: str
    lines: tuple[Line, ...] = ()

    def line_at(self, moment: datetime | None) -> int | None:
        """The timeline that was in use at `moment` (None: now); None before there was a base backup."""
        if not self.lines:
            return None
        before = [line for line in self.lines if moment is None or line.since <= moment]
        return (before or self.lines[:1])[-1].timeline

    def on(self, timeline: int, since: datetime) -> Owner:
        """The same, with its database on this timeline from then on."""
        if self.lines and self.lines[-1].timeline == timeline:
            return self
        added = Line(timeline=timeline, since=since.astimezone(UTC))
        return msgspec.structs.replace(self, lines=(*self.lines, added))


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a data folder knows of its archive: the token they share, and where it was last."""

    token: str
    archive: str


def read_owner(archive: Path) -> Owner | None:
    """Whose archive it is, None where nobody has claimed it. Raises DatabaseError, OSError."""
    return _read(archive / OWNER_FILE, Owner)


def write_owner(archive: Path, owner: Owner) -> None:
    """Put it down for all to read: the server looks at it before each segment. Raises OSError."""
    replace_file(archive / OWNER_FILE, _text(owner), mode=0o644)


def read_mark(directory: Path) -> Mark | None:
    """What a data folder says, None where it was never backed up. Raises DatabaseError, OSError."""
    return _read(directory / MARK_FILE, Mark)


def write_mark(directory: Path, mark: Mark) -> None:
    """Put it into the data folder. Raises OSError."""
    replace_file(directory / MARK_FILE, _text(mark))


def belongs(directory: Path, owner: Owner | None) -> bool:
    """Whether a data folder is the database of `owner`, and no copy of it. Raises DatabaseError."""
    mark = read_mark(directory)
    return owner is not None and mark is not None and mark.token == owner.token


def claim(archive: Path, directory: Path) -> Owner:
    """Make the database in `directory` the owner of an archive that has none. Raises OSError."""
    mark = read_mark(directory)
    token = secrets.token_hex(16) if mark is None else mark.token
    # In this order: killed in between, the archive is still free.
    write_mark(directory, Mark(token=token, archive=str(archive)))
    owner = Owner(token=token, folder=str(directory))
    write_owner(archive, owner)
    return owner


def went_back(directory: Path, timeline: int, now: datetime) -> None:
    """Note in its archive, where that is at hand, that a database is on this timeline now."""
    mark = read_mark(directory)
    if mark is None:
        return
    archive = Path(mark.archive)
    try:
        owner = read_owner(archive)
        if owner is not None and owner.token == mark.token:
            write_owner(archive, owner.on(timeline, now))
    except (OSError, DatabaseError):
        # A disk that is not mounted; the next backup notes it.
        return


def _text(value: Owner | Mark) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise DatabaseError(f"{path} is damaged: {error}") from error

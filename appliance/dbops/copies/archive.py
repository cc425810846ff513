"""The folder of a cluster's backups: base backups under their times, and the WAL between them.

Owns the names in it, its lock, and the shell commands that PostgreSQL copies segments with. Never:
connects to a database, or removes a base backup that is the only one.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from appliance.dbops.copies.ownership import OWNER_FILE, Owner
from appliance.dbops.folder import FolderLock
from appliance.errors import DatabaseError

STAMP = "%Y%m%dT%H%M%S%fZ"
_BASE = re.compile(r"base-(\d{8}T\d{12}Z)")
_FIRST_WAL = re.compile(r"^START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)", re.MULTILINE)
_PARENT = re.compile(r"^\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)\b", re.MULTILINE)

BASE_PART = "base.part"
EARLIER = "earlier-"
"""Begins the names of folders that hold what belonged to a database before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseBackup:
    """A copy of a data folder, good for every moment from `finished_at` (UTC) on."""

    path: Path
    finished_at: datetime

    @property
    def first_wal(self) -> str:
        """The oldest WAL segment that a restore from it reads. Raises DatabaseError."""
        try:
            label = (self.path / "backup_label").read_text(encoding="utf-8")
        except OSError as error:
            raise DatabaseError(f"{self.path} is no base backup: {error}") from error
        match = _FIRST_WAL.search(label)
        if match is None:
            raise DatabaseError(f"{self.path}: its backup_label names no WAL segment")
        return match[1]

    @property
    def timeline(self) -> int:
        """The line of history that it was made on. Raises DatabaseError."""
        return int(self.first_wal[:8], 16)

    @property
    def end_lsn(self) -> int:
        """The place in the WAL that a restore from it reaches at least. Raises DatabaseError."""
        try:
            manifest = json.loads((self.path / "backup_manifest").read_bytes())
            return max(_lsn(stretch["End-LSN"]) for stretch in manifest["WAL-Ranges"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DatabaseError(f"{self.path}: its backup_manifest cannot be read") from error

    def leads_to(self, timeline: int, parents: Mapping[int, int]) -> bool:
        """Whether a line of history, with its `parents`, goes on from this backup."""
        return self.timeline == timeline or (
            self.timeline in parents and self.end_lsn <= parents[self.timeline]
        )


@dataclass(frozen=True, slots=True)
class Archive:
    """A folder of backups."""

    folder: Path

    @property
    def wal(self) -> Path:
        """Where the server puts its segments."""
        return self.folder / "wal"

    def bases(self) -> list[BaseBackup]:
        """The base backups that were finished, oldest first."""
        found = [
            BaseBackup(
                path=path, finished_at=datetime.strptime(match[1], STAMP).replace(tzinfo=UTC)
            )
            for path in self.folder.glob("base-*")
            if (match := _BASE.fullmatch(path.name))
        ]
        return sorted(found, key=lambda base: base.finished_at)

    def lock(self, purpose: str) -> FolderLock:
        """The lock of the folder, not taken yet: for one backup or restore at a time."""
        return FolderLock(self.folder / "lock", self.folder, purpose=purpose)

    @property
    def is_empty(self) -> bool:
        """Whether no database has left anything here."""
        return not self.bases() and not (self.wal.is_dir() and any(self.wal.iterdir()))

    def set_aside(self, owner: Owner | None) -> Path:
        """Move all that is here into a folder of its own, from which it can be restored; returns that.

        Killed in between, the same call goes on with it. Raises OSError.
        """
        aside = self.folder / f"{EARLIER}{owner.token[:8] if owner else 'unknown'}"
        aside.mkdir(mode=0o755, exist_ok=True)
        # Whose it is goes last: until then it is not free.
        for path in (*(base.path for base in self.bases()), self.wal, self.folder / OWNER_FILE):
            if path.exists():
                path.rename(aside / path.name)
        return aside

    def base_for(
        self, moment: datetime | None, timeline: int | None, histories: Iterable[Path]
    ) -> BaseBackup:
        """The latest base backup that a restore to `moment` (None: the end) can begin with.

        Only those count from which the line of history `timeline` goes on (None: any), as a history file
        in one of the folders `histories` has it. Raises DatabaseError that names the earliest moment.
        """
        bases = self.bases()
        if not bases:
            raise DatabaseError(
                f"{self.folder} holds no base backup (appliance db backup makes one)"
            )
        if timeline is not None:
            parents = parents_of(timeline, (self.wal, *histories))
            bases = [base for base in bases if base.leads_to(timeline, parents)]
            if not bases:
                raise DatabaseError(
                    f"{self.folder} holds no base backup from which timeline {timeline} goes on, which "
                    "the database was on then"
                )
        fitting = [base for base in bases if moment is None or base.finished_at <= moment]
        if not fitting:
            raise DatabaseError(
                f"the earliest moment that {self.folder} reaches back to is "
                f"{bases[0].finished_at.isoformat()}{self._earlier()}"
            )
        return fitting[-1]

    def archive_command(self, owner: Owner) -> str:
        """For PostgreSQL's setting of that name: copy a segment durably, whole or not at all.

        Only while the archive is `owner`'s. A segment that is there already is success if it is the same:
        PostgreSQL may have died before it noted that it was copied.
        """
        target, part = self._quoted("%f"), self._quoted(".%f.part")
        folder = shlex.quote(str(self.wal).replace("%", "%%"))
        whose = shlex.quote(str(self.folder / OWNER_FILE).replace("%", "%%"))
        return (
            f"grep -qsF {owner.token} {whose} && if test -f {target}; then cmp -s %p {target}; else "
            f"cp %p {part} && sync {part} && mv {part} {target} && sync {folder}; fi"
        )

    def restore_command(self) -> str:
        """For PostgreSQL's setting of that name: fetch a segment; it fails where there is none."""
        return f"cp {self._quoted('%f')} %p"

    def forget_before(self, kept: Sequence[BaseBackup]) -> tuple[Path, ...]:
        """Remove every base backup but these, and the WAL that none of these needs; what was removed."""
        assert kept
        first_wal = min(base.first_wal[8:] for base in kept)
        gone = [base.path for base in self.bases() if base not in kept]
        for path in gone:
            shutil.rmtree(path)
        for path in self.wal.iterdir():
            # A segment's name is timeline, then place; histories of timelines are small and stay.
            if re.fullmatch(r"[0-9A-F]{24}(\..*)?", path.name) and path.name[8:24] < first_wal:
                path.unlink()
                gone.append(path)
        return tuple(gone)

    def _earlier(self) -> str:
        """Where else to look, for a message."""
        found = sorted(self.folder.glob(f"{EARLIER}*"))
        return (
            f"; an earlier database's backups are in {', '.join(map(str, found))}" if found else ""
        )

    def _quoted(self, name: str) -> str:
        """A path for the shell, after PostgreSQL has replaced its own `%f`."""
        folder = str(self.wal).replace("%", "%%")
        return f"{shlex.quote(folder)}/{name}"


def parents_of(timeline: int, folders: Iterable[Path]) -> Mapping[int, int]:
    """The lines of history before one, each with the place in the WAL at which it was left.

    From PostgreSQL's history file in the first of the folders that has it; a first line has none.
    """
    for folder in folders:
        try:
            text = (folder / f"{timeline:08X}.history").read_text(
                encoding="utf-8", errors="replace"
            )
        except OSError:
            continue
        return {int(match[1]): _lsn(match[2]) for match in _PARENT.finditer(text)}
    return {}


def _lsn(text: str) -> int:
    """`0/3000148` as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)

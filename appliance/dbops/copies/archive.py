"""The folder of a cluster's backups: base backups under their times, and the WAL between them.

Owns the names in it and the shell commands that PostgreSQL copies segments with. Never: connects to a
database, or removes a base backup that is the only one.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from appliance.errors import DatabaseError

STAMP = "%Y%m%dT%H%M%S%fZ"
_BASE = re.compile(r"base-(\d{8}T\d{12}Z)")
_FIRST_WAL = re.compile(r"^START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)", re.MULTILINE)


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

    def base_for(self, moment: datetime | None) -> BaseBackup:
        """The latest base backup that a restore to `moment` (None: the end) can begin with.

        Raises DatabaseError that names the earliest possible moment.
        """
        bases = self.bases()
        if not bases:
            raise DatabaseError(
                f"{self.folder} holds no base backup (appliance db backup makes one)"
            )
        fitting = [base for base in bases if moment is None or base.finished_at <= moment]
        if not fitting:
            raise DatabaseError(
                f"the earliest moment that {self.folder} reaches back to is "
                f"{bases[0].finished_at.isoformat()}"
            )
        return fitting[-1]

    def archive_command(self) -> str:
        """For PostgreSQL's setting of that name: copy a segment durably, whole or not at all.

        A segment that is there already is success if it is the same: PostgreSQL may have died before it
        noted that it was copied.
        """
        target, part = self._quoted("%f"), self._quoted(".%f.part")
        return (
            f"if test -f {target}; then cmp -s %p {target}; else "
            f"cp %p {part} && sync {part} && mv {part} {target}; fi"
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

    def _quoted(self, name: str) -> str:
        """A path for the shell, after PostgreSQL has replaced its own `%f`."""
        folder = str(self.wal).replace("%", "%%")
        return f"{shlex.quote(folder)}/{name}"

"""What the timers' tasks leave in the data folder for the server's `/metrics`.

How each of them ended, and the database's state as Prometheus text: the server asks neither systemd nor,
as a superuser, the database. Owns the files `task-NAME.json` and `db-metrics.prom`.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from appliance.durable import replace_file

DATABASE_FILE = "db-metrics.prom"
FILE_BYTES_MAX = 1 << 20
_TASK = re.compile(r"task-([a-z-]+)\.json")


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended last; times are in seconds since 1970. `succeeded_at_s`: None: never yet."""

    is_success: bool
    ended_at_s: float
    succeeded_at_s: float | None = None


def note_end(data_dir: Path, task: str, *, is_success: bool, now_s: float) -> None:
    """Put down that a task has ended. Raises OSError."""
    before = read_ends(data_dir).get(task)
    kept_s = None if before is None else before.succeeded_at_s
    end = TaskEnd(
        is_success=is_success, ended_at_s=now_s, succeeded_at_s=now_s if is_success else kept_s
    )
    path = data_dir / f"task-{task}.json"
    assert _TASK.fullmatch(path.name)
    replace_file(path, msgspec.json.encode(end) + b"\n")


def read_ends(data_dir: Path) -> dict[str, TaskEnd]:
    """How each task ended that has ended once; what cannot be read is left out."""
    ends = {}
    for path in sorted(data_dir.glob("task-*.json")):
        if (match := _TASK.fullmatch(path.name)) is not None:
            try:
                ends[match[1]] = msgspec.json.decode(_content(path), type=TaskEnd)
            except (OSError, msgspec.MsgspecError):
                continue
    return ends


def notes_of(data_dir: Path, task: str) -> list[Path]:
    """The files that tell of a task: to be removed with it, or they would tell of it for ever."""
    files = [data_dir / f"task-{task}.json"]
    return [*files, data_dir / DATABASE_FILE] if task == "db-status" else files


def note_database(data_dir: Path, text: str) -> None:
    """Put down the database's state. Raises OSError."""
    replace_file(data_dir / DATABASE_FILE, text.encode())


def read_database(data_dir: Path) -> bytes:
    """The database's state as it was noted; empty where it was not, or cannot be read."""
    try:
        return _content(data_dir / DATABASE_FILE)
    except OSError:
        return b""


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX)

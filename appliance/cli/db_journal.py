"""`appliance db journal`: see, prove and replay the turns that wait for the database.

Works on the files alone, with or without a server. Never: changes one (`db_journal_replay.py` does).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli import db_journal_replay
from appliance.cli.admin_client import add_place
from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.cli.plain_text import as_json, size
from appliance.config import DatabaseConfig, Paths
from appliance.credentials import load_as_service

if TYPE_CHECKING:
    from appliance.cli.db import Subparsers

_TORN = "look like an entry that was being written when its server ended, and never acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies in a journal's folder. `holder` is the process that has it, or "unknown"."""

    holder: str | None
    entries: int
    conversations: int
    bytes: int
    oldest_s: float
    frames: int
    torn_bytes: int
    torn: tuple[str, ...]
    damaged: tuple[str, ...]
    refused: int

    def fields(self) -> dict[str, object]:
        """As JSON says it."""
        return {name: getattr(self, name) for name in Found.__slots__}


def add(commands: Subparsers) -> None:
    """The subcommand and its own."""
    parser = commands.add_parser("journal", help="turns that wait for the database")
    chosen = parser.add_subparsers(dest="journal_command", required=True, metavar="COMMAND")
    for name, about in (
        ("status", "how many wait, for how long, and who has the journal"),
        ("verify", "read every byte; exit code 1 when something is damaged or was refused"),
        ("replay", "write them to the database, when no server runs"),
    ):
        command = chosen.add_parser(name, help=about)
        add_place(command)
        command.add_argument("--json", action="store_true", help="print one JSON object")
        if name == "replay":
            db_journal_replay.add_options(command)


def run(options: argparse.Namespace) -> int:
    """Run the chosen one. Raises JournalHeld, JournalDamaged, JournalForeign, ConfigError, OSError."""
    paths, database = _place(options)
    folder = paths.journal_dir
    if options.journal_command == "replay":
        return db_journal_replay.run(options, paths, database)
    found = look(folder)
    told = found.fields()
    if options.journal_command == "status":
        print(as_json(told) if options.json else _status_text(folder, found))
        return 0
    is_right = not found.damaged and not found.refused
    print(as_json({**told, "ok": is_right}) if options.json else _verdict_text(folder, found))
    return 0 if is_right else EXIT_FOUND_WRONG


def look(folder: Path) -> Found:
    """What lies in the folder, read without taking it. Raises JournalDamaged, OSError."""
    from appliance.store.entries import pending_of
    from appliance.store.journal import oldest_s
    from appliance.store.journal_aside import DAMAGED_PREFIX, REFUSED_NAME, TORN_PREFIX
    from appliance.store.journal_file import holder_of, read_journal

    holder = holder_of(folder)
    scan = read_journal(folder)
    waiting = [] if scan is None else [entry for _, entry in pending_of(scan.frames)]
    refused = folder / REFUSED_NAME
    asides, torn = (
        sorted(str(path) for path in folder.glob(f"{prefix}*"))
        for prefix in (DAMAGED_PREFIX, TORN_PREFIX)
    )
    # Behind the last frame a server may be writing the next one at this moment.
    stretches = [] if scan is None else scan.damaged
    inside = [
        f"bytes {start} to {end} of the file"
        for start, end in stretches
        if holder is None or scan is None or start < scan.end
    ]
    return Found(
        holder=None if holder is None else str(holder.pid or "unknown"),
        entries=len(waiting),
        conversations=len({entry.key for entry in waiting}),
        bytes=0 if scan is None else scan.end,
        oldest_s=round(oldest_s(waiting[0].at if waiting else None, datetime.now(UTC)), 1),
        frames=0 if scan is None else len(scan.frames),
        torn_bytes=0 if scan is None else scan.torn_bytes,
        torn=tuple(torn),
        damaged=(*inside, *asides),
        refused=refused.read_bytes().count(b"\n") if refused.exists() else 0,
    )


def _status_text(folder: Path, found: Found) -> str:
    lines = [f"{folder}: {_held(found)}"]
    if found.entries:
        lines.append(
            f"  {found.entries} entries of {found.conversations} conversations wait, the oldest for "
            f"{found.oldest_s:g} s ({size(found.bytes)} in use)"
        )
    else:
        lines.append("  nothing waits")
    return "\n".join([*lines, *_faults(folder, found)])


def _verdict_text(folder: Path, found: Found) -> str:
    faults = _faults(folder, found)
    head = f"{folder}: {found.frames} frames read, {found.entries} entries wait"
    if found.torn_bytes and found.holder is None:
        head += f"; {found.torn_bytes} bytes at the end {_TORN}; they will be cut and kept aside"
    notes = [f"  cut from the end, {_TORN}: {name}" for name in found.torn]
    return "\n".join([head, *notes, *(faults or ["  all of it is sound"])])


def _faults(folder: Path, found: Found) -> list[str]:
    from appliance.store.journal_aside import REFUSED_NAME

    lines = [f"  damaged: {name}" for name in found.damaged]
    if found.refused:
        lines.append(
            f"  {found.refused} entries were refused by the database for good; they and the reasons "
            f"are in {folder / REFUSED_NAME}; once they can be written, "
            "`appliance db journal replay --from` does it"
        )
    return lines


def _held(found: Found) -> str:
    if found.holder is None:
        return "no server has it"
    return f"a server has it (process {found.holder}) and replays it by itself"


def _place(options: argparse.Namespace) -> tuple[Paths, DatabaseConfig]:
    if options.config is not None:
        config = load_as_service(options.config)
        return config.paths, config.database
    from appliance.cli.demo_paths import demo_paths

    return demo_paths(options.data_dir), DatabaseConfig()

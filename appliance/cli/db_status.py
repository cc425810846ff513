"""`appliance db status`: how much is left, how fast it goes, what holds it back. Never: changes it.

Its exit code is for monitoring: 0 healthy, 1 warning, 2 critical or not to be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_json, add_state, add_target, state_folder, target_of
from appliance.errors import DatabaseError, JournalDamaged, NotRunning
from appliance.log import tell
from appliance.task_notes import DATABASE_FILE, note_database

if TYPE_CHECKING:
    from appliance.cli.journal_depth import JournalDepth
    from appliance.dbops.snapshot.rates import Rate
    from appliance.dbops.snapshot.snapshot import Snapshot
    from appliance.dbops.target import Target


LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)
"""How grave the screen is in the journal, by its severity."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "status", help="IDs left in every database, the rate, what holds it back"
    )
    add_target(parser)
    add_state(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Read, print, and leave a sample for the next rate; returns the severity."""
    from appliance.cli.db_json import status_json
    from appliance.cli.db_text import status_text
    from appliance.cli.plain_text import as_json
    from appliance.dbops.blockers.blockers import blockers
    from appliance.dbops.monitoring.status import status_of
    from appliance.dbops.snapshot.inspect import read_snapshot

    target = target_of(options)
    try:
        snapshot = asyncio.run(read_snapshot(target.connect))
    except (DatabaseError, NotRunning):
        _note(options, target, None)
        raise
    found = rates(options, snapshot)
    notes = [*found.notes, *_note(options, target, snapshot)]
    journal = _journal(options, notes)
    status = status_of(
        snapshot,
        blockers(snapshot, rate=found.newest),
        rate=found.newest,
        daily_rate=found.daily,
    )
    if options.json:
        print(as_json(status_json(status, journal, notes)))
    else:
        tell(status_text(status, journal, found.missing, notes), LEVELS[status.severity])
    return status.severity


def _note(options: argparse.Namespace, target: Target, snapshot: Snapshot | None) -> list[str]:
    """Leave in the state folder what /metrics tells of the database; returns what is wrong."""
    from appliance.dbops.monitoring.backups import read_backups
    from appliance.dbops.monitoring.metrics import exposition

    folder = state_folder(options)
    if folder is None:
        return []
    try:
        note_database(folder, exposition(snapshot, read_backups(target.directory)))
    except OSError as error:
        return [f"/metrics does not know of this look: {folder / DATABASE_FILE}: {error}"]
    return []


def _journal(options: argparse.Namespace, notes: list[str]) -> JournalDepth | None:
    """None where no state folder is known or there is no journal; what is wrong with it is a note."""
    from appliance.cli.journal_depth import journal_depth

    folder = state_folder(options)
    if folder is None:
        return None
    try:
        return journal_depth(folder)
    except (OSError, JournalDamaged) as error:
        notes.append(f"the journal cannot be read: {error}")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The newest and the daily rate, why there is no newest one, and what is wrong with the samples."""

    newest: Rate | None
    daily: Rate | None
    missing: str
    notes: tuple[str, ...]


NOT_YET = "not known yet: ask again in a minute"


def rates(options: argparse.Namespace, snapshot: Snapshot) -> Rates:
    """From the samples in the state folder, to which this one is added.

    What is wrong with the folder is told: it must not keep anyone from seeing the rest.
    """
    from appliance.dbops.monitoring.samples import (
        FILE_NAME,
        read_samples,
        with_sample,
        write_samples,
    )
    from appliance.dbops.snapshot.rates import newest_and_daily_rate, sample_of

    folder = state_folder(options)
    if folder is None:
        return _no_rate("not known: no state folder is known (--state-dir)")
    now = sample_of(snapshot)
    try:
        samples = read_samples(folder)
    except (OSError, ValueError) as error:
        return _no_rate(f"not known: {folder / FILE_NAME} cannot be read: {error}")
    notes = []
    kept = with_sample(samples, now)
    if kept != samples:
        try:
            write_samples(folder, kept)
        except OSError as error:
            notes.append(f"no sample was kept: {folder / FILE_NAME}: {error}")
    newest, daily = newest_and_daily_rate(samples, now)
    return Rates(newest=newest, daily=daily, missing=NOT_YET, notes=tuple(notes))


def _no_rate(why: str) -> Rates:
    return Rates(newest=None, daily=None, missing=why, notes=(f"rate {why}",))

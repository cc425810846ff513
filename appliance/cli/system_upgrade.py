"""`appliance system upgrade` and `rollback`: another version takes the installed one's place.

The version that is to serve does it: it knows its own settings, migrations and units. To go back is the
same, done by the older one. Never: deletes a version, or changes the database before the whole change was
tried on it and undone.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from appliance.cli.installed import CONFIG, CREDENTIALS
from appliance.cli.postgres import with_own_postgres
from appliance.cli.system_apply import ROOT, carry_out
from appliance.cli.system_files import (
    POSTGRES_UNIT,
    PREVIOUS,
    PROGRAM,
    SERVER_UNIT,
    Link,
    engine_units,
)
from appliance.cli.system_plan import Command, Step, Write
from appliance.cli.system_steps import install_steps
from appliance.cli.system_version import About, about, ask
from appliance.config import Config, load_config
from appliance.credentials import DATABASE_URL
from appliance.database_failure import DatabaseFailure
from appliance.errors import ConfigError
from appliance.store.migrate import Rehearsed, rehearse
from appliance.store.pool import connect
from appliance.store.retry import reason

UPGRADE_FAILED = 1


def run_upgrade(sources: Path, *, execute: bool, no_way_back: bool) -> int:
    """Say, or with `execute` do, what puts this program into the installed one's place.

    Returns the exit code, 1 when it did not work and the old version serves on. Raises ConfigError or
    DatabaseError before anything is changed.
    """
    old_prefix, new = _installed(), about()
    if old_prefix == Path(new.prefix):
        print(f"version {new.version} ({new.prefix}) is the installed one: nothing to do")
        return 0
    old = ask(old_prefix)
    config = load_config(CONFIG)
    install = install_steps(ROOT, sources, model=None, name=None, start=False)
    tried = _rehearse(config)
    stopping = None if tried is None else tried.stopping
    print(f"from    {old.version if old else 'an unknown version'} in {old_prefix}")
    print(f"to      {new.version} in {new.prefix}")
    for migration in () if tried is None else tried.missing:
        print(f"migrate {migration} (tried on the database and undone)")
    if stopping is not None and not no_way_back:
        raise ConfigError(
            f"after migration {stopping} the old version cannot use the database: the way back is a "
            "backup alone, without what is said later. Make one (appliance db backup), then say "
            "--no-way-back"
        )
    restarts = restarts_of(old, new, config)
    steps = (*install, *restarts)
    for step in steps:
        print(step, flush=True)
    if not execute:
        print("nothing was changed: say --execute to do it", file=sys.stderr)
        return 0
    if os.geteuid() != 0:
        raise ConfigError("only root can change services; without --execute nothing is changed")
    return _carry_out(steps, old_prefix, restarts, is_one_way=stopping is not None)


def run_rollback(*, execute: bool) -> int:
    """Let the version that the last upgrade replaced take the installed one's place.

    Gives that program's exit code. Raises ConfigError when there is none.
    """
    try:
        program = Path(os.readlink(PREVIOUS)) / "bin" / "appliance"
    except OSError as error:
        raise ConfigError(f"{PREVIOUS}: no upgrade has left a version to go back to") from error
    if not program.exists():
        raise ConfigError(f"{PREVIOUS}: {program} is gone: install that version again")
    words = [str(program), "system", "upgrade"]
    sys.stdout.flush()
    os.execv(program, [*words, "--execute"] if execute else words)


def restarts_of(old: About | None, new: About, config: Config) -> tuple[Command, ...]:
    """What must start again; what is the same in both versions goes on and keeps what it has cached."""
    commands = []
    if config.database.url is None and (old is None or old.postgres != new.postgres):
        why = "its programs differ; turns are journalled meanwhile"
        commands.append(Command(words=("systemctl", "try-restart", POSTGRES_UNIT), why=why))
    units, why = [SERVER_UNIT], "connections wait; engines go on with what they have cached"
    if old is None or old.engine != new.engine:
        units += engine_units(config)
        why = "connections wait; engines differ: what is on disk comes back where its fingerprint fits"
    commands.append(Command(words=("systemctl", "try-restart", *units), why=why))
    return tuple(commands)


def _installed() -> Path:
    try:
        return Path(os.readlink(PROGRAM))
    except OSError as error:
        raise ConfigError(
            f"{PROGRAM}: no version is installed yet: appliance system install --model DIR"
        ) from error


def _rehearse(config: Config) -> Rehearsed | None:
    """Whether the migrations would work; None where there is no database yet."""
    secret = CREDENTIALS / DATABASE_URL
    if secret.is_file():
        url = secret.read_text(encoding="utf-8").strip()
        database = msgspec.structs.replace(config.database, url=url)
        config = msgspec.structs.replace(config, database=database)
    if config.database.url is None and not config.paths.postgres_dir.exists():
        return None
    try:
        return asyncio.run(_rehearse_on(with_own_postgres(config)))
    except DatabaseFailure as error:
        raise ConfigError(
            f"the database does not answer ({reason(error)}), and an upgrade is tried on it first: "
            "appliance doctor, systemctl start appliance-postgres.service"
        ) from error


async def _rehearse_on(config: Config) -> Rehearsed:
    assert config.database.url is not None
    pool = await connect(config.database.url, config.database)
    try:
        return await rehearse(pool)
    finally:
        pool.terminate()


def _carry_out(
    steps: Sequence[Step], old_prefix: Path, restarts: Sequence[Command], *, is_one_way: bool
) -> int:
    try:
        for step in steps:
            carry_out(ROOT, step)
    except (ConfigError, OSError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        if is_one_way:
            print(
                "the database may have been changed for good, so the new version stays: "
                f"journalctl -u {SERVER_UNIT}; the way back is the backup",
                file=sys.stderr,
            )
            return UPGRADE_FAILED
        _put_back(old_prefix, restarts)
        return UPGRADE_FAILED
    carry_out(ROOT, Write(wanted=Link(path=PREVIOUS, target=old_prefix), cause="upgrade"))
    print("done; back again: appliance system rollback --execute")
    return 0


def _put_back(old_prefix: Path, restarts: Sequence[Command]) -> None:
    """The old version, by its own command."""
    program = str(old_prefix / "bin" / "appliance")
    print(f"putting {old_prefix} back", file=sys.stderr, flush=True)
    for words in ((program, "system", "install", "--execute"), *(r.words for r in restarts)):
        carry_out(ROOT, Command(words=words, why="the upgrade failed"))
    print("the old version serves again", file=sys.stderr)

"""`appliance system upgrade` and `rollback`: another version takes the installed one's place.

The version that is to serve does it: it knows its own settings, migrations and units. To go back is the
same, done by the older one. Never: deletes a version, or changes the database before the whole change was
tried on it and undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from appliance.cli.admin_client import ask_socket
from appliance.cli.postgres import with_own_postgres
from appliance.cli.system_apply import ROOT, carry_out, link_target
from appliance.cli.system_files import (
    POSTGRES_UNIT,
    PREVIOUS,
    PROGRAM,
    SERVER_UNIT,
    Link,
    engine_units,
)
from appliance.cli.system_plan import Command, Remove, Step, Write
from appliance.cli.system_steps import install_steps, installed_config
from appliance.cli.system_version import About, about, ask
from appliance.config import Config
from appliance.database_failure import DatabaseFailure
from appliance.errors import ApplianceError, ConfigError
from appliance.store.migrate import Rehearsed, rehearse
from appliance.store.pool import connect
from appliance.store.retry import reason

UPGRADE_FAILED = 1
ASK_TIMEOUT_S = 5.0
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What ends an upgrade from outside, Ctrl-C aside: a terminal that is lost, a box that goes down."""


def run_upgrade(sources: Path, *, execute: bool, no_way_back: bool) -> int:
    """Say, or with `execute` do, what puts this program into the installed one's place.

    Returns the exit code, 1 when it did not work and the old version serves on. Raises ConfigError or
    DatabaseError before anything is changed.
    """
    installed, new = _installed(), about()
    config = installed_config(ROOT)
    old_prefix = _replaced(installed, new, config)
    if old_prefix is None:
        print(f"version {new.version} ({new.prefix}) is the installed one: nothing to do")
        return 0
    old = ask(old_prefix)
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
    # First of all, so that there is a way back from wherever this stops.
    way_back = [] if link_target(PREVIOUS) == old_prefix else [_previous(old_prefix)]
    steps = (*way_back, *install, *restarts)
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
    installed = link_target(PROGRAM)
    if installed is None:
        raise ConfigError(
            f"{PROGRAM}: no version is installed yet: appliance system install --model DIR"
        )
    return installed


def _replaced(installed: Path, new: About, config: Config) -> Path | None:
    """The version whose place is to be taken; None when `new` has it.

    An upgrade that was killed may have installed `new` while its predecessor serves on.
    """
    if installed != Path(new.prefix):
        return installed
    before = link_target(PREVIOUS)
    is_old_serving = _served(config) not in (None, new.version)
    return before if is_old_serving and before != installed else None


def _served(config: Config) -> str | None:
    """The version of the server that runs; None where none answers."""
    address = config.paths.admin_socket
    try:
        told = ask_socket(address, "GET", "/status", timeout_s=ASK_TIMEOUT_S)
    except ApplianceError:
        return None
    return str(told["version"])


def _previous(prefix: Path) -> Write:
    return Write(wanted=Link(path=PREVIOUS, target=prefix), cause="the way back")


def _rehearse(config: Config) -> Rehearsed | None:
    """Whether the migrations would work; None where there is no database yet."""
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
    before = link_target(PREVIOUS)
    try:
        with _ended_as_by_ctrl_c():
            for step in steps:
                carry_out(ROOT, step)
    except BaseException as error:
        _tell(f"FAILED: {str(error) or type(error).__name__}")
        if is_one_way:
            _tell(
                "the database may have been changed for good, so the new version stays: "
                f"journalctl -u {SERVER_UNIT}; the way back is the backup"
            )
        else:
            _put_back(old_prefix, before, restarts)
        if isinstance(error, ConfigError | OSError):
            return UPGRADE_FAILED
        raise
    print("done; back again: appliance system rollback --execute")
    return 0


def _put_back(old_prefix: Path, before: Path | None, restarts: Sequence[Command]) -> None:
    """The old version, by its own command; and what was the one before it."""
    program = str(old_prefix / "bin" / "appliance")
    _tell(f"putting {old_prefix} back")
    # Its own `install` puts the rest back, and does so for the version that is linked alone.
    carry_out(ROOT, Write(wanted=Link(path=PROGRAM, target=old_prefix), cause="the upgrade failed"))
    for words in ((program, "system", "install", "--execute"), *(r.words for r in restarts)):
        carry_out(ROOT, Command(words=words, why="the upgrade failed"))
    carry_out(ROOT, Remove(path=PREVIOUS) if before is None else _previous(before))
    _tell("the old version serves again")


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """While the body runs, a signal of `ENDING` raises KeyboardInterrupt."""

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    old = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _tell(sentence: str) -> None:
    """To a terminal that may be gone: what is put back is more than who hears of it."""
    with contextlib.suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)

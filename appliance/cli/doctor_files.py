"""Faults of the appliance's own files: settings, secrets, model, folders, sockets. Never: changes one."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from appliance.cli.doctor_subject import Fault, Subject
from appliance.config import engine_configs
from appliance.credentials import KNOWN, with_secrets
from appliance.errors import ApplianceError
from appliance.file_access import (
    ENTER,
    READ,
    WRITE,
    Who,
    advice,
    hidden_at,
    no_home,
    stopped_at,
    told,
)
from appliance.model.files import check_model
from appliance.server.auth import Keys
from appliance.unix_socket import SOCKET_PATH_BYTES_MAX

OPEN_TO_OTHERS = stat.S_IRWXO
OPEN_TO_GROUP = stat.S_IRWXG


def settings_faults(subject: Subject) -> Iterator[Fault]:
    """The configuration file's own: who reads it, what it holds."""
    path, config = subject.config_path, subject.written
    stopped = stopped_at(path, subject.who, READ)
    if stopped is not None:
        yield Fault(
            name="config-not-readable",
            what=told(path, stopped, subject.who),
            mend=f"chown root:appliance {path} && chmod 640 {path}",
        )
    try:
        Keys.from_config(subject.config.server)
    except ApplianceError as error:
        yield Fault(name="config-wrong", what=error.message, mend=f"edit {path}")
    url = config.database.url
    holds_secret = bool(config.server.api_keys) or bool(url and urlsplit(url).password)
    if holds_secret and path.stat().st_mode & OPEN_TO_OTHERS:
        yield Fault(
            name="config-open-to-all",
            what=f"{path} holds keys or a password, and everybody on this machine may read it",
            mend=f"chmod 640 {path} (better: move them to /etc/appliance/credentials)",
        )


def secret_faults(subject: Subject) -> Iterator[Fault]:
    """The folder of credentials: only root reads it, and only known files are handed out."""
    folder = subject.credentials
    if folder is None:
        return
    if not folder.is_dir():
        yield Fault(
            name="credentials-missing",
            what=f"{folder} does not exist, and no service starts without it",
            mend="systemd-tmpfiles --create appliance.conf",
        )
        return
    for path in (folder, *sorted(folder.iterdir())):
        if not path.exists():
            yield Fault(
                name="credential-wrong",
                what=f"{path} is a link to nothing",
                mend=f"rm {path}, or bring back what it leads to",
            )
            continue
        if path.stat().st_mode & (OPEN_TO_OTHERS | OPEN_TO_GROUP):
            yield Fault(
                name="secret-open-to-all",
                what=f"{path} can be read by others than root",
                mend=f"chmod {'700' if path == folder else '600'} {path}",
            )
        if path != folder and path.name not in KNOWN:
            yield Fault(
                name="credential-unknown",
                what=f"{path} is none of {', '.join(KNOWN)}: nobody reads it",
                mend=f"rename or remove it: mv {path} {folder / KNOWN[0]}",
            )
    if any(not path.exists() for path in folder.iterdir()):
        return
    try:
        with_secrets(subject.written, folder)
    except ApplianceError as error:
        yield Fault(name="credential-wrong", what=error.message, mend=f"edit it in {folder}")


def model_faults(subject: Subject) -> Iterator[Fault]:
    """The model that is set: there, whole, and within the service's reach."""
    yield from faults_of_model(subject.config.model.path, subject.who)


def faults_of_model(path: Path, who: Who) -> Iterator[Fault]:
    """What keeps the services of `who` from a model."""
    if not path.exists():
        yield Fault(
            name="model-missing",
            what=f"model.path: {path} does not exist",
            mend="put the model there, or change model.path",
        )
        return
    files = (path,) if path.is_file() else (path, *sorted(path.iterdir()))
    hidden = next(filter(None, map(hidden_at, files)), None)
    if hidden is not None:
        yield Fault(
            name="model-hidden",
            what=f"model.path: {path} {no_home(hidden)}",
            mend=f"mkdir -p /srv/models && cp -rL {path} /srv/models/, and edit model.path",
        )
    for place in files:
        stopped = stopped_at(place, who, READ | ENTER if place.is_dir() else READ)
        if stopped is not None:
            yield Fault(
                name="model-not-readable",
                what=f"model.path: {told(place, stopped, who)}",
                mend=advice(stopped),
            )
            return
    if path.suffix == ".gguf":
        yield Fault(
            name="model-not-converted",
            what=f"model.path: {path} is a .gguf file, which `appliance serve` converts at its start; "
            "services read model directories",
            mend="run `appliance serve` with this file once, and set model.path to the directory that it "
            "made below its data_dir/models",
        )
    try:
        check_model(path)
    except ApplianceError as error:
        yield Fault(
            name="model-damaged", what=error.message, mend=f"appliance model inspect {path}"
        )


def folder_faults(subject: Subject) -> Iterator[Fault]:
    """State and sockets' folders: there, the service user's own, closed to others."""
    config, who = subject.config, subject.who
    for name, folder in (("run", config.paths.run_dir), ("state", config.paths.data_dir)):
        if not folder.is_dir():
            yield Fault(
                name=f"{name}-folder-missing",
                what=f"paths.{'run_dir' if name == 'run' else 'data_dir'}: {folder} does not exist",
                mend="systemd-tmpfiles --create appliance.conf "
                f"(or: install -d -o {who.name} -g {who.name} -m 700 {folder})",
            )
            continue
        stopped = stopped_at(folder, who, READ | WRITE | ENTER)
        if folder.stat().st_uid != who.uid or stopped is not None:
            yield Fault(
                name="wrong-owner",
                what=f"{folder} belongs to {_owner(folder)}, and has to be {who.name}'s",
                mend=f"chown -R {who.name}:{who.name} {folder}",
            )
        elif name == "state" and (other := _of_another(folder, who.uid)) is not None:
            yield Fault(
                name="wrong-owner",
                what=f"{other} belongs to {_owner(other)}, and has to be {who.name}'s",
                mend=f"chown -R {who.name}:{who.name} {other}",
            )
        elif name == "state" and folder.stat().st_mode & (OPEN_TO_OTHERS | OPEN_TO_GROUP):
            yield Fault(
                name="state-open-to-all",
                what=f"{folder} holds chats, and others than {who.name} may look into it",
                mend=f"chmod 700 {folder}",
            )


def trace_faults(subject: Subject) -> Iterator[Fault]:
    """The file that records what requests do to the index: its folder is there, and open to engines."""
    path = subject.config.engine.trace_path
    if path is None:
        return
    folder = Path(os.path.realpath(path.parent))
    writes = subject.machine.engine_writes
    stopped = stopped_at(folder, subject.who, WRITE | ENTER)
    if not folder.is_dir():
        what, mend = f"{folder} is no folder", f"install -d -o {subject.who.name} -m 700 {folder}"
    elif stopped is not None:
        what, mend = told(folder, stopped, subject.who), advice(stopped)
    elif writes is not None and not any(folder.is_relative_to(place) for place in writes):
        what = f"the engine's service may write into {', '.join(map(str, writes))}, not {folder}"
        mend = f"systemctl edit appliance-engine@.service: [Service] ReadWritePaths={folder}"
    else:
        return
    yield Fault(name="trace-not-writable", what=f"engine.trace_path: {what}", mend=mend)


def socket_faults(subject: Subject) -> Iterator[Fault]:
    """Sockets that cannot be had: a path too long, a file in the way, a socket nobody serves."""
    config = subject.config
    own = [engine.paths.engine_socket for engine in engine_configs(config)]
    for path in (*own, config.paths.admin_socket):
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            yield Fault(
                name="socket-path-long",
                what=f"{path}: a socket's path may have {SOCKET_PATH_BYTES_MAX} bytes",
                mend="choose a shorter paths.run_dir, such as /run/appliance",
            )
            return
        if path.is_socket() and _refuses(path) and not subject.is_stopped:
            yield Fault(
                name="stale-socket",
                what=f"{path} is a socket that nobody serves: its process was killed, or has stopped",
                mend=f"rm {path} (the next start of the appliance replaces it too)",
            )
        elif path.exists() and not path.is_socket():
            yield Fault(
                name="socket-in-the-way",
                what=f"{path} is not a socket, and stands where one has to be",
                mend=f"mv {path} {path}.old",
            )


def port_faults(subject: Subject) -> Iterator[Fault]:
    """Another program on the appliance's port. While the appliance itself runs, it has it."""
    server = subject.config.server
    admin = subject.config.paths.admin_socket
    if subject.is_running or (admin.is_socket() and not _refuses(admin)):
        return
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
        except (OSError, UnicodeError) as error:
            # Text that can be no host's name is a UnicodeError.
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            yield Fault(
                name="port-taken" if taken else "address-not-here",
                what=f"{server.host} port {server.port}: {getattr(error, 'strerror', None) or error}",
                mend=f"ss -ltnp 'sport = :{server.port}' shows who has it; end that, or edit server.port"
                if taken
                else f"ip address shows this machine's; edit server.host in {subject.config_path}",
            )


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def _of_another(folder: Path, uid: int) -> Path | None:
    """What in the folder of state is another user's; the database's own folder is judged by itself."""
    for place, folders, files in os.walk(folder):
        if Path(place) == folder:
            # The second is the disk's, where one is mounted there.
            folders[:] = [name for name in folders if name not in ("postgres", "lost+found")]
        for name in (*folders, *files):
            path = Path(place, name)
            try:
                if path.lstat().st_uid != uid:
                    return path
            except FileNotFoundError:
                continue  # Gone meanwhile.
    return None


def _owner(path: Path) -> str:
    uid = path.lstat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"

"""An embedded PostgreSQL: one data folder, and its server as a child of this process.

Owns the data folder (created whole or not at all), the lock beside it, and the running server. Never:
touches a folder that is not its cluster, creates a user, or opens another folder's mode.

As root the server runs under the uid that owns the folder, which may be unable to walk the folder's
path (`/root` is closed). It needs no path: root opens the folder, and the server is told that its data
lies behind that descriptor. Its socket lies in the data folder for the same reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from appliance.dbops.cluster import leftover
from appliance.dbops.cluster.account import Account, account_of_cluster
from appliance.dbops.cluster.binaries import Binaries, reachable_binaries
from appliance.dbops.cluster.extensions import add_missing
from appliance.dbops.cluster.initdb import fill_folder
from appliance.dbops.cluster.programs import end_process, environment, last_line
from appliance.dbops.folder import ANOTHER_APPLIANCE, FolderLock, opened
from appliance.dbops.settings import PORT, SETTINGS, SETTINGS_FILE, SUPERUSER
from appliance.durable import replace_file, sync_folder
from appliance.errors import DatabaseError

log = logging.getLogger("appliance.dbops")

Progress = Callable[[str], None]
"""Told in words what is being waited for."""

SOCKET_PATH_BYTES_MAX = 107
"""The longest address of a unix socket, sun_path in unix(7)."""

START_TIMEOUT_S = 600.0
REPORT_EVERY_S = 1.0


def socket_url(folder: Path, database: str = SUPERUSER) -> str:
    """How a client reaches the server whose socket lies in `folder`."""
    host = quote(str(folder), safe="")
    return f"postgresql://{SUPERUSER}@/{quote(database, safe='')}?host={host}&port={PORT}"


def cluster_lock(directory: Path, purpose: str = ANOTHER_APPLIANCE) -> FolderLock:
    """The lock of a cluster's folder, not taken yet."""
    path = directory.with_name(f"{directory.name}.lock")
    return FolderLock(path, directory, purpose=purpose)


def major_of(directory: Path) -> str:
    """The major version that wrote a data folder; raises DatabaseError when it is none."""
    try:
        return (directory / "PG_VERSION").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseError(f"{directory} holds no PostgreSQL database") from error


class Cluster:
    """The cluster in `directory`, served by `binaries`; one object per folder and process."""

    def __init__(
        self,
        directory: Path,
        binaries: Binaries,
        *,
        purpose: str = ANOTHER_APPLIANCE,
        settings: str = SETTINGS,
    ) -> None:
        """`purpose` is what others are told who meet the lock, `settings` the text of its settings."""
        self.directory = directory.absolute()
        self._binaries = binaries
        self._settings = settings
        self._lock = cluster_lock(self.directory, purpose)
        self._process: Process | None = None
        self._link: Path | None = None

    @property
    def exists(self) -> bool:
        """Whether the folder holds a cluster, of whatever version and owner."""
        return (self.directory / "PG_VERSION").is_file()

    def url(self, database: str = SUPERUSER) -> str:
        """How a client on this machine reaches the running server, as the folder's owner or root."""
        return socket_url(self._socket_folder(), database)

    async def init(self, progress: Progress) -> None:
        """Create the cluster: UTF8, the builtin C.UTF-8 locale, data checksums.

        The folder appears whole, by a rename: killed in between, nothing is left that looks like one.
        Raises DatabaseError when the folder already holds anything.
        """
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        if self.directory.exists() and any(self.directory.iterdir()):
            raise DatabaseError(f"{self.directory} is not empty; a new database needs a new folder")
        progress("creating the database")
        self._remove_unfinished()
        work = Path(tempfile.mkdtemp(prefix=self._beside("init-").name, dir=self.directory.parent))
        try:
            await fill_folder(work, self._binaries)
            self._name(work)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        log.info("database_created", extra={"folder": str(self.directory)})

    async def start(self, progress: Progress, *, timeout_s: float = START_TIMEOUT_S) -> Process:
        """Start the server and wait until it takes connections; returns it as a child to be watched.

        A server that an earlier run left behind is stopped first. Raises DatabaseError when the
        folder is no cluster, another version's, another user's or in use, or the server gives up.
        """
        account = self.check()
        self._lock.acquire()
        binaries = reachable_binaries(self._binaries, account)
        await self._stop_leftover(account, progress)
        leftover.remove_empty_locks(self.directory)
        replace_file(self.directory / SETTINGS_FILE, self._settings.encode())
        process = await self._spawn(binaries, account)
        try:
            if not await self._ready(process, progress, timeout_s):
                raise DatabaseError(f"PostgreSQL did not start: {self._failure()}")
            await add_missing(self.directory)
        except BaseException:
            await end_process(process)
            raise
        self._process = process
        return process

    async def end_server(self) -> None:
        """Stop the server, fast if it can, by force if it must; the folder stays ours."""
        process, self._process = self._process, None
        if process is not None:
            await end_process(process)

    async def stop(self) -> None:
        """Stop the server, and give the folder up."""
        await self.end_server()
        if self._link is not None:
            shutil.rmtree(self._link.parent, ignore_errors=True)
            self._link = None
        self._lock.release()

    def _beside(self, suffix: str) -> Path:
        return self.directory.with_name(f"{self.directory.name}.{suffix}")

    def _socket_folder(self) -> Path:
        """The data folder, or a short link to it where its path is too long for a socket's address."""
        socket_path = self.directory / f".s.PGSQL.{PORT}"
        if len(os.fsencode(socket_path)) <= SOCKET_PATH_BYTES_MAX:
            return self.directory
        if self._link is None:
            self._link = Path(tempfile.mkdtemp(prefix="appliance-", dir="/tmp")) / "postgres"
            self._link.symlink_to(self.directory)
        return self._link

    def check(self) -> Account:
        """Whether the folder could be started, and by whom; looks only, and takes no lock.

        Raises DatabaseError when it is no cluster, another version's or another user's.
        """
        if not self.directory.is_dir():
            raise DatabaseError(f"{self.directory} does not exist: there is no database to start")
        account = account_of_cluster(self.directory)
        major = major_of(self.directory)
        if major != self._binaries.major:
            raise DatabaseError(_other_version(self.directory, major, self._binaries))
        return account

    def _remove_unfinished(self) -> None:
        """Folders of an `init` that was killed; the lock says that no other is running."""
        for folder in self.directory.parent.glob(f"{self._beside('init-').name}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _name(self, work: Path) -> None:
        try:
            work.rename(self.directory)
        except OSError as error:
            raise DatabaseError(f"{self.directory} cannot be created: {error.strerror}") from error
        sync_folder(self.directory.parent)

    async def _stop_leftover(self, account: Account, progress: Progress) -> None:
        """The lock is ours, so whatever serves this folder has lost its supervisor or its server."""
        pids = leftover.processes_in(self.directory, account)
        if not pids:
            return
        progress("stopping what the last run of the database left behind")
        log.warning("database_left_running", extra={"pids": pids})
        if not await leftover.stop_processes(pids, leftover.recorded_pid(self.directory)):
            raise DatabaseError(
                f"processes {pids} still use {self.directory} and cannot be stopped"
            )

    async def _spawn(self, binaries: Binaries, account: Account) -> Process:
        given = environment()
        pid = leftover.recorded_pid(self.directory)
        if pid is not None:
            # Nothing serves this folder, so another program may have got the number. PostgreSQL takes any
            # living process of its user for a server, but for the one named here (pg_ctl's own caller).
            given["PG_GRANDPARENT_PID"] = str(pid)
        log_path = self._beside("start.log")
        log_path.unlink(missing_ok=True)  # Root's, of a start by hand, this user could not open.
        with log_path.open("wb") as output, opened(self.directory) as here:
            return await asyncio.create_subprocess_exec(
                binaries.program("postgres"),
                "-D",
                here.path if account.borrowed else self.directory,
                cwd=self.directory,
                env=given,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                pass_fds=(here.descriptor,),
                start_new_session=True,
                preexec_fn=leftover.end_with_parent,
                **account.spawn_options(),
            )

    async def _ready(self, process: Process, progress: Progress, timeout_s: float) -> bool:
        """Wait until the server says it is ready; False when it ended instead."""
        clock = asyncio.get_running_loop().time
        started = reported = clock()
        while process.returncode is None:
            now = clock()
            if leftover.recorded_pid(self.directory) == process.pid:
                if leftover.recorded_status(self.directory) == "ready":
                    return True
                if now - reported >= REPORT_EVERY_S:
                    reported = now
                    progress(f"the database is recovering ({now - started:.0f} s)")
            if now - started > timeout_s:
                raise DatabaseError(f"PostgreSQL was not ready after {timeout_s:.0f} s")
            await asyncio.sleep(leftover.POLL_S / 2)
        return False

    def _failure(self) -> str:
        """The server's last words; those it spoke after its log was open are in the log."""
        words = last_line(self._beside("start.log").read_bytes())
        return f"{words} (its log: {self.directory / 'log'})"


def _other_version(directory: Path, major: str, binaries: Binaries) -> str:
    told = (
        f"{directory} was written by PostgreSQL {major}, this is PostgreSQL {binaries.version}: it is "
        "left as it is. "
    )
    if major.isdecimal() and int(major) > int(binaries.major):
        return told + (
            "Use the appliance that has written it, or put back what the upgrade kept: "
            f"appliance db upgrade --rollback --data-dir {shlex.quote(str(directory))}"
        )
    return told + f"To upgrade it: appliance db upgrade --data-dir {shlex.quote(str(directory))}"

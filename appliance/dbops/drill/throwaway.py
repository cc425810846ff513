"""A cluster made to be ruined and thrown away, of any version whose programs are at hand.

Owns its folder: creates, copies, starts, stops it, moves its counters with `pg_resetwal`, and removes it.
Never: touches any other folder. What it does to its own must never be done to data that matters.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from appliance.dbops.cluster.account import account_of_cluster
from appliance.dbops.cluster.binaries import Binaries, reachable_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.cluster.programs import control_fields, run_program
from appliance.dbops.folder import ANOTHER_APPLIANCE, opened
from appliance.dbops.settings import PORT
from appliance.errors import DatabaseError

SETTINGS = """\
# A throw-away cluster: it lives for minutes and survives no power cut.
listen_addresses = ''
unix_socket_directories = '.'
unix_socket_permissions = 0700
cluster_name = 'drill'
max_connections = 40
shared_buffers = 64MB
max_parallel_workers_per_gather = 0
jit = off
fsync = off
max_wal_size = 1GB
timezone = 'UTC'
log_timezone = 'UTC'
log_min_messages = error

# What the blockers need.
max_prepared_transactions = 20
wal_level = logical

# The launcher lives, so that a refused write calls no emergency vacuum, and sleeps for 24 days: a
# running autovacuum would mend the cluster before anybody saw it stopped.
autovacuum = on
autovacuum_naptime = 2147483
"""

PROGRAM_TIMEOUT_S = 120.0
SLRU_SEGMENT_BYTES = 32 * 8192
"""A file of pg_multixact: 32 pages (slru.h), 8 KB each."""


def silent(_: str) -> None:
    """A progress callback that says nothing."""


class ThrowAway:
    """One throw-away cluster in `directory`; `cluster` starts and stops its server."""

    def __init__(
        self, directory: Path, binaries: Binaries, *, purpose: str = ANOTHER_APPLIANCE
    ) -> None:
        self.binaries = binaries
        self.cluster = Cluster(directory, binaries, purpose=purpose, settings=SETTINGS)
        self._process: Process | None = None

    @property
    def directory(self) -> Path:
        """The data folder."""
        return self.cluster.directory

    def url(self, database: str) -> str:
        """How a client reaches the running server."""
        return self.cluster.url(database)

    @property
    def socket_path(self) -> Path:
        """The running server's socket, at a path short enough for its address."""
        ((_, folder),) = (
            pair for pair in parse_qsl(urlsplit(self.url("")).query) if pair[0] == "host"
        )
        return Path(folder, f".s.PGSQL.{PORT}")

    async def create(self) -> None:
        """Create the cluster, with data checksums; it is not started."""
        await self.cluster.init(silent)
        await self.cluster.stop()

    async def copy_to(self, directory: Path) -> ThrowAway:
        """The same cluster in a new folder; this one must be stopped."""
        process = await asyncio.create_subprocess_exec(
            "cp", "-a", "--reflink=auto", self.directory, directory, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise DatabaseError(f"{directory} cannot be made: {output.decode().strip()}")
        return ThrowAway(directory, self.binaries)

    async def start(self) -> None:
        """Start the server and wait until it takes connections."""
        self._process = await self.cluster.start(silent)

    async def stop(self) -> None:
        """Stop the server cleanly, if it runs: what `pg_resetwal` demands."""
        await self.cluster.stop()

    async def stop_at_once(self) -> None:
        """Stop without a checkpoint, as a power cut would: the next start recovers from WAL."""
        assert self._process is not None, "no server runs"
        self._process.send_signal(signal.SIGQUIT)
        await self._process.wait()
        await self.cluster.stop()

    async def remove(self) -> None:
        """Stop the server, without ceremony, and remove the folder with what lies beside it."""
        await self.cluster.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        for beside in ("lock", "start.log"):
            self.directory.with_name(f"{self.directory.name}.{beside}").unlink(missing_ok=True)

    async def control(self) -> Mapping[str, str]:
        """What `pg_controldata` says, by its own names."""
        return control_fields(await self._run("pg_controldata"))

    async def reset(self, *options: str) -> None:
        """Move the counters of the stopped cluster: `-x XID`, `-m MXID,OLDEST` or `-O OFFSET`."""
        await self._run("pg_resetwal", *options)

    def take_prepared(self) -> Mapping[str, bytes]:
        """The state files of prepared transactions, taken out of the stopped cluster."""
        folder = self.directory / "pg_twophase"
        taken = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        for name in taken:
            (folder / name).unlink()
        return taken

    def give_prepared(self, files: Mapping[str, bytes]) -> None:
        """Put them back for a start from an online checkpoint, as from a base backup: it makes the
        server a standby, to be promoted by a session.

        A server that finds an old prepared transaction at a start from its own shutdown writes 4 bytes
        of `pg_subtrans` for every XID since: 8 GB. One that becomes a primary after a recovery with
        hot standby has begun `pg_subtrans` at the checkpoint already (`StartupXLOG`, xlog.c).

        Such a start forgets all statistics, and a launcher of autovacuum that knows of no database by
        them begins with a worker, whatever its naptime (`AutoVacLauncherMain`, autovacuum.c). A primary
        starts the launcher, so it knows of the database to which there was a session of the standby.
        """
        for name, content in files.items():
            self.write(Path("pg_twophase", name), content)
        self.write(Path("standby.signal"), b"")

    def write(self, path: Path, content: bytes) -> None:
        """A file of the cluster's own user, new or written over; `path` is within the data folder."""
        account = account_of_cluster(self.directory)
        target = self.directory / path
        target.write_bytes(content)
        target.chmod(0o600)
        os.chown(target, account.uid, account.gid)

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        """Write into a file of the cluster at `offset`."""
        with (self.directory / path).open("r+b") as file:
            file.seek(offset)
            file.write(content)

    async def _run(self, name: str, *options: str) -> str:
        account = account_of_cluster(self.directory)
        with opened(self.directory) as here:
            return await run_program(
                reachable_binaries(self.binaries, account).program(name),
                *options,
                here.path,
                cwd=self.directory,
                account=account,
                timeout_s=PROGRAM_TIMEOUT_S,
                pass_fds=(here.descriptor,),
            )

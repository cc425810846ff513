"""The embedded cluster: made whole, started as any user, refused when it is not ours to touch."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from appliance.dbops.cluster import binaries as binaries_module
from appliance.dbops.cluster.account import CLUSTER_UID, account_of_cluster
from appliance.dbops.cluster.binaries import COPIED, Binaries, reachable_binaries
from appliance.dbops.cluster.cluster import SOCKET_PATH_BYTES_MAX, Cluster, cluster_lock
from appliance.dbops.settings import PORT, SETTINGS_FILE
from appliance.errors import DatabaseError
from tests.postgres import folders
from tests.postgres.folders import copy, digest
from tests.postgres_fixtures import quiet

ROOT = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="another user's files need root to make")


@pytest.fixture
async def own(tmp_path: Path, pristine: Path, binaries: Binaries) -> AsyncIterator[Cluster]:
    """A stopped cluster that a test may break."""
    cluster = Cluster(copy(pristine, tmp_path / "postgres"), binaries)
    yield cluster
    await cluster.stop()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's are not."""
    with folders.open_folder() as folder:
        yield folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def owner_of_process(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def spawn_for(cluster: Cluster, *command: str | Path) -> subprocess.Popen[bytes]:
    """A program under the cluster's user, of no supervisor's making."""
    return subprocess.Popen(
        command,
        cwd=cluster.directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **account_of_cluster(cluster.directory).spawn_options(),
    )


def spawn_supervisor(folder: Path) -> subprocess.Popen[str]:
    """Another process that starts the cluster, prints its process id and watches it."""
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from appliance.dbops.cluster.binaries import find_binaries\n"
        "from appliance.dbops.cluster.cluster import Cluster\n"
        "async def main():\n"
        "    process = await Cluster(Path(sys.argv[1]), find_binaries()).start(lambda _: None)\n"
        "    print(process.pid, flush=True)\n"
        "    await process.wait()\n"
        "asyncio.run(main())\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


async def ask(cluster: Cluster, query: str) -> object:
    connection = await asyncpg.connect(cluster.url())
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_a_new_cluster_is_private_checked_and_answers(
    tmp_path: Path, binaries: Binaries
) -> None:
    parent = tmp_path / "closed"
    parent.mkdir(mode=0o700)
    cluster = Cluster(parent / "postgres", binaries)
    assert not cluster.exists
    said: list[str] = []
    await cluster.init(said.append)
    assert cluster.exists
    assert said == ["creating the database"]
    process = await cluster.start(quiet)
    try:
        expected = CLUSTER_UID if AS_ROOT else os.geteuid()
        assert cluster.directory.stat().st_uid == expected
        assert stat.S_IMODE(cluster.directory.stat().st_mode) == 0o700
        assert owner_of_process(process.pid) == expected
        for setting, value in {
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "listen_addresses": "",
            "fsync": "on",
            "autovacuum": "on",
            "idle_in_transaction_session_timeout": "1min",
        }.items():
            assert await ask(cluster, f"SHOW {setting}") == value
        assert (
            await ask(cluster, "SELECT count(*) FROM pg_file_settings WHERE error IS NOT NULL") == 0
        )
        assert (
            await ask(
                cluster,
                "SELECT datlocprovider::text || datlocale FROM pg_database WHERE datname = 'postgres'",
            )
            == "bC.UTF-8"
        )
    finally:
        await cluster.stop()
    # No mode but our own folder's is ours to choose, and nothing unfinished is left beside it.
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
    assert parent.stat().st_uid == os.geteuid()
    assert names(parent) == {"postgres", "postgres.lock", "postgres.start.log"}


async def test_a_server_that_ends_for_a_deed_of_ours_leaves_the_folder_ours(own: Cluster) -> None:
    await own.start(quiet)
    await own.end_server()
    assert not (own.directory / "postmaster.pid").exists()
    holder = cluster_lock(own.directory).holder()
    assert holder is not None
    assert holder.pid == os.getpid()
    await own.start(quiet)
    await own.stop()
    assert cluster_lock(own.directory).holder() is None


async def test_data_outlives_a_stop_and_a_start(own: Cluster) -> None:
    await own.start(quiet)
    await ask(own, "CREATE TABLE kept AS SELECT 7 AS n")
    await own.stop()
    await own.start(quiet)
    assert await ask(own, "SELECT n FROM kept") == 7


async def test_a_folder_with_other_things_is_refused_untouched(
    tmp_path: Path, binaries: Binaries
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_bytes(b"meow")
    if AS_ROOT:
        os.chown(folder, CLUSTER_UID, CLUSTER_UID)
    before = digest(folder)
    cluster = Cluster(folder, binaries)
    with pytest.raises(DatabaseError, match="not empty"):
        await cluster.init(quiet)
    with pytest.raises(DatabaseError, match="holds no PostgreSQL database"):
        await cluster.start(quiet)
    await cluster.stop()
    assert digest(folder) == before


async def test_a_missing_or_empty_folder_is_not_started_but_may_be_filled(
    tmp_path: Path, binaries: Binaries
) -> None:
    cluster = Cluster(tmp_path / "postgres", binaries)
    with pytest.raises(DatabaseError, match="does not exist"):
        await cluster.start(quiet)
    cluster.directory.mkdir()
    if AS_ROOT:
        os.chown(cluster.directory, CLUSTER_UID, CLUSTER_UID)
    with pytest.raises(DatabaseError, match="holds no PostgreSQL database"):
        await cluster.start(quiet)
    assert not any(cluster.directory.iterdir())
    await cluster.init(quiet)
    await cluster.start(quiet)
    await cluster.stop()


async def test_another_major_version_is_refused_untouched_with_both_versions(
    own: Cluster, binaries: Binaries
) -> None:
    (own.directory / "PG_VERSION").write_text("14\n")
    before = digest(own.directory)
    with pytest.raises(
        DatabaseError, match=rf"PostgreSQL 14.*{binaries.version}.*db upgrade --data-dir"
    ):
        await own.start(quiet)
    with pytest.raises(DatabaseError, match="not empty"):
        await own.init(quiet)
    assert digest(own.directory) == before


@needs_root
def test_a_folder_of_root_or_of_another_user_is_refused_with_its_owner(
    pristine: Path, open_folder: Path, binaries: Binaries
) -> None:
    theirs = copy(pristine, open_folder / "postgres")
    cluster = Cluster(theirs, binaries)

    async def start() -> str:
        await cluster.start(quiet)
        return "started"

    theirs.chmod(0o755)
    words = run_as_nobody(start)
    assert "DatabaseError" in words
    assert f"belongs to uid {CLUSTER_UID}, not to nobody" in words
    os.chown(theirs, 0, 0)
    with pytest.raises(DatabaseError, match="belongs to root"):
        asyncio.run(start())


@needs_root
def test_an_ordinary_user_makes_and_runs_a_cluster(open_folder: Path, binaries: Binaries) -> None:
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, pwd.getpwnam("nobody").pw_uid, -1)
    cluster = Cluster(home / "postgres", binaries)

    async def make_and_ask() -> str:
        await cluster.init(quiet)
        await cluster.start(quiet)
        answer = await ask(cluster, "SHOW data_directory")
        await cluster.stop()
        return str(answer)

    assert run_as_nobody(make_and_ask) == str(home / "postgres")
    assert cluster.directory.stat().st_uid == pwd.getpwnam("nobody").pw_uid


def run_as_nobody(work: Callable[[], Coroutine[None, None, str]]) -> str:
    """Run a coroutine in a process of the user nobody; returns its answer, or its error's text.

    A forked process, not a new one: nobody may be unable to reach this interpreter's files.
    """
    nobody = pwd.getpwnam("nobody")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            answer = asyncio.run(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as words:
        answer = words.read()
    os.waitpid(child, 0)
    return answer


async def test_a_second_appliance_on_the_folder_is_told_who_has_it(
    own: Cluster, binaries: Binaries
) -> None:
    await own.start(quiet)
    second = Cluster(own.directory, binaries)
    with pytest.raises(DatabaseError, match=f"in use by another appliance.*{os.getpid()}"):
        await second.start(quiet)
    assert await ask(own, "SELECT 1") == 1
    await own.stop()
    await second.start(quiet)
    await second.stop()


async def test_a_server_left_running_is_stopped_and_its_data_kept(
    own: Cluster, binaries: Binaries
) -> None:
    await own.start(quiet)
    await ask(own, "CREATE TABLE kept AS SELECT 7 AS n")
    await own.stop()
    left = spawn_for(own, binaries.program("postgres"), "-D", "/proc/self/cwd")
    while not (own.directory / ".s.PGSQL.5432").exists():
        await asyncio.sleep(0.02)
    said: list[str] = []
    await own.start(said.append)
    assert said == ["stopping what the last run of the database left behind"]
    assert left.wait(10) == 0
    assert await ask(own, "SELECT n FROM kept") == 7


async def test_kill_9_of_the_supervisor_leaves_no_server(own: Cluster) -> None:
    supervisor = spawn_supervisor(own.directory)
    assert supervisor.stdout is not None
    with supervisor.stdout:
        server = Path("/proc") / supervisor.stdout.readline().strip()
    assert server.exists()
    supervisor.kill()
    supervisor.wait()
    deadline = time.monotonic() + 20
    while server.exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not server.exists()
    await own.start(quiet)
    assert await ask(own, "SELECT 1") == 1


async def test_kill_9_of_the_server_with_busy_sessions_is_survived_by_a_start(own: Cluster) -> None:
    process = await own.start(quiet)
    await ask(own, "CREATE TABLE kept AS SELECT n FROM generate_series(1, 1000) AS n")
    busy = await asyncpg.connect(own.url())
    working = asyncio.create_task(
        busy.execute("SELECT sum(sqrt(n)) FROM generate_series(1, 100000000) AS n")
    )
    await asyncio.sleep(0.2)
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    said: list[str] = []
    await own.start(said.append)
    assert await ask(own, "SELECT count(*) FROM kept") == 1000
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await working
    busy.terminate()


@pytest.mark.parametrize("name", ["background writer", "checkpointer", "idle"])
async def test_a_server_that_lost_one_of_its_processes_ends_and_is_not_left_recovering(
    own: Cluster, name: str
) -> None:
    # Recovering in place, PostgreSQL 18.6 never answers again once its startup process is gone too.
    process = await own.start(quiet)
    await ask(own, "CREATE TABLE kept AS SELECT 7 AS n")
    session = await asyncpg.connect(own.url())
    (victim,) = (
        child
        for child in psutil.Process(process.pid).children()
        if name in " ".join(child.cmdline())
    )
    victim.kill()
    async with asyncio.timeout(30):
        await process.wait()
    session.terminate()
    await own.start(quiet)
    assert await ask(own, "SELECT n FROM kept") == 7


async def test_a_lock_file_whose_number_went_to_another_program_is_no_obstacle(
    own: Cluster,
) -> None:
    process = await own.start(quiet)
    process.kill()
    await process.wait()
    stranger = spawn_for(own, "sleep", "60")
    try:
        lock_file = own.directory / "postmaster.pid"
        lines = lock_file.read_text().splitlines()
        lock_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        await own.start(quiet)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("name", ["postmaster.pid", f".s.PGSQL.{PORT}.lock"])
async def test_an_empty_lock_file_of_a_start_that_was_killed_is_no_obstacle(
    own: Cluster, name: str
) -> None:
    account = account_of_cluster(own.directory)
    lock_file = own.directory / name
    lock_file.touch(mode=0o600)
    os.chown(lock_file, account.uid, account.gid)
    await own.start(quiet)
    assert await ask(own, "SELECT 1") == 1


async def test_a_server_that_cannot_start_says_why(own: Cluster) -> None:
    (own.directory / "global" / "pg_control").write_bytes(b"")
    with pytest.raises(DatabaseError, match="PostgreSQL did not start") as refused:
        await own.start(quiet)
    assert "FATAL" in refused.value.message or "PANIC" in refused.value.message
    assert str(own.directory / "log") in refused.value.message


async def test_a_folder_with_a_path_too_long_for_a_socket_is_reached_through_a_link(
    tmp_path: Path, pristine: Path, binaries: Binaries
) -> None:
    deep = tmp_path / ("d" * SOCKET_PATH_BYTES_MAX) / "with space & ünïcode?#"
    deep.mkdir(parents=True)
    cluster = Cluster(copy(pristine, deep / "postgres"), binaries)
    await cluster.start(quiet)
    url = cluster.url()
    assert cluster.url() == url
    assert await ask(cluster, "SELECT 1") == 1
    await cluster.stop()
    with pytest.raises(OSError, match="No such file"):
        await asyncpg.connect(url)


async def test_an_init_that_was_killed_leaves_nothing_that_looks_like_a_cluster(
    tmp_path: Path, binaries: Binaries
) -> None:
    cluster = Cluster(tmp_path / "postgres", binaries)
    for pause_s in (0.0, 0.1, 0.5):
        task = asyncio.create_task(cluster.init(quiet))
        await asyncio.sleep(pause_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not cluster.exists
        assert names(tmp_path) <= {"postgres.lock"}
    (tmp_path / "postgres.init-killed" / "base").mkdir(parents=True)
    await cluster.init(quiet)
    assert names(tmp_path) == {"postgres", "postgres.lock"}
    await cluster.stop()


async def test_a_link_planted_in_the_folder_is_replaced_and_not_followed(
    own: Cluster, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (own.directory / SETTINGS_FILE).unlink()
    (own.directory / SETTINGS_FILE).symlink_to(victim)
    await own.start(quiet)
    assert victim.read_text() == "precious"
    assert not (own.directory / SETTINGS_FILE).is_symlink()


async def test_no_text_of_a_statement_or_a_row_reaches_the_log(own: Cluster) -> None:
    await own.start(quiet)
    connection = await asyncpg.connect(own.url())
    await connection.execute("CREATE TABLE t (k text PRIMARY KEY, n int CHECK (n > 0))")
    await connection.execute("INSERT INTO t VALUES ($1, 1)", "MARKER-KEY")
    for statement, arguments in (
        ("INSERT INTO t VALUES ($1, 1)", ("MARKER-KEY",)),
        ("INSERT INTO t VALUES ($1, -1)", ("MARKER-ROW",)),
        ("SELECT 'MARKER-STATEMENT' FROM nowhere", ()),
        ("SELECT set_config('statement_timeout', '50', false)", ()),
        ("SELECT pg_sleep(5), $1::text", ("MARKER-SLOW",)),
    ):
        try:
            await connection.execute(statement, *arguments)
        except asyncpg.PostgresError:
            continue
    await connection.close()
    await own.stop()
    logged = b"".join(path.read_bytes() for path in (own.directory / "log").iterdir())
    assert b"duplicate key" in logged
    assert b"MARKER" not in logged


@needs_root
def test_programs_out_of_reach_are_copied_once_for_the_user_that_runs_them(
    tmp_path: Path, open_folder: Path, binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for part in COPIED:
        shutil.copytree(binaries.site / part, closed / part, symlinks=True)
    (closed / COPIED[0] / "postgres").chmod(0o700)
    hidden = Binaries(site=closed, version=binaries.version)
    planted, good = open_folder / "planted", open_folder / "good"
    for parent in (planted, good):
        parent.mkdir()
    monkeypatch.setattr(binaries_module, "COPY_PARENTS", (open_folder / "missing", planted, good))
    nobody = pwd.getpwnam("nobody")
    account = account_of_cluster(chowned(tmp_path / "data", nobody.pw_uid))
    first = reachable_binaries(hidden, account)
    assert first.site.parent == planted
    # Someone else's folder under the name of a copy is not trusted.
    os.chown(first.site, nobody.pw_uid, nobody.pw_gid)
    second = reachable_binaries(hidden, account)
    assert second.site.parent == good
    assert reachable_binaries(hidden, account) == second
    assert [p.name for p in good.iterdir()] == [second.site.name]
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    monkeypatch.setattr(binaries_module, "COPY_PARENTS", ())
    with pytest.raises(DatabaseError, match="can reach"):
        reachable_binaries(hidden, account)


def chowned(folder: Path, uid: int) -> Path:
    folder.mkdir()
    os.chown(folder, uid, uid)
    return folder


@needs_root
async def test_a_cluster_runs_from_copied_programs(
    own: Cluster,
    tmp_path: Path,
    open_folder: Path,
    binaries: Binaries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for part in COPIED:
        shutil.copytree(binaries.site / part, closed / part, symlinks=True)
    monkeypatch.setattr(binaries_module, "COPY_PARENTS", (open_folder,))
    cluster = Cluster(tmp_path / "new", Binaries(site=closed, version=binaries.version))
    await cluster.init(quiet)
    await cluster.start(quiet)
    assert await ask(cluster, "SELECT 1") == 1
    await cluster.stop()

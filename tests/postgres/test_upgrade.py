"""A data folder of an older PostgreSQL: refused untouched, upgraded by a copy, and put back."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from appliance.dbops.cluster.account import CLUSTER_UID
from appliance.dbops.cluster.binaries import Binaries, find_major
from appliance.dbops.cluster.cluster import Cluster, major_of
from appliance.dbops.cluster.extensions import EXTENSIONS
from appliance.dbops.copies.kept import kept_folders, swap_in
from appliance.dbops.copies.load_dump import load_dump
from appliance.dbops.copies.upgrade import roll_back, upgrade
from appliance.errors import DatabaseError
from tests.drill_fixtures import REQUIRED
from tests.postgres.folders import ask, copy, digest, run_all
from tests.postgres_fixtures import quiet

OLD_MAJOR = "15"
OLD = find_major(OLD_MAJOR)
needs_old = pytest.mark.skipif(
    OLD is None and REQUIRED not in os.environ, reason="PostgreSQL 15 is not installed"
)

ROWS = """
CREATE TABLE chats AS
SELECT n, repeat(md5(n::text), 20) || ' żółć 天気' AS text FROM generate_series(1, 3000) AS n
"""
FINGERPRINT = "SELECT md5(string_agg(n || text, ',' ORDER BY n)) FROM chats"


def rows_md5() -> str:
    """What FINGERPRINT is to answer."""
    md5 = hashlib.md5
    rows = (f"{n}{md5(str(n).encode()).hexdigest() * 20} żółć 天気" for n in range(1, 3001))
    return md5(",".join(rows).encode()).hexdigest()


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped cluster of PostgreSQL 15 with data in two databases, to be copied."""
    assert OLD is not None
    cluster = Cluster(tmp_path_factory.mktemp("old") / "postgres", OLD)

    async def make() -> None:
        await cluster.init(quiet)
        await cluster.start(quiet)
        await run_all(cluster.directory, "CREATE DATABASE app", "CREATE ROLE reader")
        await run_all(cluster.directory, ROWS, "ANALYZE", database="app")
        await cluster.stop()

    asyncio.run(make())
    return cluster.directory


@needs_old
async def test_an_upgrade_keeps_every_row_and_the_old_folder_as_it_was(
    old_cluster: Path, tmp_path: Path, binaries: Binaries
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    folder = copy(old_cluster, closed / "postgres")
    cluster = Cluster(folder, binaries)
    before = contents(folder)
    with pytest.raises(DatabaseError, match=rf"PostgreSQL 15.*upgrade --data-dir {folder}"):
        await cluster.start(quiet)
    said: list[str] = []
    swapped = await upgrade(folder, binaries, None, said.append)
    assert (swapped.major, swapped.kept_major) == (binaries.major, OLD_MAJOR)
    assert contents(swapped.kept) == before
    assert said[0] == "copying the data folder"
    await cluster.start(quiet)
    assert await ask(folder, FINGERPRINT, "app") == rows_md5()
    assert await ask(folder, "SHOW data_checksums") == "on"
    assert await ask(folder, "SELECT count(*) FROM pg_roles WHERE rolname = 'reader'") == 1
    extensions = (
        f"SELECT count(*) FROM pg_extension WHERE extname = ANY ('{{{','.join(EXTENSIONS)}}}')"
    )
    assert await ask(folder, extensions) == len(EXTENSIONS)
    assert await ask(folder, "SELECT relpages > 0 FROM pg_class WHERE relname = 'chats'", "app")
    await run_all(folder, "INSERT INTO chats VALUES (0, 'after')", database="app")
    await cluster.stop()
    assert folder.stat().st_uid == (CLUSTER_UID if os.geteuid() == 0 else os.geteuid())
    with pytest.raises(DatabaseError, match="nothing to upgrade"):
        await upgrade(folder, binaries, None, quiet)
    back = roll_back(folder)
    assert major_of(folder) == OLD_MAJOR
    assert contents(folder) == before
    assert OLD is not None
    old = Cluster(folder, OLD)
    await old.start(quiet)
    assert await ask(folder, "SELECT count(*) FROM chats", "app") == 3000
    await old.stop()
    # And forward again, to what was written meanwhile.
    roll_back(folder)
    await cluster.start(quiet)
    assert await ask(folder, "SELECT count(*) FROM chats", "app") == 3001
    await cluster.stop()
    assert back.kept.name.startswith("postgres.kept-18-")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@needs_old
async def test_an_upgrade_that_is_killed_leaves_the_folder_as_it_was(
    old_cluster: Path, tmp_path: Path, binaries: Binaries
) -> None:
    folder = copy(old_cluster, tmp_path / "postgres")
    before = digest(folder)
    for words in ("copying the data folder", "moving the data over"):
        reached = asyncio.Event()

        def told(said: str, words: str = words, reached: asyncio.Event = reached) -> None:
            if said == words:
                reached.set()

        task = asyncio.create_task(upgrade(folder, binaries, None, told))
        await reached.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert digest(folder) == before
        assert set(os.listdir(tmp_path)) == {"postgres", "postgres.lock"}


@needs_old
async def test_what_cannot_be_upgraded_is_refused_with_what_to_do(
    old_cluster: Path, tmp_path: Path, binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(old_cluster, tmp_path / "postgres")
    before = digest(folder)
    with pytest.raises(DatabaseError, match="holds no postgres of PostgreSQL 15"):
        await upgrade(folder, binaries, tmp_path, quiet)
    monkeypatch.setattr("appliance.dbops.cluster.binaries.SYSTEM_FOLDERS", ())
    with pytest.raises(DatabaseError, match=r"apt install postgresql-15.*--old-bin.*--from-url"):
        await upgrade(folder, binaries, None, quiet)
    monkeypatch.undo()
    held = Cluster(folder, binaries, purpose="appliance db start")
    held._lock.acquire()
    with pytest.raises(DatabaseError, match=rf"in use by appliance db start .*{os.getpid()}"):
        await upgrade(folder, binaries, None, quiet)
    held._lock.release()
    status = (folder / "pg_tblspc").stat()
    times = (status.st_atime_ns, status.st_mtime_ns)
    (folder / "pg_tblspc" / "16400").symlink_to(tmp_path)
    with pytest.raises(DatabaseError, match="tablespaces"):
        await upgrade(folder, binaries, None, quiet)
    (folder / "pg_tblspc" / "16400").unlink()
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=1 << 20))
    with pytest.raises(DatabaseError, match=r"needs \d+ MiB .* free are 1 MiB"):
        await upgrade(folder, binaries, None, quiet)
    with pytest.raises(DatabaseError, match="no such folder is kept"):
        roll_back(folder)
    os.utime(folder / "pg_tblspc", ns=times)
    assert digest(folder) == before


@needs_old
async def test_a_running_server_of_another_version_is_copied_into_a_new_folder(
    old_cluster: Path, tmp_path: Path, binaries: Binaries
) -> None:
    assert OLD is not None
    old = Cluster(copy(old_cluster, tmp_path / "old"), OLD)
    await old.start(quiet)
    folder = tmp_path / "new" / "postgres"
    folder.parent.mkdir()
    await load_dump(folder, binaries, old.url(), quiet)
    with pytest.raises(DatabaseError, match="exists"):
        await load_dump(folder, binaries, old.url(), quiet)
    await old.stop()
    with pytest.raises(DatabaseError, match="could not be read"):
        await load_dump(tmp_path / "none", binaries, old.url(), quiet)
    assert not (tmp_path / "none").exists()
    new = Cluster(folder, binaries)
    await new.start(quiet)
    assert await ask(folder, FINGERPRINT, "app") == rows_md5()
    assert await ask(folder, "SELECT count(*) FROM pg_roles WHERE rolname = 'reader'") == 1
    await new.stop()


def test_folders_change_places_at_once_and_the_latest_kept_one_is_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "postgres"
    for number, path in enumerate([folder, tmp_path / "a", tmp_path / "b"]):
        path.mkdir()
        (path / "PG_VERSION").write_text(f"{15 + number}\n")
    first = swap_in(folder, tmp_path / "a")
    second = swap_in(folder, tmp_path / "b")
    assert (first.kept_major, second.kept_major, major_of(folder)) == ("15", "16", "17")
    assert [major_of(path) for path in kept_folders(folder)] == ["15", "16"]
    assert kept_folders(folder)[-1] == second.kept

"""`appliance db init`, `start` and `stop` as a person types them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.cli.processes import _find_or_create
from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.cluster import Cluster, cluster_lock
from appliance.dbops.cluster.leftover import recorded_pid
from appliance.dbops.settings import PORT
from appliance.errors import DatabaseError
from tests.postgres.folders import ask, copy, digest, run_all
from tests.postgres_fixtures import quiet

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data_dir(tmp_path: Path, pristine: Path) -> Iterator[Path]:
    """A data folder with a new database, which is stopped at the end whatever happens."""
    copy(pristine, tmp_path / "postgres")
    yield tmp_path
    main(["db", "stop", "--data-dir", str(tmp_path)])


def db(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "appliance.cli.main", "db", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_database_is_made_started_in_the_background_and_stopped(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = data_dir / "postgres"
    started = db("start", "--data-dir", data_dir)
    assert started.returncode == 0, started.stderr
    assert f"host={str(folder).replace('/', '%2F')}&port={PORT}" in started.stdout
    asyncio.run(run_all(folder, "CREATE TABLE kept AS SELECT 7 AS n"))
    holder = cluster_lock(folder).holder()
    assert holder is not None
    assert str(holder.pid) in started.stdout
    for refused in (db("start", "--data-dir", data_dir), db("upgrade", "--data-dir", data_dir)):
        assert refused.returncode == 2
        assert refused.stderr.startswith("appliance: ")
    again = db("start", "--data-dir", folder)
    assert f"in use by appliance db start (process {holder.pid})" in again.stderr
    stopped = db("stop", "--data-dir", data_dir)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert recorded_pid(folder) is None
    assert cluster_lock(folder).holder() is None
    assert main(["db", "stop", "--data-dir", str(data_dir)]) == 2
    assert f"no database runs on {folder}" in capsys.readouterr().err
    assert main(["db", "init", "--data-dir", str(data_dir)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_in_the_foreground_a_server_that_dies_is_started_again_and_a_signal_ends_it(
    data_dir: Path,
) -> None:
    folder = data_dir / "postgres"
    keeper = subprocess.Popen(
        [
            *(sys.executable, "-m", "appliance.cli.main", "db", "start", "--foreground"),
            *("--data-dir", str(data_dir)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert keeper.stdout is not None
    with keeper.stdout:
        assert "reach it with postgresql://" in keeper.stdout.readline()
        first = recorded_pid(folder)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        while "the database runs" not in keeper.stdout.readline():
            continue
        assert recorded_pid(folder) != first
        assert asyncio.run(ask(folder, "SELECT 1")) == 1
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0
    assert recorded_pid(folder) is None


def test_a_database_under_an_appliance_is_not_stopped(
    data_dir: Path,
    binaries: Binaries,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(data_dir / "postgres", binaries)
    signalled: list[tuple[int, int]] = []

    async def refuse() -> None:
        await cluster.start(quiet)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(os, "kill", lambda *call: signalled.append(call))
                patched.setattr("appliance.cli.db_stop.WAIT_S", 0.2)
                code = await asyncio.to_thread(main, ["db", "stop", "--data-dir", str(data_dir)])
            assert (code, signalled) == (2, [])
            assert await ask(cluster.directory, "SELECT 1") == 1
        finally:
            await cluster.stop()

    asyncio.run(refuse())
    assert f"in use by another appliance (process {os.getpid()}): stop that" in (
        capsys.readouterr().err
    )


def test_a_server_without_a_keeper_is_stopped(data_dir: Path, binaries: Binaries) -> None:
    folder = data_dir / "postgres"
    status = folder.stat()
    orphan = subprocess.Popen(
        [binaries.program("postgres"), "-D", "/proc/self/cwd"],
        cwd=folder,
        user=status.st_uid,
        group=status.st_gid,
        extra_groups=[],
        stderr=subprocess.DEVNULL,
    )
    while not (folder / f".s.PGSQL.{PORT}").exists():
        time.sleep(0.02)
    assert main(["db", "stop", "--data-dir", str(data_dir)]) == 0
    assert orphan.wait(30) == 0


def test_a_folder_of_another_version_is_refused_untouched_with_the_command_to_use(
    tmp_path: Path, binaries: Binaries, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "postgres"
    for major, told in (
        ("14", "To upgrade it: appliance db upgrade --data-dir"),
        ("99", "appliance db upgrade --rollback --data-dir"),
    ):
        folder.mkdir(exist_ok=True)
        (folder / "PG_VERSION").write_text(f"{major}\n")
        if os.geteuid() == 0:
            os.chown(folder, 61170, 61170)
        before = digest(tmp_path)
        assert main(["db", "start", "--data-dir", str(tmp_path)]) == 2
        words = capsys.readouterr().err
        assert f"written by PostgreSQL {major}, this is PostgreSQL {binaries.version}" in words
        assert f"{told} {folder}" in words
        with pytest.raises(DatabaseError, match=f"by PostgreSQL {major}"):
            asyncio.run(_find_or_create(Cluster(folder, binaries)))
        assert digest(tmp_path) == before


def test_an_empty_folder_is_not_taken_for_a_first_start(tmp_path: Path, binaries: Binaries) -> None:
    folder = tmp_path / "postgres"
    folder.mkdir()
    cluster = Cluster(folder, binaries)
    with pytest.raises(DatabaseError, match=f"mount it.*appliance db init --data-dir {tmp_path}"):
        asyncio.run(_find_or_create(cluster))
    assert list(tmp_path.rglob("*")) == [folder]
    assert main(["db", "init", "--data-dir", str(tmp_path)]) == 0
    asyncio.run(_find_or_create(cluster))


def test_a_start_where_there_is_nothing_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("start", "stop"):
        assert main(["db", command, "--data-dir", str(tmp_path / "none")]) == 2
        assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    other = tmp_path / "box.toml"
    other.write_text(
        '[model]\npath = "m"\nname = "m"\n[paths]\ndata_dir = "d"\nrun_dir = "r"\n'
        '[database]\nurl = "postgresql://db.example/app"\n'
    )
    assert main(["db", "stop", "--config", str(other)]) == 2
    assert "has a keeper of its own" in capsys.readouterr().err

"""Data folders for tests: copies of a pristine one, and what tells whether one was touched."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from appliance.dbops.target import Target


def copy(source: Path, target: Path) -> Path:
    """A copy with owners, modes and times."""
    subprocess.run(["cp", "-a", source, target], check=True)
    return target


def digest(folder: Path) -> str:
    """The names, modes, owners, times and contents of all below a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        total.update(f"{path} {status.st_mode} {status.st_uid} {status.st_mtime_ns}\n".encode())
        if path.is_file():
            total.update(path.read_bytes())
    return total.hexdigest()


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's are not."""
    folder = Path(tempfile.mkdtemp(prefix="appliance-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


async def ask(
    directory: Path, query: str, database: str | None = None, *, column: int = 0
) -> object:
    """One value of the first row that a running cluster answers with."""
    connection = await _session(directory, database)
    try:
        return await connection.fetchval(query, column=column)
    finally:
        await connection.close()


async def run_all(directory: Path, *statements: str, database: str | None = None) -> None:
    """Run statements one by one."""
    connection = await _session(directory, database)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _session(directory: Path, database: str | None) -> asyncpg.Connection[asyncpg.Record]:
    """One in which a table needs no schema's name."""
    connection = await Target(directory=directory).connect(database)
    await connection.execute("SET search_path = public")
    return connection

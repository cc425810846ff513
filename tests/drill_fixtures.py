"""Throw-away clusters of both PostgreSQL versions that a machine has, made once and copied for a test."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from appliance.dbops.cluster.binaries import Binaries, binaries_in, find_binaries
from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.throwaway import ThrowAway

SYSTEM_15 = Path("/usr/lib/postgresql/15/bin")
REQUIRED = "APPLIANCE_TESTS_REQUIRE_POSTGRESQL_15"
"""Set where a missing PostgreSQL 15 is a failure and not a skip: in CI."""

EMBEDDED, SYSTEM = "18", "15"
BOTH = (EMBEDDED, SYSTEM)

NewDrill = Callable[[str], Awaitable[Drill]]


def binaries_of(version: str) -> Binaries:
    """The programs of one of the two versions; the test is skipped where there are none."""
    if version == EMBEDDED:
        return find_binaries()
    if not (SYSTEM_15 / "postgres").exists():
        reason = f"no PostgreSQL 15 in {SYSTEM_15} (Debian's package postgresql-15)"
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(reason)
    return binaries_in(SYSTEM_15)


@pytest.fixture(scope="session")
def drill_folder() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's are not and PostgreSQL 15 needs as root."""
    folder = Path(tempfile.mkdtemp(prefix="appliance-drills-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def pristine_clusters(drill_folder: Path) -> Callable[[str], ThrowAway]:
    """A cluster of a version that is created once and never started, to be copied."""

    def get(version: str) -> ThrowAway:
        return ThrowAway(drill_folder / f"pristine{version}", binaries_of(version))

    return get


async def drill_on(template: ThrowAway, directory: Path) -> Drill:
    """A drill on a copy of a pristine cluster, not started; the first of a version makes that cluster."""
    if not template.directory.exists():
        await template.create()
    return Drill(await template.copy_to(directory))


@pytest.fixture
async def new_drill(
    drill_folder: Path, pristine_clusters: Callable[[str], ThrowAway]
) -> AsyncIterator[NewDrill]:
    """A drill on a new cluster of a version; it and its actors end with the test."""
    made: list[Drill] = []

    async def make(version: str) -> Drill:
        template = pristine_clusters(version)
        made.append(await drill_on(template, drill_folder / f"drill-{uuid.uuid4().hex}"))
        return made[-1]

    yield make
    for drill in made:
        await drill.close()

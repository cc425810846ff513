"""Which component of a path stops a user, and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.errors import ConfigError
from appliance.file_access import (
    ENTER,
    READ,
    WRITE,
    Stopped,
    Who,
    advice,
    check_access,
    myself,
    stopped_at,
)

STRANGER = Who(name="stranger", uid=61000, gids=frozenset({61000}))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """`open/closed/file`, reachable for everybody but for the mode of `closed`."""
    for folder in tmp_path.parents:
        if not folder.stat().st_mode & 0o001:
            pytest.skip(f"{folder} is closed to others here")
    tmp_path.chmod(0o755)
    closed = tmp_path / "open" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").write_text("x")
    return tmp_path / "open"


@pytest.fixture(autouse=True)
def reachable(tmp_path: Path) -> None:
    """pytest's own folders are closed to others."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)


def test_the_first_component_that_stops_a_user_is_named(tree: Path) -> None:
    path = tree / "closed" / "file"
    assert stopped_at(path, STRANGER, READ) is None
    (tree / "closed").chmod(0o700)
    stopped = stopped_at(path, STRANGER, READ)
    assert stopped == Stopped(component=tree / "closed", wanted="x", cause="Permission denied")
    (tree / "closed").chmod(0o755)
    path.chmod(0o600)
    stopped = stopped_at(path, STRANGER, READ)
    assert stopped == Stopped(component=path, wanted="r", cause="Permission denied")


def test_a_group_and_an_owner_decide_before_everybody_else(tree: Path) -> None:
    path = tree / "closed" / "file"
    path.chmod(0o604)
    group = Who(name="member", uid=61000, gids=frozenset({path.stat().st_gid}))
    assert stopped_at(path, STRANGER, READ) is None
    assert stopped_at(path, group, READ) is not None
    path.chmod(0o640)
    assert stopped_at(path, group, READ) is None
    assert stopped_at(path, group, READ | WRITE) is not None


def test_a_link_into_a_closed_folder_is_stopped_where_it_leads(tree: Path) -> None:
    (tree / "closed").chmod(0o700)
    (tree / "link").symlink_to(tree / "closed" / "file")
    stopped = stopped_at(tree / "link", STRANGER, READ)
    assert stopped is not None


def test_a_missing_folder_is_told_with_the_setting_and_what_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / "appliance"
    with pytest.raises(
        ConfigError, match=r"paths\.run_dir: .*No such file.*systemd-tmpfiles"
    ) as told:
        check_access("paths.run_dir", path, WRITE | ENTER)
    assert str(tmp_path / "run") in told.value.message
    assert f"uid {os.geteuid()}" in told.value.message


def test_advice_tells_a_home_from_a_mode() -> None:
    hidden = Stopped(component=Path("/home/ann"), wanted="x", cause="Permission denied")
    closed = Stopped(component=Path("/homework"), wanted="x", cause="Permission denied")
    assert "ProtectHome" in advice(hidden)
    assert "chmod o+x /homework" in advice(closed)


def test_this_process_may_use_its_own_folder(tmp_path: Path) -> None:
    assert stopped_at(tmp_path, myself(), READ | WRITE | ENTER) is None

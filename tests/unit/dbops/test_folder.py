"""Files and locks at the edge of a cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.dbops.folder import ANOTHER_APPLIANCE, FolderLock, append_text, give_to
from appliance.errors import DatabaseError


def test_links_are_refused_and_never_followed(tmp_path: Path) -> None:
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    (folder / "b.conf").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        append_text(folder, "b.conf", "more")
    give_to(folder, uid=os.geteuid(), gid=os.getegid())
    assert victim.read_text() == "precious"


def test_text_is_added_to_a_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    append_text(tmp_path, "a", "two\n")
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    with pytest.raises(FileNotFoundError):
        append_text(tmp_path, "missing", "x")


def test_a_lock_that_is_taken_is_told_with_the_folder_and_its_holder(tmp_path: Path) -> None:
    first, second = (
        FolderLock(tmp_path / "pg.lock", tmp_path / "pg", purpose="appliance db upgrade"),
        FolderLock(tmp_path / "pg.lock", tmp_path / "pg"),
    )
    first.acquire()
    with pytest.raises(
        DatabaseError, match=rf"pg is in use by appliance db upgrade .*{os.getpid()}"
    ):
        second.acquire()
    first.release()
    second.acquire()
    holder = first.holder()
    assert holder is not None
    assert holder.purpose == ANOTHER_APPLIANCE
    second.release()

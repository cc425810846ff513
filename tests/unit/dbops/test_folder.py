"""Files and locks at the edge of a cluster."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.dbops.folder import FolderLock, Holder, append_text, give_to, replace_file
from appliance.errors import DatabaseError


def mine() -> dict[str, int]:
    return {"uid": os.geteuid(), "gid": os.getegid()}


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    target = tmp_path / "a.conf"
    target.write_text("a longer text that was there before")
    (tmp_path / ".a.conf.new").write_text("left by a run that was killed")
    replace_file(tmp_path, "a.conf", "new", **mine())
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["a.conf"]


def test_links_are_replaced_or_refused_and_never_followed(tmp_path: Path) -> None:
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    for name in ("a.conf", ".a.conf.new", "b.conf"):
        (folder / name).symlink_to(victim)
    replace_file(folder, "a.conf", "new", **mine())
    with pytest.raises(OSError, match="symbolic links"):
        append_text(folder, "b.conf", "more")
    give_to(folder, **mine())
    assert victim.read_text() == "precious"
    assert (folder / "a.conf").read_text() == "new"


def test_text_is_added_to_a_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    append_text(tmp_path, "a", "two\n")
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    with pytest.raises(FileNotFoundError):
        append_text(tmp_path, "missing", "x")


def test_a_lock_is_held_by_one_and_names_its_holder(tmp_path: Path) -> None:
    first, second = (
        FolderLock(tmp_path / "pg.lock", tmp_path / "pg", purpose="appliance db upgrade"),
        FolderLock(tmp_path / "pg.lock", tmp_path / "pg"),
    )
    assert second.holder() is None
    first.acquire()
    first.acquire()
    assert second.holder() == Holder(pid=os.getpid(), purpose="appliance db upgrade")
    with pytest.raises(
        DatabaseError, match=rf"pg is in use by appliance db upgrade .*{os.getpid()}"
    ):
        second.acquire()
    first.release()
    first.release()
    assert second.holder() is None
    second.acquire()
    second.release()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal\nfrom pathlib import Path\n"
        "from appliance.dbops.folder import FolderLock\n"
        "FolderLock(Path(sys.argv[1]), Path()).acquire()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", script, tmp_path / "pg.lock"], env=environment)
    assert (tmp_path / "pg.lock").read_text().splitlines()[0].isdecimal()
    lock = FolderLock(tmp_path / "pg.lock", tmp_path / "pg")
    lock.acquire()
    lock.release()

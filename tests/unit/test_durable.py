"""Files replaced whole: by two at once, over links, after a killed writer, in another user's folder."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from appliance.durable import LEFTOVER_S, replace_file

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="another user's folder needs root to make"
)


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    target = tmp_path / "a.conf"
    target.write_text("a longer text that was there before")
    target.chmod(0o666)
    replace_file(target, b"new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["a.conf"]


def test_a_mode_is_given_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "a.prom", b"new", mode=0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.prom").stat().st_mode) == 0o644


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    (folder / "a").symlink_to(victim)
    replace_file(folder / "a", b"new")
    assert victim.read_text() == "precious"
    assert not (folder / "a").is_symlink()
    assert (folder / "a").read_text() == "new"


def test_what_a_killed_writer_left_goes_and_what_another_writes_stays(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = ("old", "young", "link")
    old, young, link = (tmp_path / f".a.{name}.new" for name in names)
    for path in (old, young, tmp_path / ".b.other.new"):
        path.write_text("half")
    link.symlink_to(victim)
    long_ago = time.time() - LEFTOVER_S - 60
    for path in (old, tmp_path / ".b.other.new", victim):
        os.utime(path, (long_ago, long_ago))
    replace_file(tmp_path / "a", b"new")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a", ".a.young.new", ".a.link.new", ".b.other.new", "victim"}


def test_a_write_that_fails_leaves_the_old_content_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("old")

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    for call in ("write", "fsync", "rename"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            with pytest.raises(OSError, match="No space"):
                replace_file(tmp_path / "a", b"new")
        assert (tmp_path / "a").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_two_that_replace_one_file_at_once_leave_one_of_the_two_contents(tmp_path: Path) -> None:
    contents = [bytes([letter]) * 100_000 for letter in b"ab"]
    faults: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(30):
                replace_file(tmp_path / "f", content)
                assert (tmp_path / "f").read_bytes() in contents
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@needs_root
def test_what_root_writes_into_another_users_folder_is_that_users(tmp_path: Path) -> None:
    os.chown(tmp_path, 61000, 61001)
    replace_file(tmp_path / "theirs", b"x")
    replace_file(tmp_path / "chosen", b"x", owner=(61002, 61003))
    owners = [
        (status.st_uid, status.st_gid)
        for name in ("theirs", "chosen")
        if (status := (tmp_path / name).stat())
    ]
    assert owners == [(61000, 61001), (61002, 61003)]

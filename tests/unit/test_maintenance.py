"""Maintenance mode: held by a living process, seen by others, gone with its holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.errors import DatabaseError, LockUnusable
from appliance.maintenance import FILE_NAME, PURPOSE, is_on, maintenance

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom appliance.maintenance import maintenance\n"
    "with maintenance(Path(sys.argv[1])):\n    print('on', flush=True)\n    time.sleep(60)\n"
)


def test_it_is_on_in_the_block_and_off_before_and_after(tmp_path: Path) -> None:
    assert not is_on(tmp_path)
    with maintenance(tmp_path):
        assert is_on(tmp_path)
        assert (tmp_path / FILE_NAME).read_text() == f"{os.getpid()}\n{PURPOSE}\n"
    assert not is_on(tmp_path)
    with maintenance(tmp_path):
        assert is_on(tmp_path)


def test_a_second_holder_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with maintenance(tmp_path):
        with (
            pytest.raises(DatabaseError, match=rf"{PURPOSE} \(process {os.getpid()}\) repairs"),
            maintenance(tmp_path),
        ):
            pass
        assert is_on(tmp_path)


def test_kill_9_of_the_holder_ends_it(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder.stdout as words:
        assert words.readline() == "on\n"
        assert is_on(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not is_on(tmp_path)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / FILE_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LockUnusable, match="is a link"), maintenance(tmp_path):
        pass
    assert (tmp_path / "elsewhere").read_text() == "kept"

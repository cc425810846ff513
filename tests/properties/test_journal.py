"""The journal's file under random operations, restarts and torn tails, against a plain list."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from appliance.store import journal_file
from appliance.store.journal_file import FILE_NAME, JournalFile
from tests.reference.journal import SlowJournal

OPERATIONS = int(os.environ.get("JOURNAL_OPERATIONS", "150"))


def held(file: JournalFile) -> list[tuple[int, bytes]]:
    return [(one.number, one.payload) for one in file.frames]


def tear(path: Path, end: int, random_: random.Random) -> None:
    """What a crash leaves behind the last frame: nothing, zeros, or some of what was being written."""
    with path.open("r+b") as file:
        file.truncate(end)
        file.seek(end)
        file.write(random_.choice((b"", b"\0" * 100, random_.randbytes(random_.randint(1, 90)))))
        file.write(random_.choice((b"", b"\0" * 4096)))


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_agree_with_a_plain_list(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "RESERVE_BYTES", 1 << 16)
    random_ = random.Random(seed)
    reference = SlowJournal()
    file = JournalFile(tmp_path, bytes_max=1 << 30)
    try:
        for _ in range(OPERATIONS):
            deed = random_.random()
            if deed < 0.6:
                payloads = [
                    random_.randbytes(random_.choice((0, 1, 40, 3000)))
                    for _ in range(random_.randint(1, 4))
                ]
                file.append(payloads)
                reference.append(payloads)
            elif deed < 0.8 and reference.entries:
                count = random_.randint(1, len(reference.entries))
                numbers = [number for number, _ in random_.sample(reference.entries, count)]
                kept = [one for one in reference.entries if one[0] not in numbers]
                if kept:
                    file.rewrite(kept)
                else:
                    file.empty()
                reference.done(numbers)
            elif deed < 0.9:
                end = file.used_bytes
                file.close()
                tear(tmp_path / FILE_NAME, end, random_)
                file = JournalFile(tmp_path, bytes_max=1 << 30)
                assert held(file) == reference.entries
                reference.restarted()
        end = file.used_bytes
    finally:
        file.close()
    file = JournalFile(tmp_path, bytes_max=1 << 30)
    assert held(file) == reference.entries
    assert file.used_bytes == end
    file.close()

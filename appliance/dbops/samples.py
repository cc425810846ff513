"""The samples of a cluster's counters that `appliance db status` leaves in the state folder.

Owns the file `db-samples.json`. Never: fails a command because of it; what is wrong with it is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from appliance.dbops.folder import replace_file
from appliance.dbops.rates import DAY_S, Sample

FILE_NAME = "db-samples.json"
SPACING_S = 60.0
"""A sample nearer to the newest one is not kept."""

KEPT_MAX = 300
KEPT_S = 2 * DAY_S


def read_samples(folder: Path) -> tuple[Sample, ...]:
    """The samples in a folder, oldest first; none where there is no file. Raises OSError, ValueError."""
    try:
        text = (folder / FILE_NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    try:
        return tuple(Sample(**item) for item in json.loads(text))
    except TypeError as error:
        raise ValueError(f"{folder / FILE_NAME} is of another form") from error


def with_sample(samples: Sequence[Sample], now: Sample) -> tuple[Sample, ...]:
    """The samples to keep when `now` has been taken: of one cluster, of two days, not too many.

    Between the day's oldest and the newest, every second one goes when there are too many.
    """
    kept = [
        item
        for item in samples
        if item.system_id == now.system_id and now.at_s - KEPT_S <= item.at_s <= now.at_s
    ]
    if kept and now.at_s - kept[-1].at_s < SPACING_S:
        return tuple(kept)
    if len(kept) >= KEPT_MAX:
        kept = [*kept[:-1:2], kept[-1]]
    return (*kept, now)


def write_samples(folder: Path, samples: Sequence[Sample]) -> None:
    """Replace the file; it belongs to the folder's owner. Raises OSError."""
    text = json.dumps([asdict(item) for item in samples]) + "\n"
    owner = folder.stat()
    borrowed = os.geteuid() == 0
    replace_file(
        folder,
        FILE_NAME,
        text,
        uid=owner.st_uid if borrowed else os.geteuid(),
        gid=owner.st_gid if borrowed else os.getegid(),
    )

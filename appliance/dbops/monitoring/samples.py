"""The samples of a cluster's counters that `appliance db status` leaves in the state folder.

Owns the file `db-samples.json`. Never: fails a command because of it; what is wrong with it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from appliance.dbops.snapshot.rates import DAY_S, Sample
from appliance.durable import replace_file

FILE_NAME = "db-samples.json"
SPACING_S = 60.0
"""A sample nearer to the newest one is not kept."""

HOUR_S = 3600.0
OLD_SPACING_S = 900.0
"""Samples of more than an hour ago are kept this far apart."""

KEPT_S = 2 * DAY_S
KEPT_MAX = int(HOUR_S / SPACING_S + KEPT_S / OLD_SPACING_S) + 2


def read_samples(folder: Path) -> tuple[Sample, ...]:
    """The samples in a folder, oldest first; none where there is no file. Raises OSError, ValueError."""
    try:
        content = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return ()
    try:
        return msgspec.json.decode(content, type=tuple[Sample, ...])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{folder / FILE_NAME} is of another form: {error}") from error


def with_sample(samples: Sequence[Sample], now: Sample) -> tuple[Sample, ...]:
    """The samples to keep when `now` has been taken: of one cluster, of two days, at most KEPT_MAX."""
    kept: list[Sample] = []
    for item in samples:
        if item.system_id != now.system_id or not now.at_s - KEPT_S <= item.at_s <= now.at_s:
            continue
        recent = now.at_s - item.at_s < HOUR_S
        if recent or not kept or item.at_s - kept[-1].at_s >= OLD_SPACING_S:
            kept.append(item)
    if not kept or now.at_s - kept[-1].at_s >= SPACING_S:
        kept.append(now)
    return tuple(kept)


def write_samples(folder: Path, samples: Sequence[Sample]) -> None:
    """Replace the file; it belongs to the folder's owner. Raises OSError."""
    replace_file(folder / FILE_NAME, msgspec.json.encode(samples) + b"\n")

"""The box as `/metrics` tells it: room on the data's disk, how the timers' tasks ended, the database.

Never: asks a process. What it reads are small files of the data folder, and the disk's own count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from appliance.task_notes import TaskEnd, read_database, read_ends


def box_exposition(data_dir: Path) -> bytes:
    """The Prometheus text."""
    registry = CollectorRegistry()
    registry.register(_BoxGauges(data_dir))
    return generate_latest(registry) + read_database(data_dir)


class _BoxGauges:
    """Read anew at each scrape."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from _disk(self._data_dir)
        yield from _tasks(read_ends(self._data_dir))


def _disk(folder: Path) -> Iterator[GaugeMetricFamily]:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return
    for name, about, blocks in (
        (
            "free_bytes",
            "Bytes that the appliance may still write on its data's disk.",
            disk.f_bavail,
        ),
        ("bytes", "Bytes of its data's disk.", disk.f_blocks),
    ):
        yield GaugeMetricFamily(f"appliance_disk_{name}", about, value=blocks * disk.f_frsize)


def _tasks(ends: dict[str, TaskEnd]) -> Iterator[GaugeMetricFamily]:
    failed, ended, succeeded = (
        GaugeMetricFamily(f"appliance_task_{name}", about, labels=["task"])
        for name, about in (
            ("failed", "Whether a timer's task failed when it ran last."),
            ("end_timestamp_seconds", "When it ended last."),
            ("success_timestamp_seconds", "When it last ended without a failure."),
        )
    )
    for task, end in ends.items():
        failed.add_metric([task], float(not end.is_success))
        ended.add_metric([task], end.ended_at_s)
        if end.succeeded_at_s is not None:
            succeeded.add_metric([task], end.succeeded_at_s)
    yield from (failed, ended, succeeded)

"""What the service manager hears of a server whose engine or database does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from appliance.server.readiness import Readiness, Reason
from appliance.server.service_status import heard_by
from appliance.service_manager import ServiceManager


class Waiting:
    """A server that lacks its engine until `comes`."""

    draining = False

    def __init__(self) -> None:
        self.comes = False

    async def reasons(self) -> list[Reason]:
        return [] if self.comes else [Reason(part="engine", message="The model is loading")]


class Heard(ServiceManager):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__("/nowhere", watchdog_s=0.1)
        self.said: list[str] = []

    def _send(self, *lines: str) -> None:
        self.said += [line.partition("=")[0] if "USEC" in line else line for line in lines]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_start_waits_for_what_is_missing_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("appliance.server.service_status.READY_POLL_S", 0.01)
    monkeypatch.setattr("appliance.server.service_status.START_S_MAX", 0.1)
    manager, readiness = Heard(), Waiting()
    async with heard_by(manager, cast(Readiness, readiness)):
        await until(lambda: "READY=1" in manager.said)
        begun = manager.said.index("READY=1")
        assert set(manager.said[:begun]) == {"EXTEND_TIMEOUT_USEC", "STATUS=The model is loading"}
        # It is a running server now: it says what it lacks, and its loop feeds the watchdog.
        await until(lambda: "WATCHDOG=1" in manager.said)
        assert set(manager.said[begun + 1 :]) == {"STATUS=The model is loading", "WATCHDOG=1"}
        readiness.comes = True
        await until(lambda: "STATUS=serving" in manager.said)


async def test_a_start_is_over_when_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.server.service_status.READY_POLL_S", 0.01)
    manager, readiness = Heard(), Waiting()
    async with heard_by(manager, cast(Readiness, readiness)):
        await until(lambda: manager.said.count("EXTEND_TIMEOUT_USEC") > 2)
        assert "READY=1" not in manager.said
        readiness.comes = True
        await until(lambda: "WATCHDOG=1" in manager.said)
    begun = manager.said.index("READY=1")
    assert manager.said[begun : begun + 2] == ["READY=1", "STATUS=serving"]

"""Which units end again and again, from what systemd says of them, and that status shows it."""

from __future__ import annotations

import pytest

from appliance.cli.service_states import ServiceState, states_of
from appliance.cli.status import lines_of
from appliance.cli.status_parts import _service

NOW_S = 10_000.0


def block(unit: str, active: str, sub: str, restarts: int, up_s: float | None, result: str) -> str:
    """A service as `systemctl show` says it."""
    started = 0 if up_s is None else int((NOW_S - up_s) * 1e6)
    return (
        f"Result={result}\nNRestarts={restarts}\nExecMainStartTimestampMonotonic={started}\n"
        f"Id={unit}\nActiveState={active}\nSubState={sub}\n"
    )


@pytest.mark.parametrize(
    ("active", "sub", "restarts", "up_s", "result", "expected"),
    [
        ("active", "running", 0, 5.0, "success", None),
        ("activating", "start", 0, None, "success", None),
        ("deactivating", "stop-sigterm", 0, 5.0, "success", None),
        ("inactive", "dead", 7, None, "success", None),
        # Killed by its watchdog in the past month, and running since.
        ("active", "running", 1, 20.0, "success", None),
        ("active", "running", 40, 90_000.0, "success", None),
        # Ended now, or not ready yet after it has.
        ("activating", "auto-restart", 0, None, "exit-code", "has ended (exit-code)"),
        ("activating", "auto-restart", 14, None, "exit-code", "14 times so far"),
        ("activating", "auto-restart-queued", 2, None, "watchdog", "has ended (watchdog)"),
        ("activating", "start", 1, 2.0, "success", "started again once, and is not ready yet"),
        # It comes up each time, and ends.
        ("active", "running", 3, 20.0, "success", "3 times so far, the last time 20 s ago"),
    ],
)
def test_a_service_that_ends_again_and_again_is_told_apart_from_one_that_runs(
    active: str, sub: str, restarts: int, up_s: float | None, result: str, expected: str | None
) -> None:
    unit = "appliance-engine@0.service"
    other = block("appliance-server.service", "active", "running", 0, 100.0, "success")
    said = block(unit, active, sub, restarts, up_s, result)
    states = states_of(f"{other}\n{said}\nId=appliance.target\nActiveState=active\n", NOW_S)
    assert list(states) == ["appliance-server.service", unit, "appliance.target"]
    told = states[unit].restarting
    if expected is None:
        assert told is None
    else:
        assert told is not None
        assert expected in told
    assert states["appliance-server.service"].restarting is None
    assert states["appliance.target"] == ServiceState(active="active")
    screen = "\n".join(screen_of(states))
    assert ("RESTARTING: appliance-engine@0.service" in screen) == (expected is not None)
    assert "FAILED" not in screen


def screen_of(states: dict[str, ServiceState]) -> list[str]:
    away = {"away": "nobody asked"}
    parts = {"server": away, "engines": {}, "database": away, "journal": away}
    services = {unit: _service(state) for unit, state in states.items()}
    return list(
        lines_of(
            {
                "version": "1",
                "model": {"name": "m"},
                "services": services,
                "is_stopped": False,
                **parts,
            }
        )
    )


def test_nothing_is_told_where_systemd_says_nothing() -> None:
    assert states_of("", NOW_S) == {}

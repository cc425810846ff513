"""What the command says of the cost of shipping."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.cli.experiment_report import _cost
from appliance.experiment.report.numbers import hours


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (100, "in another way."),
        (101, "computes 1 token more behind"),
        (60, "computes 40 tokens fewer"),
    ],
)
def test_what_is_behind_the_history_costs_each_reply(after: int, told: str) -> None:
    cost: dict[str, Any] = {
        "changes": [{"goes_cold": False, "position": 90, "where": ""}],
        "is_certain": False,
        "tokens_before": 100,
        "tokens_after": after,
        "live": {"cold": 0, "chats": 3, "tokens": 0},
    }
    assert told in (_cost(cost) or "")


@pytest.mark.parametrize(
    ("stretch", "told"),
    [(1 / 60, "1 minute"), (0.5, "30 minutes"), (1, "1 hour"), (26, "26 hours"), (72, "3 days")],
)
def test_a_stretch_of_time_has_its_number(stretch: float, told: str) -> None:
    assert hours(stretch) == told

"""A draft of an experiment on a character of the tests, before anything is said of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from appliance.store.experiment_records import Arm, Experiment, Options

WHOLE = Experiment(
    name="ships",
    character="ada",
    hypothesis="h",
    layer="ada",
    salt="ships",
    range_start=0.0,
    range_end=1.0,
    coverage=1.0,
    excludes=(),
    overrides={},
    options=Options(),
    arms=(),
    state="draft",
    created_at=datetime.now(UTC),
)


def a_draft(versions: dict[str, str], **fields: Any) -> Experiment:
    """One with the arms of `versions`, of equal shares, over its whole layer; `fields` are others."""
    arms = tuple(Arm(name=arm, share=1 / len(versions), version=v) for arm, v in versions.items())
    return replace(WHOLE, arms=arms, **fields)

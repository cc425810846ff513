"""What an edit of a prompt changes and costs, as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from appliance.chat.prompt_diff import PromptDiff


def diff_fields(found: PromptDiff) -> dict[str, Any]:
    """An edit and its price; each of its `changes` in one object."""
    changes = [
        {
            "where": one.where,
            "position": one.change.position,
            "part": one.change.part,
            "zone": one.change.zone.value,
            "is_new": one.change.is_new,
            "goes_cold": one.change.goes_cold,
        }
        for one in found.changes
    ]
    return {**asdict(found), "changes": changes}

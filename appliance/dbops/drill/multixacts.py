"""Situations in which not transaction IDs run out, but what shared row locks need."""

from __future__ import annotations

from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.ground import GROUND
from appliance.dbops.drill.situation import Counter, Situation

FIRST = f"SET drill.rows = 50; {GROUND['spend_multixacts']}"


class MultixactIds(Situation):
    """Rows locked by two transactions at once use them up."""

    name = "multixacts"
    summary = "no multixact IDs are left: plain inserts work, shared row locks do not"
    counter = Counter.MULTIXACTS

    async def loaded(self, drill: Drill) -> None:
        """Use the first ones."""
        await drill.execute(FIRST)


class MemberSpace(MultixactIds):
    """Each of two lockers takes a place in it."""

    name = "members"
    summary = "the space for multixact members is used up, while the age of multixacts is small"
    counter = Counter.MEMBERS

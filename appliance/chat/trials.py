"""Trials: which experiment and arm a new conversation is opened in, from one snapshot of what runs.

Owns the snapshot; it is replaced as a whole, and while the database is away the last one serves on.
Never: starts or judges an experiment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from appliance.chat.turn_plan import Plan
from appliance.database_failure import DatabaseFailure
from appliance.errors import StorageUnavailable
from appliance.experiment.assignment import Assigner
from appliance.store.experiment_records import Experiment
from appliance.store.experiments import Experiments
from appliance.store.records import Trial

log = logging.getLogger("appliance.chat")

POLL_S = 2.0
"""How soon a start, a pause or a stop through another server is seen."""

AWAY_POLL_S = 5.0
"""How often a database that is away is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """What a conversation is opened in, and the version it is pinned to. `exposes`: its greetings are
    others than those of the other arms."""

    trial: Trial
    version: str
    exposes: bool


class Trials:
    """The running experiments. Safe to share between all requests; empty until `reload`."""

    def __init__(self) -> None:
        self._by_character: Mapping[str, tuple[Assigner, ...]] = MappingProxyType({})
        self._by_name: Mapping[str, Experiment] = MappingProxyType({})

    def of(self, character: str, tenant: str, user: str | None) -> Assigned | None:
        """The arm of a new conversation of a user with a character; None: as if there were none."""
        for assigner in self._by_character.get(character, ()):
            arm = assigner.arm(tenant, user)
            if arm is not None:
                experiment = assigner.experiment
                return Assigned(
                    trial=Trial(experiment=experiment.name, arm=arm.name),
                    version=arm.version,
                    exposes=experiment.options.differs_when_opened,
                )
        return None

    @property
    def is_any(self) -> bool:
        """Whether any experiment runs."""
        return bool(self._by_name)

    def exposes_of(self, plan: Plan) -> bool:
        """Whether the prompt of a turn is another than the other arms would have made."""
        return self.exposes(
            plan.trial, version=plan.prompt_version, is_cut=plan.messages_dropped > 0
        )

    def exposes(self, trial: Trial | None, *, version: str, is_cut: bool) -> bool:
        """Whether a prompt made with `version` is another than the other arms would have made.

        Not where the conversation was given another version since, or the experiment has ended.
        """
        experiment = None if trial is None else self._by_name.get(trial.experiment)
        if trial is None or experiment is None:
            return False
        arm = experiment.arm(trial.arm)
        if arm is None or arm.version != version:
            return False
        return is_cut or not experiment.options.differs_when_cut

    async def reload(self, experiments: Experiments) -> None:
        """Take a new snapshot; raises StorageUnavailable."""
        self._take(await experiments.running())

    def _take(self, experiments: Sequence[Experiment]) -> None:
        running = {one.name: one for one in experiments if one.is_running}
        # Users of an experiment that has ended stay left out of those that exclude it.
        alone = {one.name: Assigner.of(one) for one in experiments}
        by_character: dict[str, tuple[Assigner, ...]] = {}
        for name, one in running.items():
            excluded = tuple(alone[other] for other in one.excludes if other in alone)
            assigner = Assigner.of(one, excluded) if excluded else alone[name]
            by_character[one.character] = (*by_character.get(one.character, ()), assigner)
        self._by_name = MappingProxyType(running)
        self._by_character = MappingProxyType(by_character)

    async def watch(self, experiments: Experiments) -> None:
        """Reload every POLL_S, for ever; a database that is away is waited for."""
        pause_s = POLL_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = POLL_S
            try:
                await self.reload(experiments)
            except (StorageUnavailable, *DatabaseFailure) as error:
                log.warning("experiments_not_read", extra={"error": type(error).__name__})
                pause_s = AWAY_POLL_S

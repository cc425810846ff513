"""What an operator does with an experiment: checks, creates, starts, ramps, pauses, ends and ships it.

Owns what must hold before something is done. Never: measures, or judges a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import msgspec

from appliance.chat.catalog import Catalog
from appliance.chat.prompt_diff import PromptDiff, prompt_diff
from appliance.chat.reply_prompts import ReplyPrompts
from appliance.chat.trials import Trials
from appliance.errors import ApplianceError, Conflict, InvalidRequest, NotFound, StorageUnavailable
from appliance.experiment.definition import Definition, experiment_of, faults, notes, overlaps
from appliance.prompt.bundle import CHARACTER_FILE
from appliance.store.experiment_records import Arm, Experiment
from appliance.store.experiments import Experiments, not_running, store_end
from appliance.store.pool import Connection
from appliance.store.prompt_records import PRODUCTION, LabelMove

LIVE_DAYS = 7.0
"""Chats with activity in so many days count as live, where a shipping is priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """What is wrong (`faults`: it is not created), what to know (`notes`), and the arms' versions."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """A label that moved to an arm's version (`move` is None where it stood there), and what live chats
    would compute again were they moved too: new ones alone get the version, the others keep theirs."""

    version: str
    move: LabelMove | None
    cost: PromptDiff | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experimenting:
    """The deeds, over what is stored. Every method raises StorageUnavailable."""

    experiments: Experiments
    trials: Trials
    catalog: Catalog
    prompts: ReplyPrompts

    async def lint(self, definition: Definition) -> Linted:
        """Look a definition over; nothing is stored."""
        found = faults(definition)
        versions: dict[str, str] = {}
        for arm in definition.arms:
            if arm.version is None:
                continue
            try:
                version = await self.catalog.registry.resolve(definition.character, arm.version)
                await self.catalog.of(definition.character, version)
                versions[arm.name] = version
            except StorageUnavailable:
                raise
            except ApplianceError as error:
                found.append(f"arms: {arm.name!r}: {error.message}")
        others = await self.experiments.all()
        names = {other.name for other in others}
        found += _taken(definition, others)
        found += [
            f"excludes: there is no experiment {name!r}"
            for name in definition.excludes
            if name not in names
        ]
        known = notes(definition, others)
        if len(set(versions.values())) < len(versions):
            known.append("arms: some have the same version: this shows what chance does (A/A)")
        return Linted(faults=tuple(found), notes=tuple(known), versions=versions)

    async def create(
        self, definition: Definition, *, author: str, message: str
    ) -> tuple[Experiment, Linted]:
        """Store a draft. Raises InvalidRequest with all that is wrong."""
        linted = await self.lint(definition)
        if linted.faults:
            raise InvalidRequest("; ".join(linted.faults))
        character, versions = definition.character, linted.versions
        experiment = experiment_of(
            definition,
            versions,
            differs_when_cut=await self._differs_when_cut(character, versions),
            differs_when_opened=await self._differs_when_opened(character, versions),
            created_at=datetime.now(UTC),
        )
        await self.experiments.create(experiment, author=author, message=message)
        return experiment, linted

    async def _differs_when_opened(self, character: str, versions: dict[str, str]) -> bool:
        """Whether users of two arms see another greeting, or one of them sees none."""
        found = [await self.catalog.of(character, version) for version in versions.values()]
        return len({one.greeting_sources for one in found}) > 1

    async def _differs_when_cut(self, character: str, versions: dict[str, str]) -> bool:
        """Whether the arms' prompts are the same until messages are cut: all but the step of a cut is
        alike. A reserve says when the first cut is, which would have to be known of both arms."""
        found = [await self.catalog.of(character, version) for version in versions.values()]
        bundles = [await self.catalog.bundle(character, version) for version in versions.values()]
        alike = {
            msgspec.json.encode(
                msgspec.structs.replace(
                    one.character,
                    truncation=msgspec.structs.replace(one.character.truncation, step_tokens=None),
                )
            )
            for one in found
        }
        others = [
            {path: text for path, text in bundle.files.items() if path != CHARACTER_FILE}
            for bundle in bundles
        ]
        steps = {one.character.truncation.step_tokens for one in found}
        return len(alike) == 1 and len(steps) > 1 and all(one == others[0] for one in others)

    async def start(
        self, name: str, *, coverage: float | None, author: str, message: str
    ) -> Experiment:
        """Start a draft with any share of its users, or let a larger one of a running experiment's in.
        Raises Conflict where it gets in the way of another, or has ended."""
        experiment = await self.experiments.get(name)
        if experiment.state not in ("draft", "running"):
            raise Conflict(
                f"{name} is {experiment.state}: only a draft can be started; make another of another name"
            )
        if not experiment.is_running:
            await self._refuse_replaced(experiment)
            await self.experiments.start(
                name,
                coverage=coverage,
                author=author,
                message=message,
                check=partial(_refuse_conflicts, experiment),
            )
        elif coverage is None or coverage <= experiment.coverage:
            now = f"{100 * experiment.coverage:g}% of its users"
            if coverage in (None, experiment.coverage):
                raise Conflict(f"{name} runs already, with {now}")
            raise Conflict(f"{name} lets in {now} already: a ramp only adds users")
        else:
            await self.experiments.ramp(
                name,
                coverage,
                author=author,
                message=message,
                check=partial(_refuse_throwing_out, name),
            )
        return await self._changed(name)

    async def _refuse_replaced(self, experiment: Experiment) -> None:
        """Raises Conflict for a draft with an arm that is not `production` any more, where no arm is: its
        users would go back to what was replaced."""
        found = await self._replaced(experiment)
        if found is not None:
            raise Conflict(
                f"{experiment.name}: arm {found[0]} was production when it was created, and production "
                f"has moved to {found[1][:12]} since: make another against what everybody has now"
            )

    async def _replaced(self, experiment: Experiment) -> tuple[str, str] | None:
        """The arm that was `production` when the experiment was created and the version that is now,
        where that is no arm's."""
        versions = {arm.version: arm.name for arm in experiment.arms}
        moves = [
            move
            for move in await self.catalog.registry.moves(experiment.character)
            if move.label == PRODUCTION and move.moved_at > experiment.created_at
        ]
        if not moves:
            return None
        first, last = (end(moves, key=lambda move: move.moved_at) for end in (min, max))
        replaced = versions.get(first.from_version or "")
        if replaced is None or last.to_version in versions:
            return None
        return replaced, last.to_version

    async def pause(self, name: str, arm: str, *, author: str, message: str) -> bool:
        """Open no more conversations in an arm; False when it is paused already. Raises Conflict unless
        the experiment runs."""
        experiment = await self.experiments.get(name)
        _known_arm(experiment, arm)
        if not experiment.is_running:
            raise Conflict(f"{name} is {experiment.state}: only an arm of what runs is paused")
        paused = await self.experiments.pause(name, arm, author=author, message=message)
        await self._changed(name)
        return paused

    async def stop(self, name: str, *, author: str, message: str, report: str | None) -> Experiment:
        """Open no more conversations in it; those that are open keep their version."""
        await self.experiments.end(
            name, "stopped", arm=None, author=author, message=message, report=report
        )
        return await self._changed(name)

    async def withdraw(self, name: str, *, author: str, message: str) -> Experiment:
        """Give a draft up: it is never started. Raises NotFound, and Conflict for what is no draft."""
        await self.experiments.get(name)
        await self.experiments.end(
            name, "withdrawn", arm=None, author=author, message=message, report=None
        )
        return await self.experiments.get(name)

    async def cost(self, name: str, arm: str) -> PromptDiff | None:
        """What live chats would compute again with an arm's version; None where production is it."""
        experiment = await self.experiments.get(name)
        version = _known_arm(experiment, arm).version
        now = await self.catalog.registry.resolve(experiment.character, PRODUCTION)
        if now == version:
            return None
        return await prompt_diff(
            self.prompts.paths,
            self.prompts.builder,
            await self.catalog.bundle(experiment.character, now),
            await self.catalog.bundle(experiment.character, version),
            days=LIVE_DAYS,
        )

    async def ship(
        self,
        name: str,
        arm: str,
        *,
        author: str,
        message: str,
        report: str,
        confirmed: bool,
        anyway: bool = False,
    ) -> Shipped:
        """Move `production` to an arm's version, with the report that says why, and end the experiment.

        Raises LabelProtected unless the move of a protected label is `confirmed`, and Conflict for an arm
        that was never compared with what is `production` by now, unless it is shipped `anyway`, and for
        an experiment that was never started or is shipped.
        """
        experiment = await self.experiments.get(name)
        shipped = _known_arm(experiment, arm)
        version = shipped.version
        if experiment.state not in ("running", "stopped"):
            raise Conflict(f"{name} is {experiment.state}: only what has run is shipped")
        if shipped.paused_at is not None and not anyway:
            raise Conflict(f"arm {arm} of {name} is paused: --anyway ships it")
        found = None if anyway else await self._replaced(experiment)
        if found is not None:
            raise Conflict(
                f"production has moved to {found[1][:12]} since {name} was created, and no arm of it has "
                f"that: shipping {arm} would take it back; --anyway ships it"
            )
        cost = await self.cost(name, arm)
        registry = self.catalog.registry
        why: dict[str, str] = {"arm": arm, "author": author, "message": message, "report": report}

        async def end(connection: Connection) -> None:
            if not await store_end(connection, name, "shipped", **why):
                raise not_running(name, "shipped")

        move = await registry.move(
            experiment.character,
            PRODUCTION,
            version,
            seen=await registry.resolve(experiment.character, PRODUCTION),
            author=author,
            message=f"experiment {name}, arm {arm}: {message}",
            confirmed=confirmed,
            also=end,
        )
        if move is None:
            await self.experiments.end(name, "shipped", **why)
        await self.catalog.reload()
        await self._changed(name)
        return Shipped(version=version, move=move, cost=cost)

    async def _changed(self, name: str) -> Experiment:
        await self.trials.reload(self.experiments)
        return await self.experiments.get(name)


def _taken(definition: Definition, others: Sequence[Experiment]) -> list[str]:
    """Why the name cannot be used again."""
    for other in others:
        if other.name != definition.name:
            continue
        salt = definition.salt or definition.name
        if other.is_running and salt != other.salt:
            return [
                f"salt: {other.name!r} runs with salt {other.salt!r}: another one would give its users "
                "other arms; stop it, and begin anew under another name"
            ]
        return [
            f"name: there is an experiment {other.name!r} already ({other.state}): take another name"
        ]
    return []


def _refuse_conflicts(experiment: Experiment, others: Sequence[Experiment]) -> None:
    _refuse_throwing_out(experiment.name, others)
    place = (experiment.range_start, experiment.range_end)
    found = overlaps(experiment.name, experiment.character, experiment.layer, place, others)
    if found:
        raise Conflict("; ".join(found))


def _refuse_throwing_out(name: str, others: Sequence[Experiment]) -> None:
    """Who is in an experiment stays in it: those that it excludes let nobody in meanwhile."""
    for other in others:
        if other.is_running and name in other.excludes:
            raise Conflict(
                f"{other.name} runs and leaves the users of {name} out: letting any in now would throw "
                f"them out of {other.name}; stop it first"
            )


def _known_arm(experiment: Experiment, name: str) -> Arm:
    """The arm of this name; raises NotFound."""
    arm = experiment.arm(name)
    if arm is None:
        known = ", ".join(arm.name for arm in experiment.arms)
        raise NotFound(f"{experiment.name} has no arm {name!r} (there are: {known})", param="arm")
    return arm

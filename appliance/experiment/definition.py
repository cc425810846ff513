"""An experiment as an operator writes it, and what is wrong with it before anybody is in it.

Owns the form and its rules. Never: a database; what is known of versions and other experiments is given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from appliance.errors import InvalidRequest
from appliance.store.experiment_records import Arm, Experiment, Options

ARMS_MAX = 16
DAYS_MAX = 90
OVERRIDES_MAX = 10_000
USERS_PLANNED_MIN = 200
USERS_PLANNED_MAX = 1_000_000_000
SHARES_SUM_TOLERANCE = 1e-6
DEFINITION_BYTES_MAX = 1 << 20

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_Share = Annotated[float, Meta(gt=0, le=1)]
_Effect = Annotated[float, Meta(ge=0.001, le=1)]
_Place = Annotated[float, Meta(ge=0, le=1)]


class ArmDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One arm. `version` is a label or the beginning of a version; without a `share` all arms are
    equal."""

    name: str
    version: str | None = None
    share: _Share | None = None


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An experiment; the first arm is the control. Without a `layer` it is the character's own.

    `overrides` name `tenant/user`, or a tenant whose application tells no users. `users` of all arms are
    expected (`appliance experiment plan` says how many are needed): there the intervals are narrowest.
    """

    name: str
    hypothesis: Annotated[str, Meta(min_length=1, max_length=2000)]
    arms: Annotated[list[ArmDefinition], Meta(max_length=ARMS_MAX)]
    character: str = "assistant"
    layer: str | None = None
    salt: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    range: tuple[_Place, _Place] = (0.0, 1.0)
    coverage: _Share = 1.0
    excludes: list[str] = msgspec.field(default_factory=list)
    overrides: Annotated[dict[str, str], Meta(max_length=OVERRIDES_MAX)] = msgspec.field(
        default_factory=dict
    )
    primary: list[str] = msgspec.field(default_factory=list)
    minimum_effect: _Effect = 0.05
    looks: Literal["any", "planned"] = "any"
    users: Annotated[int, Meta(ge=USERS_PLANNED_MIN, le=USERS_PLANNED_MAX)] = 2_000
    warm_up_minutes: Annotated[int, Meta(ge=0, le=24 * 60)] = 10
    before_days: Annotated[int, Meta(ge=0, le=DAYS_MAX)] = 14
    days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] = 14

    @property
    def own_layer(self) -> str:
        """The layer it is in."""
        return self.layer or self.character


def read_definition(content: bytes, origin: str) -> Definition:
    """The definition in a YAML file; raises InvalidRequest naming the file and the field."""
    if len(content) > DEFINITION_BYTES_MAX:
        raise InvalidRequest(
            f"{origin}: {len(content)} bytes, at most {DEFINITION_BYTES_MAX} are allowed"
        )
    try:
        value: Any = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{origin}: no YAML: {error}") from error
    try:
        return msgspec.convert(value, Definition)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{origin}: {error}") from error


def faults(definition: Definition, metrics: Collection[str] | None = None) -> list[str]:
    """What is wrong with a definition by itself; empty when nothing is. `metrics` are the names there
    are, None where that is not known."""
    return [
        *_name_faults(definition),
        *_arm_faults(definition),
        *_other_faults(definition, metrics),
    ]


def _name_faults(definition: Definition) -> Iterator[str]:
    named = {"name": definition.name, "layer": definition.own_layer}
    named |= {f"arms[{i}].name": arm.name for i, arm in enumerate(definition.arms)}
    for field, name in named.items():
        if _NAME.match(name) is None:
            yield f"{field}: {name!r} is not 1 to 64 of a-z 0-9 _ -"


def _arm_faults(definition: Definition) -> Iterator[str]:
    arms = definition.arms
    if len(arms) < 2:
        yield f"arms: expected at least 2, there are {len(arms)}: the first is the control"
    names = [arm.name for arm in arms]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"arms: {name!r} is there {names.count(name)} times"
    for arm in arms:
        if arm.version is None:
            yield (
                f"arms: {arm.name!r} has no version: name a label, or the beginning of a version "
                f"(appliance prompt history {definition.character})"
            )
    shares = [arm.share for arm in arms]
    if any(share is None for share in shares) != all(share is None for share in shares):
        yield "arms: give every arm a share, or none: then all are equal"
    elif None not in shares:
        total = sum(share for share in shares if share is not None)
        if abs(total - 1) > SHARES_SUM_TOLERANCE:
            yield f"arms: the shares sum to {total:g}, expected 1"


def _other_faults(definition: Definition, metrics: Collection[str] | None) -> Iterator[str]:
    start, end = definition.range
    if start >= end:
        yield f"range: [{start:g}, {end:g}) is empty"
    if definition.name in definition.excludes:
        yield f"excludes: {definition.name!r} is this experiment itself"
    names = {arm.name for arm in definition.arms}
    for user, arm in sorted(definition.overrides.items()):
        if arm not in names:
            yield f"overrides: {user!r} is put into {arm!r}, which is no arm"
    for metric in definition.primary:
        if metrics is not None and metric not in metrics:
            yield f"primary: there is no metric {metric!r} (there are: {', '.join(sorted(metrics))})"
    if not definition.primary:
        yield "primary: name the metric that decides"


def overlaps(
    name: str, character: str, layer: str, place: tuple[float, float], others: Sequence[Experiment]
) -> list[str]:
    """Why this experiment cannot run beside those that run; empty when it can."""
    found = []
    for other in others:
        if not other.is_running or other.name == name:
            continue
        shared = place[0] < other.range_end and other.range_start < place[1]
        if other.layer == layer and shared:
            found.append(
                f"layer {layer!r}: [{place[0]:g}, {place[1]:g}) overlaps with {other.name!r}, which runs "
                f"in [{other.range_start:g}, {other.range_end:g}): take a range beside it, or stop it"
            )
        elif other.layer != layer and other.character == character:
            found.append(
                f"{other.name!r} runs on {character!r} in layer {other.layer!r}: a conversation has one "
                f"version, so experiments on a character share a layer; take layer {other.layer!r}"
            )
    return found


def experiment_of(
    definition: Definition,
    versions: Mapping[str, str],
    *,
    differs_when_cut: bool,
    created_at: datetime,
) -> Experiment:
    """The draft that a definition without faults means; `versions` are those of its arms by name."""
    equal = 1 / len(definition.arms)
    start, end = definition.range
    return Experiment(
        name=definition.name,
        character=definition.character,
        hypothesis=definition.hypothesis,
        layer=definition.own_layer,
        salt=definition.salt or definition.name,
        range_start=start,
        range_end=end,
        coverage=definition.coverage,
        excludes=tuple(definition.excludes),
        overrides=definition.overrides,
        options=Options(
            primary=tuple(definition.primary),
            minimum_effect=definition.minimum_effect,
            looks=definition.looks,
            users=definition.users,
            warm_up_minutes=definition.warm_up_minutes,
            before_days=definition.before_days,
            days=definition.days,
            differs_when_cut=differs_when_cut,
        ),
        arms=tuple(
            Arm(name=arm.name, share=arm.share or equal, version=versions[arm.name])
            for arm in definition.arms
        ),
        state="draft",
        created_at=created_at,
    )

"""An experiment as an operator writes it, and what is wrong with it before anybody is in it.

Owns the form and its rules. Never: a database; what is known of versions and other experiments is given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec
import yaml
from msgspec import Meta

from appliance.errors import InvalidRequest
from appliance.experiment.plain_yaml import plain_yaml
from appliance.store.experiment_records import Arm, Experiment, Options
from appliance.unstorable import UNSTORABLE

ARMS_MAX = 16
DAYS_MAX = 90
OVERRIDES_MAX = 10_000
SALT_BYTES_MAX = 200
USERS_PLANNED_MIN = 200
USERS_PLANNED_MAX = 1_000_000_000
SHARES_SUM_TOLERANCE = 1e-6
DEFINITION_BYTES_MAX = 1 << 20

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`(?: - at `\$\.arms\[)?")
LIST = "index"
"""Its page is the list of all experiments."""
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
    salt: Annotated[str, Meta(min_length=1, max_length=SALT_BYTES_MAX)] | None = None
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
        return self.character if self.layer is None else self.layer


def read_definition(content: bytes, origin: str) -> Definition:
    """The definition in a YAML file; raises InvalidRequest naming the file and the field."""
    if len(content) > DEFINITION_BYTES_MAX:
        raise InvalidRequest(
            f"{origin}: {len(content)} bytes, at most {DEFINITION_BYTES_MAX} are allowed"
        )
    try:
        value = plain_yaml(content)
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{origin}: no YAML: {error}") from error
    try:
        return msgspec.convert(value, Definition)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{origin}: {_told(error)}") from error
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{origin}: a text holds half of a character") from error


def _told(error: msgspec.ValidationError) -> str:
    found = _UNKNOWN.match(str(error))
    if found is not None and found[1] == "model":
        return f"{error}: an appliance serves one model, the same in all arms"
    if found is None:
        return str(error)
    if not found[0].endswith("["):
        return f"{error}: the fields are {', '.join(Definition.__struct_fields__)}"
    return (
        f"{error}: an arm has a name, a version and a share; what it differs in (texts, template, lore, "
        "sampling, truncation) stands in the files of its version"
    )


def checked_name(name: str) -> str:
    """The name of an experiment; raises InvalidRequest for what cannot be one."""
    if _NAME.match(name) is None:
        raise InvalidRequest(f"NAME: {name!r} is not 1 to 64 of a-z 0-9 _ -", param="name")
    return name


def faults(definition: Definition, metrics: Collection[str] | None = None) -> list[str]:
    """What is wrong with a definition by itself; empty when nothing is. `metrics` are the names there
    are, None where that is not known."""
    return [
        *_name_faults(definition),
        *_arm_faults(definition),
        *_other_faults(definition, metrics),
    ]


def _name_faults(definition: Definition) -> Iterator[str]:
    named = {"name": definition.name, "character": definition.character}
    if definition.layer is not None:
        named["layer"] = definition.layer
    named |= {f"arms[{i}].name": arm.name for i, arm in enumerate(definition.arms)}
    for field, name in named.items():
        if _NAME.match(name) is None:
            yield f"{field}: {name!r} is not 1 to 64 of a-z 0-9 _ -"
    if definition.name == LIST:
        yield f"name: {LIST!r} is the page that lists all experiments: take another name"
    texts = {"hypothesis": definition.hypothesis, "salt": definition.salt or ""}
    for field, text in texts.items():
        if UNSTORABLE.search(text) is not None:
            yield f"{field}: holds U+0000 or half of a character"
    if len((definition.salt or "").encode(errors="replace")) > SALT_BYTES_MAX:
        yield f"salt: is longer than {SALT_BYTES_MAX} bytes"


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
    if shares and any(share is None for share in shares) != all(share is None for share in shares):
        yield "arms: give every arm a share, or none: then all are equal"
    elif shares and None not in shares:
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
        if not all(user.split("/", 1)) or UNSTORABLE.search(user) is not None:
            yield f"overrides: {user!r} is no tenant/user, and no tenant"
        if arm not in names:
            yield f"overrides: {user!r} is put into {arm!r}, which is no arm"
    for metric in definition.primary:
        if metrics is not None and metric not in metrics:
            yield f"primary: there is no metric {metric!r} (there are: {', '.join(sorted(metrics))})"
    if not definition.primary:
        yield "primary: name the metric that decides"


def notes(definition: Definition, others: Sequence[Experiment]) -> list[str]:
    """What to know of a definition that is sound by itself, beside the experiments there are."""
    found = [
        f"overrides: {tenant!r} is the whole of a tenant whose application tells no users; a user is "
        "tenant/user"
        for tenant in sorted(definition.overrides)
        if "/" not in tenant
    ]
    found += [
        f"excludes: {other.name!r} has let in every user: nobody is left"
        for other in others
        if other.name in definition.excludes
        and other.started_at is not None
        and (other.range_start, other.range_end, other.coverage) == (0, 1, 1)
    ]
    found += [
        f"excludes: {other.name!r} was withdrawn as a draft: nobody is in it"
        for other in others
        if other.name in definition.excludes and other.state == "withdrawn"
    ]
    found += [
        f"salt: it is that of {other.name!r}, too: who was in one arm there is in one arm here"
        for other in others
        if other.name != definition.name
        and other.state != "withdrawn"
        and other.salt == (definition.salt or definition.name)
    ]
    place = (definition.name, definition.character, definition.own_layer, definition.range)
    return found + overlaps(*place, others)


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
    differs_when_opened: bool,
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
            differs_when_opened=differs_when_opened,
        ),
        arms=tuple(
            Arm(name=arm.name, share=arm.share or equal, version=versions[arm.name])
            for arm in definition.arms
        ),
        state="draft",
        created_at=created_at,
    )

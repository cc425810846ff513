"""What is wrong with an experiment's file, told with its field and its limit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from appliance.errors import InvalidRequest
from appliance.experiment.definition import (
    Definition,
    checked_name,
    experiment_of,
    faults,
    notes,
    read_definition,
)
from appliance.store.experiment_records import Experiment

FILE = """
name: ships
hypothesis: Ships are better company.
character: ada
primary: [messages_sent]
arms:
  - {name: birds, version: production}
  - {name: ships, version: f5004817}
"""
METRICS = {"messages_sent"}


def told(change: str) -> list[str]:
    """What is wrong with the file once its fields of the same name are replaced."""
    fields = {line.partition(":")[0] for line in change.splitlines() if not line.startswith(" ")}
    kept, skips = [], False
    for line in FILE.splitlines():
        skips = line.partition(":")[0] in fields if line[:1].strip() else skips
        kept += [] if skips else [line]
    try:
        definition = read_definition("\n".join([*kept, change]).encode(), "ships.yaml")
    except InvalidRequest as error:
        return [error.message.removeprefix("ships.yaml: ")]
    return faults(definition, METRICS)


def test_a_file_without_faults_has_none() -> None:
    assert told("") == []


NOT_A_NAME = "is not 1 to 64 of a-z 0-9 _ -"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        *((f"name: {name!r}", f"name: {name!r} {NOT_A_NAME}") for name in (".", "..", "Ships")),
        *((f"name: {name!r}", f"name: {name!r} {NOT_A_NAME}") for name in ("", "a/b", "\u00fc")),
        (f"name: {'a' * 65}", f"name: {'a' * 65!r} {NOT_A_NAME}"),
        ("name: index", "name: 'index' is the page that lists all experiments"),
        ("layer: Ada", f"layer: 'Ada' {NOT_A_NAME}"),
        ("character: Ada", f"character: 'Ada' {NOT_A_NAME}"),
        ("arms: []", "arms: expected at least 2, there are 0"),
        ("arms: [{name: a, version: production}]", "arms: expected at least 2, there are 1"),
        ("arms: [{name: a, version: x}, {name: a, version: y}]", "arms: 'a' is there 2 times"),
        ("arms: [{name: A, version: x}, {name: b, version: y}]", "arms[0].name: 'A'"),
        ("arms: [{name: a}, {name: b, version: y}]", "arms: 'a' has no version"),
        (
            "arms: [{name: a, version: x, share: 0.5}, {name: b, version: y}]",
            "arms: give every arm a share, or none",
        ),
        (
            "arms: [{name: a, version: x, share: 0.5}, {name: b, version: y, share: 0.4}]",
            "arms: the shares sum to 0.9, expected 1",
        ),
        (
            "arms: [{name: a, version: x, share: .nan}, {name: b, version: y, share: 1}]",
            "Expected `float` > 0.0 - at `$.arms[0].share`",
        ),
        (
            "arms: [{name: a, version: x, model: y}]",
            "`model` - at `$.arms[0]`: an appliance serves one model, the same in all arms",
        ),
        ("model: y", "`model`: an appliance serves one model"),
        ("arms: [{name: a, sampling: {}}]", "stands in the files of its version"),
        ("coverage: 0", "Expected `float` > 0.0 - at `$.coverage`"),
        ("coverage: 1.01", "Expected `float` <= 1.0 - at `$.coverage`"),
        ("coverage: .nan", "Expected `float` > 0.0 - at `$.coverage`"),
        ("range: [0.5, 0.5]", "range: [0.5, 0.5) is empty"),
        ("range: [0, .nan]", "Expected `float` >= 0.0 - at `$.range[1]`"),
        ("excludes: [ships]", "excludes: 'ships' is this experiment itself"),
        ("overrides: {acme/mo: whales}", "overrides: 'acme/mo' is put into 'whales'"),
        ("overrides: {acme/: ships}", "overrides: 'acme/' is no tenant/user, and no tenant"),
        ("overrides: {/mo: ships}", "overrides: '/mo' is no tenant/user, and no tenant"),
        ("overrides: {'': ships}", "overrides: '' is no tenant/user, and no tenant"),
        ('overrides: {"a\\0b": ships}', "is no tenant/user"),
        ("primary: []", "primary: name the metric that decides"),
        ("primary: [love]", "there is no metric 'love' (there are: messages_sent)"),
        ('hypothesis: "a\\0"', "hypothesis: holds U+0000"),
        ("hypothesis: ''", "Expected `str` of length >= 1 - at `$.hypothesis`"),
        (f"salt: {'x' * 201}", "Expected `str` of length <= 200 - at `$.salt`"),
        ("salt: " + "\u00fc" * 101, "salt: is longer than 200 bytes"),
        ("days: 0", "Expected `int` >= 1 - at `$.days`"),
        ("users: 199", "Expected `int` >= 200 - at `$.users`"),
        ("name: a\nname: b", "'name' stands twice"),
        ("overrides: {acme/mo: birds, acme/mo: ships}", "'acme/mo' stands twice"),
        ("name: [", "no YAML: "),
        (f"hypothesis: {'x' * (1 << 20)}", "at most 1048576 are allowed"),
    ],
)
def test_each_fault_is_told_alone_with_its_field(change: str, expected: str) -> None:
    (fault,) = told(change)
    assert expected in fault


def definition(**fields: Any) -> Definition:
    """The file with other fields."""
    made = read_definition(FILE.encode(), "ships.yaml")
    return Definition(**{**{f: getattr(made, f) for f in made.__struct_fields__}, **fields})


def other(**fields: Any) -> Experiment:
    """An experiment that runs."""
    made = experiment_of(
        definition(**{"name": "birds", **fields}),
        {"birds": "a" * 64, "ships": "b" * 64},
        differs_when_cut=False,
        differs_when_opened=False,
        created_at=datetime.now(UTC),
    )
    return replace(made, state="running", started_at=datetime.now(UTC))


@pytest.mark.parametrize(
    ("fields", "beside", "expected"),
    [
        ({}, {"range": (0.0, 0.5)}, ["layer 'ada': [0, 1) overlaps with 'birds'"]),
        ({"range": (0.5, 1.0)}, {"range": (0.0, 0.5)}, []),
        ({"range": (0.4999, 1.0)}, {"range": (0.0, 0.5)}, ["overlaps"]),
        ({"range": (0.0, 0.5)}, {"range": (0.5, 1.0)}, []),
        ({"layer": "b"}, {"range": (0.0, 0.5)}, ["'birds' runs on 'ada' in layer 'ada'"]),
        ({"layer": "b", "character": "mara"}, {}, []),
        ({"layer": "ada", "character": "mara"}, {}, ["layer 'ada': [0, 1) overlaps"]),
        (
            {"character": "mara", "excludes": ["birds"]},
            {},
            ["excludes: 'birds' has let in every user: nobody is left"],
        ),
        ({"character": "mara", "excludes": ["birds"]}, {"coverage": 0.9}, []),
        ({"character": "mara", "salt": "birds"}, {}, ["salt: it is that of 'birds', too"]),
        (
            {"character": "mara", "overrides": {"mo": "ships", "acme/mo": "ships"}},
            {},
            ["overrides: 'mo' is the whole of a tenant"],
        ),
    ],
)
def test_what_gets_in_the_way_of_what_runs_is_noted(
    fields: dict[str, Any], beside: dict[str, Any], expected: list[str]
) -> None:
    found = notes(definition(**fields), [other(**beside)])
    assert len(found) == len(expected)
    for one, words in zip(found, expected, strict=True):
        assert words in one


def test_a_withdrawn_draft_takes_no_layer_and_no_user() -> None:
    gone = replace(other(), state="withdrawn", started_at=None)
    assert notes(definition(salt="birds"), [gone]) == []
    (told,) = notes(definition(excludes=["birds"]), [gone])
    assert told == "excludes: 'birds' was withdrawn as a draft: nobody is in it"


@pytest.mark.parametrize("name", [".", "..", "", "Ships", "a/b", "\udcff", "a" * 65, "\u00fc"])
def test_what_cannot_be_a_name_is_not_asked_for(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"NAME: .* is not 1 to 64 of a-z 0-9 _ -"):
        checked_name(name)


YAML_FAULTS = [
    "name: !!int ''",
    "name: !!timestamp foo",
    "name: !!bool perhaps",
    "name: !!float ''",
    "name: 2026-02-30",
    "name: " + "9" * 5_000,
    "[" * 2_000,
    '"\\ud800": 1',
    '{"name": "\\ud800"}',
]


@pytest.mark.parametrize("text", YAML_FAULTS)
def test_what_is_no_yaml_is_told_with_the_file(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^a\.yaml: "):
        read_definition(text.encode(), "a.yaml")

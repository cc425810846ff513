"""Who is in which arm: the same answer always, evenly, and a ramp only adds."""

from __future__ import annotations

import struct
from collections import Counter
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest

from appliance.experiment.assignment import Assigner
from appliance.store.experiment_records import Arm, Experiment, Options

USERS = [f"user-{number}" for number in range(20_000)]


def experiment(**fields: Any) -> Experiment:
    """Two equal arms with the whole of a layer."""
    given: dict[str, Any] = {
        "name": "a",
        "character": "ada",
        "hypothesis": "h",
        "layer": "ada",
        "salt": "a",
        "range_start": 0.0,
        "range_end": 1.0,
        "coverage": 1.0,
        "excludes": (),
        "overrides": {},
        "options": Options(),
        "arms": (Arm(name="one", share=0.5, version="1"), Arm(name="two", share=0.5, version="2")),
        "state": "running",
        "created_at": datetime.now(UTC),
        **fields,
    }
    return Experiment(**given)


def arms(assigner: Assigner) -> dict[str, str]:
    """The arms of all users who have one."""
    found = ((user, assigner.arm("acme", user)) for user in USERS)
    return {user: arm.name for user, arm in found if arm is not None}


def reference(one: Experiment, tenant: str, user: str) -> str | None:
    """The same by the words of the module's first lines, with exact fractions of 2**64."""

    def place(kind: str, salt: str) -> int:
        pieces = [text.encode() for text in (kind, salt, tenant, user)]
        framed = b"".join(struct.pack("<I", len(piece)) + piece for piece in pieces)
        return int.from_bytes(sha256(framed).digest()[:8], "big")

    end = one.range_start + one.coverage * (one.range_end - one.range_start)
    if not one.range_start * 2**64 <= place("layer", one.layer) < end * 2**64:
        return None
    total = 0.0
    for arm in one.arms:
        total += arm.share
        if place("experiment", one.salt) < total * 2**64:
            return arm.name
    return one.arms[-1].name


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"coverage": 0.3},
        {"range_start": 0.25, "range_end": 0.75, "coverage": 0.5},
        # Shares are numbers of a computer, whose sum may be below 1: the last arm has the rest.
        {"arms": tuple(Arm(name=f"{n}", share=0.25, version="v") for n in range(3))},
        {
            "arms": tuple(
                Arm(name=f"{n}", share=s, version="v") for n, s in enumerate((0.7, 0.1, 0.2))
            )
        },
    ],
)
def test_an_arm_is_what_the_two_salted_hashes_say(fields: dict[str, Any]) -> None:
    one = experiment(**fields)
    assigner = Assigner.of(one)
    for user in USERS[:3000]:
        arm = assigner.arm("acme", user)
        assert (arm and arm.name) == reference(one, "acme", user)
    for tenant in USERS[:300]:
        arm = assigner.arm(tenant, None)
        assert (arm and arm.name) == reference(one, tenant, ""), "the tenant itself is the user"


def test_published_vectors_stay_as_they_are() -> None:
    # Whoever assigns elsewhere holds its code against these.
    assigner = Assigner.of(experiment(coverage=0.5))
    found = [(arm := assigner.arm("acme", f"user-{n}")) and arm.name for n in range(8)]
    assert found == VECTORS


VECTORS = ["one", None, "one", "two", "one", "two", None, "one"]


def test_arms_get_their_shares_and_experiments_do_not_follow_each_other() -> None:
    first, second = (Assigner.of(experiment(salt=salt)) for salt in "ab")
    one, two = arms(first), arms(second)
    pairs = Counter((one[user], two[user]) for user in USERS)
    expected = len(USERS) / 4
    chi_square = sum((count - expected) ** 2 / expected for count in pairs.values())
    assert len(pairs) == 4
    assert chi_square < 16.3, pairs  # p = 0.001 with three degrees of freedom


def test_a_ramp_only_adds_users_and_moves_none() -> None:
    before: dict[str, str] = {}
    for coverage in (0.01, 0.1, 0.5, 0.9, 1.0):
        now = arms(Assigner.of(experiment(coverage=coverage)))
        assert before.items() <= now.items()
        assert len(now) == pytest.approx(coverage * len(USERS), abs=400)
        before = now


def test_nobody_is_in_two_experiments_of_a_layer_and_all_are_in_one_that_fills_it() -> None:
    low = Assigner.of(experiment(range_start=0.0, range_end=0.4))
    high = Assigner.of(experiment(name="b", salt="b", range_start=0.4, range_end=1.0))
    assert not arms(low).keys() & arms(high).keys()
    assert len(arms(low)) + len(arms(high)) == len(USERS)


def test_users_of_an_excluded_experiment_are_left_out_and_others_are_not() -> None:
    inside = arms(Assigner.of(experiment(name="b", salt="b", layer="elsewhere", range_end=0.3)))
    tester = next(user for user in USERS if user not in inside)
    overrides = {f"acme/{tester}": "one"}
    other = Assigner.of(
        experiment(name="b", salt="b", layer="elsewhere", range_end=0.3, overrides=overrides)
    )
    alone = Assigner.of(experiment())
    without = Assigner.of(experiment(), (other,))
    left_out = arms(other)
    assert left_out.keys() == inside.keys() | {tester}, "its testers, too"
    expected = {user: arm for user, arm in arms(alone).items() if user not in left_out}
    assert left_out
    assert arms(without) == expected


def test_a_tester_has_the_arm_that_was_named_whatever_the_coverage() -> None:
    assigner = Assigner.of(experiment(coverage=0.0001, overrides={"acme/mo": "two", "acme": "one"}))
    mo, tenant = assigner.arm("acme", "mo"), assigner.arm("acme", None)
    assert assigner.arm("zeta", "mo") is None, "another tenant's user of the same name"
    assert mo is not None
    assert mo.name == "two"
    assert tenant is not None
    assert tenant.name == "one", "without users the tenant is the user"


def test_pieces_of_a_users_name_cannot_be_taken_for_another_user() -> None:
    assigner = Assigner.of(
        experiment(arms=tuple(Arm(name=f"{n}", share=1 / 16, version="v") for n in range(16)))
    )
    pairs = [((f"t{n}a", "b"), (f"t{n}", "ab")) for n in range(200)]
    same = sum(assigner.arm(*one) == assigner.arm(*two) for one, two in pairs)
    assert same < 40, "as many as by chance, one in sixteen"


def test_the_users_of_a_paused_arm_get_no_other() -> None:
    paused = (
        Arm(name="one", share=0.5, version="1"),
        Arm(name="two", share=0.5, version="2", paused_at=datetime.now(UTC)),
    )
    testing = Assigner.of(experiment(arms=paused, overrides={"acme/mo": "two"}))
    assert testing.arm("acme", "mo") is None, "nor do its testers"
    before, now = arms(Assigner.of(experiment())), arms(Assigner.of(experiment(arms=paused)))
    assert now == {user: arm for user, arm in before.items() if arm == "one"}

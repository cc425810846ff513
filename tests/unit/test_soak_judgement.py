"""What `bench.soak` calls flat, explained, and a leak."""

from __future__ import annotations

import pytest

from appliance.config import KIB, MIB
from bench.survival.samples import Judged, Sample, judge

TURNS = 10_000


def judged(name: str, at: float, a_turn: float) -> Judged:
    """A series that grows by so much with each turn, over two waves with some noise."""
    samples = [
        Sample(wave=turn // (TURNS // 2), turns=turn, values={name: at + a_turn * turn + turn % 3})
        for turn in range(0, TURNS, 100)
    ]
    (found,) = judge(samples, last_wave=1)
    return found


@pytest.mark.parametrize(
    ("name", "at", "a_turn", "is_flat", "passed"),
    [
        ("server memory", 60 * MIB, 0, True, True),
        ("server memory", 60 * MIB, 100, True, True),
        ("server memory", 60 * MIB, 2 * KIB, False, False),
        ("engine memory", 800 * MIB, 8 * KIB, False, False),
        ("server descriptors", 60, 0.01, False, False),
        ("server descriptors", 60, 0.0001, True, True),
        ("engine threads", 7, 0.002, False, False),
        ("engine pages_leased", 0, 0.1, False, False),
        ("database", 30 * MIB, 4 * KIB, False, True),
        ("database", 30 * MIB, 12 * KIB, False, False),
        ("postgres shared", 60 * MIB, 4 * KIB, False, True),
        ("postgres shared", 160 * MIB, 10 * KIB, False, False),
    ],
)
def test_growth_is_found_where_nothing_explains_it(
    name: str, at: float, a_turn: float, is_flat: bool, passed: bool
) -> None:
    found = judged(name, at, a_turn)
    assert (found.is_flat, found.passed) == (is_flat, passed)
    assert found.a_turn == pytest.approx(a_turn, abs=0.01)


def test_one_wave_is_too_short_to_judge() -> None:
    assert judge([Sample(wave=0, turns=1, values={"journal": 1.0})], last_wave=0) == []

"""The cost of a step, learnt from steps whose true cost is known."""

from __future__ import annotations

import random

from appliance.engine.step_cost import StepCost, StepShape

TRUE = (0.02, 0.002, 1e-6, 0.0019, 2e-7)


def cost_of(shape: StepShape) -> float:
    return sum(cost * amount for cost, amount in zip(TRUE, shape.parts, strict=True))


def random_shape(source: random.Random) -> StepShape:
    decodes, context = source.randrange(1, 9), source.randrange(4000)
    tokens = source.choice([0, 0, 0, 16, 40, 64])
    return StepShape(
        decodes=decodes,
        decode_keys=decodes * context,
        prefill_tokens=tokens,
        prefill_keys=tokens * context,
    )


def test_nothing_is_known_before_a_step_and_a_clock_that_stands_teaches_nothing() -> None:
    cost = StepCost()
    cost.observe(StepShape(decodes=1), 0.0)
    assert cost.estimate is None


def test_expectations_come_near_in_spite_of_noise_and_hiccups() -> None:
    source, cost = random.Random(1), StepCost()
    ratios = []
    for step in range(1500):
        shape = random_shape(source)
        if step > 100:
            assert cost.estimate is not None
            ratios.append(cost.estimate.seconds(shape) / cost_of(shape))
        hiccup = 5 if source.random() < 0.01 else 1
        cost.observe(shape, cost_of(shape) * source.uniform(0.9, 1.1) * hiccup)
    assert min(ratios) > 0.8
    assert max(ratios) < 1.3


def test_an_hour_of_decoding_does_not_make_it_forget_what_a_prefill_costs() -> None:
    source, cost = random.Random(2), StepCost()
    for _ in range(200):
        shape = random_shape(source)
        cost.observe(shape, cost_of(shape))
    for _ in range(3000):
        shape = StepShape(decodes=4, decode_keys=4 * 900)
        cost.observe(shape, cost_of(shape) * source.uniform(0.9, 1.1))
    assert cost.estimate is not None
    shape = StepShape(decodes=4, decode_keys=3600, prefill_tokens=64, prefill_keys=64 * 900)
    assert 0.8 < cost.estimate.seconds(shape) / cost_of(shape) < 1.25


def test_the_tokens_that_fit_are_the_most_that_do() -> None:
    source, cost = random.Random(3), StepCost()
    for _ in range(300):
        shape = random_shape(source)
        cost.observe(shape, cost_of(shape))
    estimate = cost.estimate
    assert estimate is not None
    for start in (0, 500, 8000):
        count = estimate.prefill_tokens(0.1, start=start, most=512)
        assert estimate.prefill_seconds(count, start=start) <= 0.1
        assert estimate.prefill_seconds(count + 1, start=start) > 0.1
    assert estimate.prefill_tokens(0.1, start=0, most=5) == 5
    assert estimate.prefill_tokens(0.0, start=0, most=5) == 0


def test_one_hiccup_teaches_little() -> None:
    cost, shape = StepCost(), StepShape(decodes=4, decode_keys=4000)
    for _ in range(20):
        cost.observe(shape, 0.03)
    for _ in range(2):
        cost.observe(shape, 3.0)
        cost.observe(shape, 0.03)
    assert cost.estimate is not None
    assert cost.estimate.seconds(shape) < 0.036
    for _ in range(150):
        cost.observe(shape, 0.12)
    assert 0.11 < cost.estimate.seconds(shape) < 0.13

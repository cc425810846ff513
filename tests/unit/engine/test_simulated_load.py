"""What readers, tenants and batch requests notice of each other, on a simulated machine."""

from __future__ import annotations

from statistics import median

import pytest

from appliance.engine.sequence import State
from appliance.model.decoder import Decoder
from tests.unit.engine.simulation import Simulation


@pytest.mark.parametrize("step_ms_max", [None, 120.0])
def test_a_long_prompt_beside_eight_replies_never_stretches_a_step(
    decoder: Decoder, step_ms_max: float | None
) -> None:
    load = Simulation(decoder, step_ms_max=step_ms_max)
    for _ in range(8):
        load.ask(40, 600)
    load.run(60)
    calm = median(load.decode_seconds()[-20:])
    long = load.ask(4000, 20)
    wait = load.wait_for_first_token(long)
    longest = max(load.decode_seconds())
    assert longest <= 5 * median(load.decode_seconds())
    assert longest <= (3.5 * calm if step_ms_max is None else 1.15 * step_ms_max / 1000)
    # Two thirds of the time went to the prompt: alone it takes 8 steps of 512 tokens.
    alone = 8 * 0.02 + 4000 * 0.0019 + 5e-7 * 4000 * 2000
    assert wait < 1.8 * alone
    load.finish()
    assert load.driver.reason(long) == "length"


def test_a_prompt_progresses_even_when_the_decodes_take_all_the_time_there_is(
    decoder: Decoder,
) -> None:
    load = Simulation(decoder, step_ms_max=1.0)
    for _ in range(4):
        load.ask(20, 100)
    load.run(10)
    long = load.ask(320, 2)
    before = len(load.steps)
    load.wait_for_first_token(long)
    mixed = [took.shape.prefill_tokens for took in load.steps[before:]]
    assert mixed == [16] * 20


def test_where_nobody_reads_steps_end_soon_enough_for_who_comes_next(decoder: Decoder) -> None:
    load = Simulation(decoder, step_ms_max=50.0)
    load.ask(2000, 1)
    load.finish()
    # The first one could not be estimated.
    first, *others = (took.seconds for took in load.steps)
    assert first > 1 > 0.3 > max(others)
    assert median(others) > 0.2
    whole_steps = 4 * 0.02 + 2000 * 0.0019 + 5e-7 * 2000 * 1000
    assert load.steps[-1].at < 1.15 * whole_steps


def test_next_turns_do_not_wait_for_the_long_prompts_of_others(decoder: Decoder) -> None:
    load = Simulation(decoder, running_max=16)
    for _ in range(8):
        load.ask(2800, 48)
    load.run(4)
    waits = [load.wait_for_first_token(load.ask(45, 2)) for _ in range(40)]
    assert len(load.driver.loop.sequences[State.RUNNING]) > 4
    assert median(waits) < 0.5
    assert max(waits) < 1.5
    load.finish()
    assert load.driver.loop.counters.finished == 48


def test_a_long_prompt_has_a_quarter_of_prefill_whatever_else_comes(decoder: Decoder) -> None:
    load = Simulation(decoder, running_max=16)
    long = load.ask(2800, 1)
    load.run(1)
    started = load.steps[-1].at
    for _ in range(1000):
        if load.driver.reply(long):
            break
        # Short ones without end: more than there is time for.
        if len(load.driver.loop.sequences[State.RUNNING]) < 8:
            load.ask(300, 1)
        load.step()
    assert load.driver.reply(long)
    alone = 2800 * 0.0019 + 5e-7 * 2800 * 1400 + 0.02 * 30
    assert load.steps[-1].at - started < 5 * alone


def test_the_estimate_follows_a_machine_that_becomes_four_times_slower(decoder: Decoder) -> None:
    load = Simulation(decoder)
    for _ in range(4):
        load.ask(40, 2000)
    load.run(50)
    load.ask(1500, 5)
    load.run(30)
    load._costs = tuple(4 * cost for cost in load._costs)
    load.run(100)
    slow = len(load.steps)
    load.ask(1500, 5)
    load.run(60)
    seconds = [took.seconds for took in load.steps[slow:]]
    assert max(seconds) <= 5 * median(seconds)


@pytest.mark.parametrize("running_max", [4, 16])
def test_200_requests_of_one_tenant_do_not_delay_a_message_of_another(
    decoder: Decoder, running_max: int
) -> None:
    load = Simulation(decoder, running_max=running_max)
    for _ in range(200):
        load.ask(100, 30, tenant=b"crowd")
    load.run(20)
    assert load.running(b"crowd") == running_max
    wait = load.wait_for_first_token(load.ask(60, 30, tenant=b"guest"))
    last = load.ask(60, 30, tenant=b"crowd")
    crowd_wait = load.wait_for_first_token(last)
    # The guest's prompt fits into a step or two; the crowd waits for its own queue.
    assert wait < 4 * max(load.decode_seconds())
    assert crowd_wait > 20 * wait
    load.finish()
    assert load.driver.loop.counters.finished == 202


def test_long_prompts_of_one_tenant_do_not_hold_up_the_short_ones_of_another(
    decoder: Decoder,
) -> None:
    load = Simulation(decoder, running_max=8)
    for _ in range(100):
        load.ask(100, 40, tenant=b"many")
    for _ in range(30):
        load.ask(1000, 40, tenant=b"long")
    load.run(170)
    assert {s.tenant for s in load.driver.loop.sequences[State.WAITING]} == {b"many", b"long"}
    # Each has half of the places; short prompts go first until as much was computed for them.
    assert load.tokens_of(b"many") > 3 * load.tokens_of(b"long") > 0


def test_an_interactive_message_does_not_wait_for_batch_requests(decoder: Decoder) -> None:
    load = Simulation(decoder, running_max=8, pages=512)
    batch = [load.ask(700, 400, priority="batch") for _ in range(30)]
    load.run(80)
    assert load.running(b"") == 8
    message = load.ask(60, 100)
    wait = load.wait_for_first_token(message)
    assert wait < 4 * max(load.decode_seconds())
    load.finish()
    counters = load.driver.loop.counters
    assert counters.preempted_for_others > 0
    assert [load.driver.reason(r) for r in (message, *batch)] == ["length"] * 31
    assert all(len(load.driver.reply(r)) == 400 for r in batch)


def test_no_batch_request_is_admitted_while_an_interactive_one_waits(decoder: Decoder) -> None:
    load = Simulation(decoder, running_max=2)
    batch = load.ask(50, 10, priority="batch", tenant=b"batch")
    load.step()
    assert load.running(b"batch") == 1
    waiting = [load.ask(50, 30) for _ in range(5)]
    load.step()
    while load.driver.loop.stats()["waiting_interactive"] > 0:
        assert load.running(b"batch") == 0
        assert load.driver.loop.stats()["oldest_wait_s_batch"] > 0
        load.step()
    load.finish()
    assert [load.driver.reason(r) for r in waiting] == ["length"] * 5
    assert load.driver.reason(batch) == "length"

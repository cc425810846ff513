"""What one loop promises: events, closing, cancelling, order, preemption. Real model and index."""

from __future__ import annotations

import pytest

from appliance import tokens
from appliance.engine.loop import EngineLoop
from appliance.engine.sequence import State
from appliance.errors import ShuttingDown
from appliance.model.decoder import Decoder
from appliance.wire.frames import Admitted, Finished, Sampling, Tokens
from tests.unit.engine.driver import GREEDY, Driver


def prompt(seed: int, count: int, vocab: int = 64) -> list[int]:
    """Ids that look random and differ between seeds."""
    return [
        (seed * 7919 + place * place * 31 + place * 17) % (vocab - 1) + 1 for place in range(count)
    ]


def cached_tokens(driver: Driver, token_ids: list[int], namespace: bytes = b"tenant") -> int:
    """How many leading tokens the index holds, asked of the index itself."""
    full = driver.decoder.fingerprint.encode() + namespace
    lease = driver.index.admit(
        tokens.pack([*token_ids, 0]), [(full, len(token_ids) + 1)], len(token_ids) + 1
    )
    assert lease is not None
    hit = lease.hit_tokens
    lease.release()
    return hit


def test_a_request_is_admitted_streamed_and_finished_in_this_order(decoder: Decoder) -> None:
    driver = Driver(decoder)
    request_id = driver.run(prompt(1, 20), new_tokens_max=5)
    kinds = [type(event) for event in driver.events[request_id]]
    assert kinds == [Admitted, *[Tokens] * 5, Finished]
    finished = driver.finished(request_id)
    assert finished is not None
    assert (finished.reason, finished.new_tokens) == ("length", 5)
    driver.compare_with_recomputation(request_id)


def test_a_stop_token_ends_the_reply_and_is_not_part_of_it(decoder: Decoder) -> None:
    driver = Driver(decoder)
    reply = driver.reply(driver.run(prompt(1, 20), new_tokens_max=12))
    stop = reply[6]
    again = driver.run(prompt(1, 20), new_tokens_max=12, stop=[stop])
    assert driver.reply(again) == reply[: reply.index(stop)]
    assert driver.reason(again) == "stop"


def test_after_a_turn_every_role_of_it_is_in_the_index(decoder: Decoder) -> None:
    """The story's bug: computed user messages were not put into the index."""
    driver = Driver(decoder)
    history: list[int] = []
    for turn, ends_by_stop in enumerate([False, True, False, True]):
        user = prompt(10 + turn, 11 + 5 * turn)
        closing = prompt(90, 3)
        stop: list[int] = []
        if ends_by_stop:
            cold = Driver(decoder)
            reply = cold.reply(cold.run(history + user, new_tokens_max=9))
            stop = [reply[5]]
        request_id = driver.run(history + user, new_tokens_max=9, stop=stop, closing=closing)
        assert driver.reason(request_id) == ("stop" if ends_by_stop else "length")
        # All but the new message came from the cache, whatever the turn before ended by.
        assert driver.hit(request_id) == len(history)
        reply = driver.reply(request_id)
        parts = {"history": history, "user": user, "assistant": reply, "closing": closing}
        path: list[int] = []
        coverage: dict[str, tuple[int, int]] = {}
        for role, part in parts.items():
            covered = cached_tokens(driver, path + part) - len(path)
            path = path + part
            coverage[role] = (covered, len(part))
        assert all(covered == total for covered, total in coverage.values()), coverage
        history = path


def test_the_next_turn_sent_at_once_finds_the_whole_previous_one(decoder: Decoder) -> None:
    driver = Driver(decoder)
    first = driver.submit(prompt(1, 21), new_tokens_max=6, closing=[5, 6, 7])
    while driver.finished(first) is None:
        driver.step()
    assert driver.count(State.CLOSING) == 1
    history = prompt(1, 21) + driver.reply(first) + [5, 6, 7]
    second = driver.submit(history + prompt(2, 9))
    driver.finish()
    assert driver.hit(second) == len(history)
    driver.compare_with_recomputation(second)


def test_a_closing_reply_keeps_a_request_back_for_one_step_at_most(decoder: Decoder) -> None:
    driver = Driver(decoder, running_max=8)
    # In every step some reply ends.
    for length in range(1, 7):
        driver.submit(prompt(length, 4), new_tokens_max=length, closing=[9])
    driver.step()
    driver.step()
    waited = driver.submit(prompt(50, 5))
    driver.step()
    assert driver.admitted(waited) is None
    driver.step()
    assert driver.admitted(waited) is not None


def test_cancelling_a_running_request_frees_its_pages_within_the_step(decoder: Decoder) -> None:
    driver = Driver(decoder)
    request_id = driver.submit(prompt(3, 30), new_tokens_max=50)
    for _ in range(8):
        driver.step()
    reply = driver.reply(request_id)
    assert len(reply) == 8
    driver.cancel(request_id, keep_tokens=3)
    assert driver.index.stats()["pages_leased"] == 0
    assert driver.loop.is_idle
    assert driver.reason(request_id) == "cancelled"
    # Exactly what was kept is found again, and nothing after it.
    assert cached_tokens(driver, prompt(3, 30) + reply) == 33


def test_a_cancel_keeps_no_token_whose_attention_was_never_computed(decoder: Decoder) -> None:
    driver = Driver(decoder)
    request_id = driver.submit(prompt(3, 30), new_tokens_max=50)
    for _ in range(4):
        driver.step()
    reply = driver.reply(request_id)
    driver.cancel(request_id, keep_tokens=1000)
    assert cached_tokens(driver, prompt(3, 30) + reply) == 30 + len(reply) - 1
    again = driver.run(prompt(3, 30) + reply)
    driver.compare_with_recomputation(again)


def test_a_cancel_in_the_middle_of_prefill_keeps_the_chunks_that_were_computed(
    decoder: Decoder,
) -> None:
    driver = Driver(decoder, step_tokens_max=24)
    request_id = driver.submit(prompt(3, 100))
    driver.step()
    driver.step()
    driver.cancel(request_id, keep_tokens=0)
    assert driver.reason(request_id) == "cancelled"
    assert cached_tokens(driver, prompt(3, 100)) == 48
    again = driver.run(prompt(3, 100))
    assert driver.hit(again) == 48
    driver.compare_with_recomputation(again)


def test_double_unknown_and_late_cancels_change_nothing(decoder: Decoder) -> None:
    driver = Driver(decoder)
    request_id = driver.submit(prompt(4, 10), closing=[3, 4])
    driver.step()
    driver.cancel("nobody", keep_tokens=1)
    driver.cancel(request_id, keep_tokens=1, connection=77)
    assert driver.finished(request_id) is None
    driver.cancel(request_id, keep_tokens=1)
    driver.cancel(request_id, keep_tokens=0)
    assert driver.reason(request_id) == "cancelled"
    late = driver.submit(prompt(4, 10), new_tokens_max=2, closing=[3, 4])
    while driver.finished(late) is None:
        driver.step()
    assert driver.count(State.CLOSING) == 1
    driver.cancel(late, keep_tokens=0)
    driver.finish()
    assert driver.reason(late) == "length"
    assert cached_tokens(driver, prompt(4, 10) + driver.reply(late) + [3, 4]) == 14


def test_requests_cancelled_in_the_queue_are_never_prefilled(decoder: Decoder) -> None:
    """Case S02: R1 runs, R2 to R4 are abandoned while queued, R5 comes right after R1."""
    driver = Driver(decoder, running_max=1)
    first = driver.submit(prompt(1, 5), new_tokens_max=30)
    driver.step()
    abandoned = [driver.submit(prompt(i, 5), new_tokens_max=30) for i in (2, 3, 4)]
    driver.step()
    for request_id in abandoned:
        driver.cancel(request_id, keep_tokens=0)
    last = driver.submit(prompt(5, 5), new_tokens_max=30)
    computed_before = driver.index.stats()["committed_tokens"]
    while driver.finished(first) is None:
        driver.step()
    assert driver.admitted(last) is None
    driver.step()
    assert driver.admitted(last) is not None, "R5 starts right after R1"
    driver.finish()
    started = [r for r in (first, *abandoned, last) if driver.admitted(r) is not None]
    assert started == [first, last]
    assert [driver.reason(r) for r in abandoned] == ["cancelled"] * 3
    assert [driver.events[r] for r in abandoned] == [[driver.finished(r)] for r in abandoned]
    for request_id in abandoned:
        prompt_ids = list(tokens.unpack(driver.requests[request_id].token_ids))
        assert cached_tokens(driver, prompt_ids) == 0
    assert driver.index.stats()["committed_tokens"] - computed_before <= 30 + 35


def test_a_lost_connection_cancels_its_own_requests_only(decoder: Decoder) -> None:
    driver = Driver(decoder, running_max=2)
    mine = [driver.submit(prompt(i, 9), connection=1) for i in (1, 2)]
    theirs = driver.submit(prompt(3, 9), connection=2)
    driver.step()
    driver.step()
    driver.loop.disconnect(1)
    driver.check()
    driver.finish()
    assert [driver.reason(r) for r in mine] == ["cancelled", "cancelled"]
    assert driver.reason(theirs) == "length"
    driver.compare_with_recomputation(theirs)


def test_a_request_id_in_use_is_refused_and_the_first_goes_on(decoder: Decoder) -> None:
    driver = Driver(decoder)
    driver.submit(prompt(1, 9), request_id="same")
    driver.step()
    before = list(driver.events["same"])
    driver.submit(prompt(2, 9), request_id="same")
    refusal = driver.events["same"].pop()
    assert isinstance(refusal, Finished)
    assert (refusal.reason, refusal.error_code) == ("failed", "invalid_request")
    assert driver.events["same"] == before
    driver.finish()
    assert driver.reason("same") == "length"
    # Another connection may use the id at the same time, and anyone after it is finished.
    driver.events.clear()
    assert driver.reason(driver.run(prompt(2, 9), request_id="same")) == "length"


def test_a_full_queue_refuses_with_overloaded(decoder: Decoder) -> None:
    driver = Driver(decoder, running_max=1, waiting_max=2)
    running = driver.submit(prompt(1, 5))
    driver.step()
    queued = [driver.submit(prompt(i, 5)) for i in (2, 3)]
    refused = driver.submit(prompt(4, 5))
    finished = driver.finished(refused)
    assert finished is not None
    assert (finished.reason, finished.error_code) == ("failed", "overloaded")
    driver.finish()
    assert [driver.reason(r) for r in (running, *queued)] == ["length"] * 3


def test_invalid_requests_fail_alone_with_the_code(decoder: Decoder) -> None:
    driver = Driver(decoder, pages=8)
    good = driver.submit(prompt(1, 9))
    long = driver.submit(prompt(2, 100), new_tokens_max=100)
    biased = driver.submit(
        prompt(3, 9), sampling=Sampling(logit_bias={decoder.config.vocab_size: 1.0})
    )
    driver.finish()
    codes = {r: driver.events[r][-1].error_code for r in (good, long, biased)}  # type: ignore[attr-defined]
    assert codes == {good: None, long: "context_length_exceeded", biased: "invalid_request"}
    assert len(driver.events[long]) == len(driver.events[biased]) == 1


def test_preempted_requests_resume_with_the_same_output_and_are_announced_once(
    decoder: Decoder,
) -> None:
    roomy = Driver(decoder, pages=64)
    tight = Driver(decoder, pages=14, running_max=4)
    replies = []
    for driver in (roomy, tight):
        ids = [driver.submit(prompt(i, 20), new_tokens_max=120) for i in range(4)]
        driver.finish()
        replies.append([driver.reply(r) for r in ids])
        for request_id in ids:
            assert driver.reason(request_id) == "length"
            driver.compare_with_recomputation(request_id)
    assert replies[0] == replies[1]
    counters = tight.loop.counters
    assert roomy.loop.counters.preempted == 0
    assert counters.preempted > 0
    assert counters.admitted == 4
    assert counters.prompt_tokens == 80
    # Resuming finds one's own tokens: that is no hit of a prompt.
    assert counters.prefix_hit_tokens == 0
    assert counters.new_tokens == 480


def test_the_youngest_gives_way_and_the_oldest_is_never_preempted(decoder: Decoder) -> None:
    driver = Driver(decoder, pages=14, running_max=4)
    ids = [driver.submit(prompt(i, 20), new_tokens_max=120) for i in range(4)]
    ends: list[str] = []
    while not driver.loop.is_idle:
        driver.step()
        running = driver.loop.sequences[State.RUNNING]
        waiting = driver.loop.sequences[State.WAITING]
        if running and waiting:
            assert max(s.ordinal for s in running) < max(s.ordinal for s in waiting)
        ends += [r for r in ids if driver.finished(r) is not None and r not in ends]
    assert ends == ids
    assert driver.loop.counters.preempted > 0


def test_seeded_sampling_does_not_depend_on_the_batch_or_on_preemption(decoder: Decoder) -> None:
    sampling = Sampling(temperature=1.3, top_p=0.95, seed=42, presence_penalty=0.4)
    alone = Driver(decoder)
    expected = alone.reply(alone.run(prompt(7, 20), new_tokens_max=60, sampling=sampling))
    other = alone.reply(
        alone.run(
            prompt(7, 20),
            new_tokens_max=60,
            sampling=Sampling(temperature=1.3, top_p=0.95, seed=43, presence_penalty=0.4),
        )
    )
    assert other != expected
    crowded = Driver(decoder, pages=14, running_max=4)
    for i in range(2):
        crowded.submit(prompt(i, 20), new_tokens_max=120, sampling=Sampling())
    watched = crowded.submit(prompt(7, 20), new_tokens_max=60, sampling=sampling)
    crowded.finish()
    assert crowded.loop.counters.preempted > 0
    assert crowded.reply(watched) == expected


def test_a_biased_request_does_not_change_another_in_the_same_batch(decoder: Decoder) -> None:
    """Case S18: a bias of 100 forces a token, -100 on the stop token runs to the length."""
    alone = Driver(decoder)
    expected = alone.reply(alone.run(prompt(1, 9)))
    driver = Driver(decoder)
    plain = driver.submit(prompt(1, 9))
    forced = driver.submit(
        prompt(2, 9), new_tokens_max=3, sampling=Sampling(temperature=0, logit_bias={17: 100.0})
    )
    endless = driver.submit(
        prompt(1, 9),
        stop=[expected[2]],
        sampling=Sampling(temperature=0, logit_bias={expected[2]: -100.0}),
    )
    driver.finish()
    assert driver.reply(plain) == expected
    assert driver.reply(forced) == [17, 17, 17]
    assert driver.reason(endless) == "length"


def test_requests_share_a_prompt_as_soon_as_it_is_computed(decoder: Decoder) -> None:
    driver = Driver(decoder)
    driver.submit(prompt(1, 40), new_tokens_max=50)
    driver.step()
    second = driver.submit(prompt(1, 40) + prompt(2, 5))
    driver.step()
    assert driver.hit(second) == 40
    driver.finish()
    driver.compare_with_recomputation(second)


def test_private_tokens_of_one_tenant_are_never_found_by_another(decoder: Decoder) -> None:
    driver = Driver(decoder)
    system, user = prompt(1, 32), prompt(2, 16)
    driver.run(system + user, stretches=[(b"public", 32), (b"a", 16)])
    stranger = driver.run(system + user, stretches=[(b"public", 32), (b"b", 16)])
    friend = driver.run(system + user + [5], stretches=[(b"public", 32), (b"a", 17)])
    assert driver.hit(stranger) == 32
    assert driver.hit(friend) == 48


def test_a_drain_refuses_what_waits_and_lets_the_rest_finish(decoder: Decoder) -> None:
    driver = Driver(decoder, running_max=1)
    running = driver.submit(prompt(1, 5))
    driver.step()
    waiting = driver.submit(prompt(2, 5))
    driver.loop.refuse_waiting()
    driver.finish()
    refused = driver.finished(waiting)
    assert refused is not None
    assert (refused.reason, refused.error_code) == ("failed", "server_shutdown")
    assert driver.reason(running) == "length"


def test_failing_all_leaves_one_terminal_event_each_and_no_page(decoder: Decoder) -> None:
    driver = Driver(decoder, running_max=2)
    ids = [driver.submit(prompt(i, 20), closing=[3]) for i in range(4)]
    driver.step()
    driver.loop.fail_all(ShuttingDown("the engine is shutting down"))
    driver.finish()
    assert [driver.reason(r) for r in ids] == ["failed"] * 4
    assert driver.index.stats()["pages_leased"] == 0


def test_log_probabilities_come_with_each_token(decoder: Decoder) -> None:
    driver = Driver(decoder)
    request_id = driver.run(prompt(1, 9), sampling=Sampling(temperature=0, logprobs=3))
    entries = driver.logprobs(request_id)
    assert [entry.token_id for entry in entries] == driver.reply(request_id)
    assert all(len(entry.top) == 3 for entry in entries)
    driver.compare_with_recomputation(request_id)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5)])
def test_a_context_can_be_filled_to_its_last_token(decoder: Decoder, sampling: Sampling) -> None:
    driver = Driver(decoder, pages=4, context_tokens_max=64)
    request_id = driver.run(prompt(1, 40), new_tokens_max=24, sampling=sampling, closing=[1, 2])
    assert len(driver.reply(request_id)) == 24
    assert driver.reason(request_id) == "length"
    loop: EngineLoop = driver.loop
    assert loop.counters.preempted == 0


def test_a_history_is_kept_only_for_penalties(decoder: Decoder) -> None:
    driver = Driver(decoder)
    plain = driver.submit([5, 6, 7])
    penal = driver.submit([5, 6, 8], sampling=Sampling(presence_penalty=1.0))
    driver.step()
    histories = {s.key[1]: s.history for s in driver.loop.sequences[State.RUNNING]}
    assert histories[plain] is None
    history = histories[penal]
    assert history is not None
    (sampled,) = driver.reply(penal)
    assert set(history.seen.nonzero().flatten().tolist()) == {5, 6, 8, sampled}
    assert history.counts.nonzero().flatten().tolist() == [sampled]
    assert history.counts.sum() == 1

"""Cached = recomputed: a loop over a real index and model against forward passes without any cache."""

from __future__ import annotations

import random

import msgspec
import pytest

from appliance import tokens
from appliance.engine.sequence import State
from appliance.model.decoder import Decoder
from appliance.wire.frames import Node, Sampling
from tests.engine_fixtures import decoder, model_directory
from tests.unit.engine.driver import TOLERANCE, Driver

__all__ = ["decoder", "model_directory"]

CLOSING = [2, 13]


def ids(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 260) for _ in range(count)]


def assert_same_output(driver: Driver, first: str, second: str) -> None:
    assert driver.reply(first) == driver.reply(second)
    for one, other in zip(driver.logprobs(first), driver.logprobs(second), strict=True):
        assert abs(one.logprob - other.logprob) < TOLERANCE
        values, others = dict(one.top), dict(other.top)
        assert all(abs(values[t] - others[t]) < TOLERANCE for t in values.keys() & others.keys())


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 64])
def test_the_same_prompt_again_and_after_eviction_gives_the_same_output(
    decoder: Decoder, length: int
) -> None:
    """Case C04."""
    driver = Driver(decoder, pages=12)
    prompt = ids(length, length)
    sampling = Sampling(temperature=0.0, logprobs=3)
    runs = [driver.run(prompt, sampling=sampling) for _ in range(2)]
    # A request that needs every page evicts at least the last page of the prompt.
    driver.run(ids(99, 150), new_tokens_max=42)
    runs.append(driver.run(prompt, sampling=sampling))
    assert driver.hit(runs[0]) == 0
    assert driver.hit(runs[1]) == length - 1
    assert driver.hit(runs[2]) < max(length - 1, 1)
    for run in runs:
        assert driver.reason(run) == "length"
        assert_same_output(driver, runs[0], run)
        driver.compare_with_recomputation(run)


def test_every_length_repeats_exactly_with_at_least_one_token_computed(decoder: Decoder) -> None:
    for length in range(1, 65):
        driver = Driver(decoder, pages=16)
        prompt = ids(length, length)
        first, second = driver.run(prompt), driver.run(prompt)
        assert driver.hit(second) == length - 1
        assert_same_output(driver, first, second)
        driver.compare_with_recomputation(second)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_append_repeat_branch_and_edit_equal_a_recomputation(
    decoder: Decoder, page_size: int
) -> None:
    driver = Driver(decoder, pages=1024 // page_size, page_size=page_size)
    opening = ids(1, 37)
    first = driver.run(opening, closing=CLOSING)
    turn = opening + driver.reply(first) + CLOSING
    appended = driver.run(turn + ids(2, 11))
    assert driver.hit(appended) == len(turn)
    repeated = driver.run(turn + ids(2, 11))
    assert driver.hit(repeated) == len(turn) + 10
    branched = driver.run(turn + ids(3, 7))
    assert driver.hit(branched) == len(turn)
    edited = driver.run(opening[:20] + ids(4, 25))
    assert driver.hit(edited) == 20
    swiped = driver.run(opening, sampling=Sampling(seed=4, temperature=1.5))
    assert driver.hit(swiped) == len(opening) - 1
    again = driver.run(opening)
    assert_same_output(driver, first, again)
    for run in (first, appended, repeated, branched, edited, again):
        driver.compare_with_recomputation(run)
    driver.index.clear()
    fresh = driver.run(turn + ids(2, 11))
    assert driver.hit(fresh) == 0
    assert_same_output(driver, appended, fresh)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_a_turn_that_goes_on_from_its_node_equals_the_whole_prompt(
    decoder: Decoder, page_size: int
) -> None:
    driver = Driver(decoder, pages=1024 // page_size, page_size=page_size)
    prompt = ids(1, 37)
    after: Node | None = None
    for turn in range(6):
        run = driver.run(prompt, after=after, closing=CLOSING)
        node = driver.node(run)
        if after is not None:
            assert driver.hit(run) == after.tokens
            assert len(driver.requests[run].token_ids) == 4 * (len(prompt) - after.tokens)
        driver.compare_with_recomputation(run)
        path = prompt + driver.reply(run) + CLOSING
        assert node.tokens == len(path)
        prompt, after = path + ids(turn, 11), node
    whole = driver.run(path)
    assert driver.hit(whole) == len(path) - 1


def test_two_turns_may_go_on_from_one_node_at_once(decoder: Decoder) -> None:
    driver = Driver(decoder)
    first = driver.run(ids(1, 37), closing=CLOSING)
    path = ids(1, 37) + driver.reply(first) + CLOSING
    runs = [driver.submit(path + ids(turn, 9), after=driver.node(first)) for turn in range(2)]
    driver.finish()
    for run in runs:
        assert driver.hit(run) == len(path)
        driver.compare_with_recomputation(run)


def test_a_penalty_sees_the_tokens_before_the_node(decoder: Decoder) -> None:
    driver = Driver(decoder)
    first = driver.run(ids(1, 37), closing=CLOSING)
    prompt = ids(1, 37) + driver.reply(first) + CLOSING + ids(2, 5)
    penal = Sampling(temperature=0.0, repetition_penalty=1.9)
    onward = driver.run(prompt, after=driver.node(first), sampling=penal)
    assert driver.reply(onward) == driver.reply(driver.run(prompt, sampling=penal))


def test_a_node_that_was_evicted_or_never_was_is_refused_by_its_code(decoder: Decoder) -> None:
    driver = Driver(decoder)
    first = driver.run(ids(1, 37), closing=CLOSING)
    node = driver.node(first)
    prompt = ids(1, 37) + driver.reply(first) + CLOSING + ids(2, 5)
    for wrong in (
        msgspec.structs.replace(node, instance="another"),
        msgspec.structs.replace(node, number=node.number + 1000),
        msgspec.structs.replace(node, tokens=node.tokens - 1),
    ):
        assert_unknown(driver, driver.run(prompt, after=wrong))
    driver.index.clear()
    assert_unknown(driver, driver.run(prompt, after=node))
    driver.compare_with_recomputation(driver.run(prompt))
    assert_nothing_is_held(driver)


def assert_unknown(driver: Driver, run: str) -> None:
    finished = driver.finished(run)
    assert finished is not None
    assert (finished.reason, finished.error_code) == ("failed", "unknown_node")
    assert driver.admitted(run) is None


class Chats:
    """Random conversations: what a user may do, while everything runs at once."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.driver = driver
        self.random = random.Random(seed)
        self.nodes: list[Node | None] = [None] * 3
        self.went_on = 0
        self.histories: list[list[int]] = [ids(seed * 100 + i, 5 + 9 * i) for i in range(3)]
        self.live: dict[str, tuple[int, list[int]]] = {}
        self.compared: list[str] = []
        self.started = 0

    def play(self, actions: int) -> None:
        """Act so often, then let everything end."""
        for _ in range(actions):
            self.act()
        while self.live:
            self.driver.finish()
            for request_id in list(self.live):
                self.end(request_id)

    def act(self) -> None:
        choice = self.random.random()
        if choice < 0.15 and len(self.live) < 8:
            self.start()
        elif choice < 0.17 and self.live:
            request_id = self.random.choice(list(self.live))
            self.driver.cancel(request_id, self.random.randrange(-1, 120))
            if self.random.random() < 0.3:
                self.driver.cancel(request_id, 0)
        elif choice < 0.173:
            self.driver.loop.disconnect(self.random.randrange(2))
            self.driver.check()
        elif choice < 0.18:
            self.driver.index.clear()
        else:
            self.driver.step()
        for request_id in [r for r in self.live if self.driver.finished(r) is not None]:
            self.end(request_id)

    def start(self) -> None:
        chat = self.random.randrange(len(self.histories))
        history = self.histories[chat]
        keep = self.random.randrange(len(history) // 2, len(history) + 1)
        kind = self.random.choice(["append", "swipe", "edit", "append"])
        prompt = list(history[:keep] if kind == "edit" else history)
        if kind != "swipe":
            prompt += ids(self.random.randrange(10**6), self.random.randrange(1, 25))
        after = self.nodes[chat] if kind == "append" and self.random.random() < 0.7 else None
        if len(prompt) > 90:
            prompt, after = prompt[:30], None
        self.submit(chat, prompt, after)

    def submit(self, chat: int, prompt: list[int], after: Node | None) -> None:
        request_id = self.driver.submit(
            prompt,
            after=after,
            conversation=b"%d" % chat,
            new_tokens_max=self.random.choice([3, 20, 130]),
            closing=CLOSING[: self.random.randrange(3)],
            namespace=b"tenant%d" % (chat % 2),
            connection=self.random.randrange(2),
        )
        self.started += 1
        self.live[request_id] = (chat, prompt)

    def end(self, request_id: str) -> None:
        chat, prompt = self.live.pop(request_id)
        request = self.driver.requests[request_id]
        reply = self.driver.reply(request_id)
        finished = self.driver.finished(request_id)
        assert finished is not None
        if finished.error_code == "unknown_node":
            self.started -= 1
            self.submit(chat, prompt, None)
            return
        self.went_on += request.after is not None
        self.compared.append(request_id)
        path = prompt + reply + list(tokens.unpack(request.closing))
        if finished.reason == "length":
            assert finished.node is not None
            assert finished.node.tokens == len(path)
            self.histories[chat], self.nodes[chat] = path, finished.node
        elif self.random.random() < 0.5:
            kept = prompt + reply[: self.random.randrange(len(reply) + 1)]
            self.histories[chat], self.nodes[chat] = kept, None
        elif finished.node is not None:
            assert finished.node.tokens <= len(prompt + reply)
            self.histories[chat] = path[: finished.node.tokens]
            self.nodes[chat] = finished.node


@pytest.mark.parametrize("seed", range(4))
def test_random_chats_with_room_go_on_from_their_nodes(decoder: Decoder, seed: int) -> None:
    driver = Driver(decoder, pages=60, running_max=4, step_tokens_max=48)
    chats = Chats(driver, seed)
    chats.play(600)
    assert chats.went_on > 2
    for request_id in chats.compared:
        driver.compare_with_recomputation(request_id)
    assert_nothing_is_held(driver)


@pytest.mark.parametrize("seed", range(1, 7))
def test_random_chats_under_page_pressure_equal_recomputations(decoder: Decoder, seed: int) -> None:
    # 14 pages of 16 hold one context of 224 tokens; up to four sequences want to run.
    driver = Driver(decoder, pages=14, running_max=4, step_tokens_max=48)
    chats = Chats(driver, seed)
    chats.play(800)
    assert len(chats.compared) == chats.started
    for request_id in chats.compared:
        assert driver.reason(request_id) in ("length", "cancelled")
        driver.compare_with_recomputation(request_id)
    counters = driver.loop.counters
    lost = counters.unknown_node
    assert chats.went_on + lost > 0
    assert counters.preempted > 0
    assert counters.prefix_hit_tokens > 0
    assert counters.finished + counters.cancelled == chats.started
    assert counters.submitted == chats.started + lost
    assert_nothing_is_held(driver)


def assert_nothing_is_held(driver: Driver) -> None:
    assert all(not members for members in driver.loop.sequences.values())
    pages = driver.index.stats()
    assert pages["pages_leased"] == 0
    assert pages["pages_free"] + pages["pages_cached"] == pages["pages_total"]
    assert pages["pages_evictable"] == pages["pages_cached"]


def test_aborts_in_every_stage_leave_every_page_for_the_next_request(decoder: Decoder) -> None:
    """Case C07, the engine's part of it."""
    driver = Driver(decoder, pages=15, running_max=6, waiting_max=10, step_tokens_max=16)
    source = random.Random(7)
    shared = ids(0, 60)
    stages: dict[str, int] = {}
    live: list[str] = []
    submitted = 0
    for _ in range(1600):
        if submitted < 300 and len(live) < 12 and source.random() < 0.3:
            prompt = (shared if source.random() < 0.5 else []) + ids(
                source.randrange(10**6), source.randrange(1, 60)
            )
            impossible = source.random() < 0.1
            live.append(
                driver.submit(
                    prompt,
                    new_tokens_max=10_000 if impossible else source.choice([5, 110, 110]),
                    closing=CLOSING,
                )
            )
            submitted += 1
        if live and source.random() < 0.06:
            by_stage: dict[str, list[str]] = {}
            for request_id in live:
                by_stage.setdefault(stage_of(driver, request_id), []).append(request_id)
            # Rare stages are as likely as common ones.
            stage = source.choice(sorted(by_stage))
            stages[stage] = stages.get(stage, 0) + 1
            request_id = source.choice(by_stage[stage])
            live.remove(request_id)
            for _ in range(source.choice([1, 2])):
                driver.cancel(request_id, source.randrange(-1, 70))
        driver.step()
    driver.finish()
    assert stages.keys() == {"queued", "mid prefill", "mid decode", "preempted", "ended"}
    for request_id in driver.requests:
        assert driver.finished(request_id) is not None
    assert_nothing_is_held(driver)
    whole = driver.run(ids(12345, 200), new_tokens_max=40)
    assert driver.reason(whole) == "length"
    assert driver.index.stats()["evicted_pages"] > 0
    driver.compare_with_recomputation(whole)
    assert_nothing_is_held(driver)


def stage_of(driver: Driver, request_id: str) -> str:
    for state, members in driver.loop.sequences.items():
        for sequence in members:
            if sequence.key[1] != request_id or state is State.CLOSING:
                continue
            if state is State.WAITING:
                return "queued" if sequence.lost_tokens is None else "preempted"
            return "mid prefill" if sequence.new_tokens == 0 else "mid decode"
    return "ended"


def test_a_request_for_every_page_runs_while_its_own_prefix_is_cached_in_part(
    decoder: Decoder,
) -> None:
    """The copy of a partial page needs its source besides the target: one page too many."""
    driver = Driver(decoder, pages=8)
    prompt = ids(5, 70)
    driver.run(prompt, new_tokens_max=3)
    whole = driver.run(prompt, new_tokens_max=128 - 70)
    assert driver.reason(whole) == "length"
    assert driver.hit(whole) == 64
    driver.compare_with_recomputation(whole)

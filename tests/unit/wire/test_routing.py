"""Routing: keys stay at their engine, only those of a lost engine move, full queues are passed over."""

from __future__ import annotations

from collections import Counter

import msgspec

from appliance import tokens
from appliance.wire.frames import Generate, Sampling
from appliance.wire.routing import EngineLoad, preference, route, route_key

KEYS = [f"conversation:{number}".encode() for number in range(3000)]


def load(number: int, *, is_up: bool = True, waiting: int = 0) -> EngineLoad:
    return EngineLoad(name=f"engine-{number}", is_up=is_up, waiting=waiting, waiting_max=4)


def chosen(key: bytes, engines: list[EngineLoad]) -> str:
    found = route(key, engines)
    assert found is not None
    return found.name


def test_keys_spread_evenly_and_only_those_of_an_engine_that_is_down_move() -> None:
    up = [load(0), load(1), load(2)]
    before = {key: chosen(key, up) for key in KEYS}
    assert all(800 < count < 1200 for count in Counter(before.values()).values())
    after = {key: chosen(key, [load(0), load(1, is_up=False), load(2)]) for key in KEYS}
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == "engine-1"}
    assert 380 < sum(after[key] == "engine-0" for key in moved) < 620


def test_an_engine_whose_queue_is_full_is_passed_over_until_all_are() -> None:
    own, other = preference(b"k", [load(0), load(1)])
    full = changed(own, waiting=4)
    assert route(b"k", [full, other]) == other
    both = [full, changed(other, waiting=4)]
    assert route(b"k", both) == full
    assert route(b"k", [changed(full, is_up=False), both[1]]) == both[1]
    assert route(b"k", [load(0, is_up=False)]) is None


def changed(engine: EngineLoad, *, waiting: int = 0, is_up: bool = True) -> EngineLoad:
    return EngineLoad(name=engine.name, is_up=is_up, waiting=waiting, waiting_max=4)


def prompt(stretches: list[tuple[bytes, int]], ids: list[int]) -> Generate:
    return Generate(
        request_id="r",
        token_ids=tokens.pack(ids),
        stretches=stretches,
        sampling=Sampling(),
        new_tokens_max=1,
        stop_token_ids=[],
    )


def key_of(request: Generate) -> bytes:
    return route_key(request, page_size=4, public=b"public")


def test_a_stateless_call_keeps_its_key_when_its_prompt_grows_behind_the_first_private_page() -> (
    None
):
    first = prompt([(b"public", 5), (b"t", 6)], list(range(11)))
    later = prompt([(b"public", 5), (b"t", 9)], list(range(14)))
    assert key_of(first) == key_of(later)
    other_tenant = prompt([(b"public", 5), (b"u", 6)], list(range(11)))
    other_page = prompt([(b"public", 5), (b"t", 6)], [*range(7), 99, 8, 9, 10])
    other_tail = prompt([(b"public", 5), (b"t", 6)], [*range(8), 99, 9, 10])
    assert len({key_of(first), key_of(other_tenant), key_of(other_page)}) == 3
    assert key_of(first) == key_of(other_tail)
    assert key_of(prompt([(b"public", 6)], list(range(6)))) != key_of(first)


def test_a_conversation_is_its_own_key_whatever_is_sent() -> None:
    first = msgspec.structs.replace(prompt([(b"t", 2)], [1, 2]), conversation=b"c")
    later = msgspec.structs.replace(prompt([(b"t", 3)], [7, 8, 9]), conversation=b"c")
    assert key_of(first) == key_of(later)

"""`_core.PrefixIndex` and `_core.Lease` as Python sees them."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable

import pytest

from appliance import _core
from appliance.tokens import pack, unpack

PUBLIC, ALICE, BOB = b"public", b"tenant alice", b"tenant bob"


def serve(index: _core.PrefixIndex, tokens: list[int], *stretches: tuple[bytes, int]) -> int:
    """One request from beginning to end; returns its hit tokens."""
    lease = index.admit(pack(tokens), stretches or [(ALICE, len(tokens))], len(tokens))
    assert lease is not None
    hit_tokens = lease.hit_tokens
    lease.commit(len(tokens))
    lease.release()
    index.check()
    return hit_tokens


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 33, 64])
def test_a_repeated_prompt_computes_only_its_last_token(count: int) -> None:
    index = _core.PrefixIndex(page_size=16, pages=8)
    prompt = list(range(count))
    assert serve(index, prompt) == 0
    assert serve(index, prompt) == count - 1
    # One page more than are free: the end of the prompt goes.
    free = index.stats()["pages_free"]
    assert serve(index, [2**31] * (16 * (free + 1))) == 0
    assert index.stats()["evicted_pages"] == 1
    assert serve(index, prompt) == (count - 1) // 16 * 16


@pytest.mark.parametrize(
    ("tokens", "other"),
    [
        # Pairs that collide in additive and multiplicative page hashes.
        (
            list(range(100, 116)),
            [100, 101, 102, 134, 103, *range(105, 116)],
        ),
        (
            list(range(100, 116)),
            [100, 101, 102, 104, 73, *range(105, 116)],
        ),
        ([0] * 16, [0] * 15 + [1]),
        ([1, 23] * 8, [12, 3] * 8),
        ([2**32 - 1] + [0] * 15, [2**32 - 2] + [0] * 15),
    ],
)
def test_pages_are_told_apart_by_their_tokens(tokens: list[int], other: list[int]) -> None:
    index = _core.PrefixIndex(page_size=16, pages=8)
    serve(index, [*tokens, 5])
    common = next(i for i, (a, b) in enumerate(zip(tokens, other, strict=True)) if a != b)
    assert serve(index, [*other, 5]) == common
    assert serve(index, [*tokens, 5]) == 16


def test_the_same_page_under_two_parents_is_two_pages() -> None:
    index = _core.PrefixIndex(page_size=4, pages=8)
    serve(index, [1, 1, 1, 1, 7, 7, 7, 7, 0])
    assert serve(index, [2, 2, 2, 2, 7, 7, 7, 7, 0]) == 0
    assert serve(index, [7, 7, 7, 7, 0]) == 0


def test_a_tenant_finds_public_tokens_and_its_own_and_no_others() -> None:
    index = _core.PrefixIndex(page_size=4, pages=32)
    prompt = list(range(15))
    assert serve(index, prompt, (PUBLIC, 6), (ALICE, 9)) == 0
    assert serve(index, prompt, (PUBLIC, 6), (BOB, 9)) == 6
    assert serve(index, prompt, (PUBLIC, 6), (ALICE, 9)) == 14
    assert serve(index, prompt, (BOB, 15)) == 0


@pytest.mark.parametrize(
    "namespace", [b"", b"org_1", b"org_12345", b"org_1\0", b"org_1\x002345", b"\xff" * 1000]
)
def test_namespaces_are_compared_as_bytes(namespace: bytes) -> None:
    index = _core.PrefixIndex(page_size=4, pages=32)
    others = {b"", b"org_1", b"org_12345", b"org_1\0", b"org_1\x002345", b"\xff" * 999} - {
        namespace
    }
    for other in others:
        serve(index, [1, 2, 3], (other, 3))
    assert serve(index, [1, 2, 3], (namespace, 3)) == 0
    assert serve(index, [1, 2, 3], (namespace, 3)) == 2


def test_a_reply_belongs_to_the_last_stretch_even_if_it_holds_no_prompt_token() -> None:
    index = _core.PrefixIndex(page_size=4, pages=32)
    lease = index.admit(pack(range(5)), [(PUBLIC, 5), (ALICE, 0)], 12)
    assert lease is not None
    lease.append(pack(range(5, 9)))
    lease.commit(9)
    lease.release()
    assert serve(index, list(range(10)), (PUBLIC, 10)) == 5
    assert serve(index, list(range(10)), (PUBLIC, 5), (ALICE, 5)) == 9


@pytest.mark.parametrize(
    ("token_ids", "stretches", "reserve_tokens"),
    [
        (b"", [], 1),
        (b"", [(ALICE, 0)], 1),
        (b"abc", [(ALICE, 1)], 1),
        (pack([1, 2]), [], 2),
        (pack([1, 2]), [(ALICE, 1)], 2),
        (pack([1, 2]), [(ALICE, 2), (BOB, 1)], 2),
        (pack([1, 2]), [(ALICE, -1), (BOB, 3)], 2),
        (pack([1, 2]), [(ALICE, 2**64 - 1), (BOB, 3)], 2),
        (pack([1, 2]), [(ALICE, 2)], 1),
        (pack([1, 2]), [(ALICE, 2)], 0),
        (pack([1, 2]), [(ALICE, 2)], -1),
        (pack([1, 2]), [(ALICE, 2)], 17),
        (pack([1, 2]), [(ALICE, 2)], 2**63),
        (pack([1, 2]), [(ALICE, 2)], 2**100),
    ],
)
def test_a_malformed_admission_is_a_value_error_and_changes_nothing(
    token_ids: bytes, stretches: list[tuple[bytes, int]], reserve_tokens: int
) -> None:
    index = _core.PrefixIndex(page_size=4, pages=4)
    serve(index, [1, 2, 3])
    before = index.stats()
    with pytest.raises(ValueError, match=r"\w"):
        index.admit(token_ids, stretches, reserve_tokens)
    assert index.stats() == before
    index.check()


@pytest.mark.parametrize(
    ("page_size", "pages"),
    [(0, 1), (1, 0), (-1, 1), (1, -1), (2**16, 2**17), (1, 2**32), (2**70, 1)],
)
def test_an_index_without_slots_or_with_too_many_is_refused(page_size: int, pages: int) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        _core.PrefixIndex(page_size=page_size, pages=pages)


@pytest.mark.parametrize("number", [-1, 2**64, 10**300])
def test_a_number_out_of_range_is_a_value_error_whichever_it_is(number: int) -> None:
    index = _core.PrefixIndex(page_size=4, pages=4)
    calls: list[Callable[[], object]] = [
        lambda: index.admit(pack([1]), [(ALICE, 1)], 1, priority=number),
        lambda: index.admit(pack([1]), [(ALICE, 1)], 1, after=number),
        lambda: index.pin(number),
        lambda: _core.PrefixIndex(page_size=4, pages=4, pin_pages_max=number),
        lambda: index.admit(pack([1]), [(ALICE, 1)], 1, onload_tokens_min=number),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="negative or too large"):
            call()
    assert index.stats()["pages_free"] == 4


def test_commits_past_what_is_known_are_value_errors_and_change_nothing() -> None:
    index = _core.PrefixIndex(page_size=4, pages=4)
    lease = index.admit(pack([1, 2, 3]), [(ALICE, 3)], 6)
    assert lease is not None
    lease.append(pack([4]))
    lease.commit(4)
    before = index.stats()
    for tokens in (5, 9, 2**70, -1):
        with pytest.raises(ValueError, match=r"\w"):
            lease.commit(tokens)
    with pytest.raises(ValueError, match="whole number"):
        lease.append(b"abc")
    lease.append(pack([5] * 5))
    with pytest.raises(ValueError, match="reserved"):
        lease.commit(9)
    with pytest.raises(ValueError, match="negative"):
        lease.grow(-1)
    lease.commit(2)
    assert index.stats() == before
    assert lease.grow(2**62) is False
    index.check()


def test_a_turn_goes_on_from_the_one_before_it() -> None:
    index = _core.PrefixIndex(page_size=4, pages=8)
    first = index.admit(pack([1, 2, 3, 4, 5]), [(ALICE, 5)], 8, conversation=b"chat")
    assert first is not None
    assert (first.prompt_tokens, first.tokens, index.node_tokens(first.node)) == (5, 5, None)
    first.append(pack([6, 7]))
    first.commit(7)
    first.release()
    assert index.node_tokens(first.node) == 7
    second = index.admit(pack([8, 9]), [(ALICE, 2)], 9, after=first.node, conversation=b"chat")
    assert second is not None
    assert (second.hit_tokens, second.copy, second.prompt_tokens) == (7, None, 9)
    assert list(unpack(second.token_ids())) == list(range(1, 10))
    assert second.tokens_reserved == 12
    again = index.admit(pack([8]), [(ALICE, 1)], 8, after=first.node)
    assert again is not None
    assert again.copy is not None
    assert (again.hit_tokens, again.copy[2]) == (7, 3)
    index.check()
    with pytest.raises(LookupError):
        index.admit(pack([8]), [(ALICE, 1)], 8, after=second.node)
    for unknown in (99, 2**64 - 1):
        with pytest.raises(LookupError):
            index.admit(pack([8]), [(ALICE, 1)], 8, after=unknown)
        assert index.node_tokens(unknown) is None
    with pytest.raises(ValueError, match="less than the 8 tokens"):
        index.admit(pack([8]), [(ALICE, 1)], 7, after=first.node)


def test_a_released_lease_holds_nothing() -> None:
    index = _core.PrefixIndex(page_size=4, pages=4)
    serve(index, [1, 2, 3, 4, 5, 6])
    lease = index.admit(pack([1, 2, 3, 4, 5, 7]), [(ALICE, 6)], 9)
    assert lease is not None
    assert (lease.hit_tokens, lease.tokens_reserved) == (5, 12)
    source, target, rows = lease.copy or (0, 0, 0)
    table = list(unpack(lease.page_table))
    assert (target, rows) == (table[1], 1)
    assert source not in table
    lease.release()
    lease.release()
    assert (lease.hit_tokens, lease.copy, lease.tokens_reserved) == (5, None, 0)
    assert lease.page_table == b""
    assert lease.tokens == 0
    for call in (lambda: lease.commit(1), lambda: lease.append(b""), lease.token_ids):
        with pytest.raises(ValueError, match="released"):
            call()
    with pytest.raises(ValueError, match="released"):
        lease.grow(1)
    assert index.stats()["pages_leased"] == 0


def test_dropping_a_lease_releases_it_and_a_lease_outlives_its_index() -> None:
    index = _core.PrefixIndex(page_size=4, pages=4)
    lease = index.admit(pack([1, 2, 3]), [(ALICE, 3)], 16)
    assert index.stats()["pages_free"] == 0
    assert index.admit(pack([1]), [(ALICE, 1)], 1) is None
    del lease
    gc.collect()
    assert index.stats()["pages_free"] == 4
    survivor = index.admit(pack([1, 2, 3]), [(ALICE, 3)], 16)
    assert survivor is not None
    del index
    survivor.commit(3)
    assert survivor.tokens_reserved == 16


def test_aborts_at_every_moment_leak_no_page_and_the_whole_device_can_be_had() -> None:
    rng = random.Random(7)
    index = _core.PrefixIndex(page_size=16, pages=300)
    shared = list(range(500))
    running: list[_core.Lease] = []
    for request in range(2000):
        private = [1000 + request + i for i in range(rng.randint(1, 300))]
        prompt = (shared if request % 2 else []) + private
        reserve_tokens = 4800 if request % 10 == 9 else len(prompt) + 32
        lease = index.admit(pack(prompt), [(ALICE, len(prompt))], reserve_tokens)
        if lease is not None:
            written = rng.choice((0, len(prompt) // 2, len(prompt), len(prompt) + 20))
            lease.append(pack([3] * 20))
            lease.commit(written)
            running.append(lease)
        if len(running) > 6:
            aborted = running.pop(rng.randrange(len(running)))
            aborted.release()
            aborted.release()
        index.check()
    running.clear()
    stats = index.stats()
    assert stats["pages_leased"] == 0
    assert stats["pages_cached"] + stats["pages_free"] == stats["pages_total"]
    assert stats["pages_evictable"] == stats["pages_cached"]
    everything = index.admit(pack(shared), [(ALICE, 500)], 4800)
    assert everything is not None
    assert len(unpack(everything.page_table)) == 300
    index.check()


def test_threads_may_share_an_index() -> None:
    index = _core.PrefixIndex(page_size=4, pages=64)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 20))]
                lease = index.admit(pack(tokens), [(ALICE, len(tokens))], len(tokens))
                if lease is not None:
                    lease.commit(len(tokens))
                index.check()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert index.stats()["pages_leased"] == 0


def test_a_pin_keeps_a_path_within_the_budget() -> None:
    index = _core.PrefixIndex(page_size=4, pages=8, pin_pages_max=3)
    lease = index.admit(pack(range(10)), [(PUBLIC, 10)], 10)
    assert lease is not None
    lease.commit(10)
    lease.release()
    index.pin(lease.node)
    assert index.stats()["pages_pinned"] == 3
    assert index.clear() == 0
    other = index.admit(pack([7]), [(PUBLIC, 1)], 1)
    assert other is not None
    other.commit(1)
    other.release()
    with pytest.raises(ValueError, match="1 pages does not fit: 3 of at most 3"):
        index.pin(other.node)
    with pytest.raises(LookupError):
        index.pin(99)
    assert index.unpin(lease.node) is True
    assert index.unpin(lease.node) is False
    assert index.clear() == 4


def test_an_explanation_shows_the_first_difference_and_nothing_of_other_tenants() -> None:
    index = _core.PrefixIndex(page_size=4, pages=32)
    serve(index, list(range(20)), (PUBLIC, 6), (ALICE, 14))
    edited = [*range(10), 77, *range(11, 20)]
    assert index.explain(pack(edited), [(PUBLIC, 6), (ALICE, 14)]) == {
        "hit_tokens": 10,
        "miss_tokens": 10,
        "host_tokens": 0,
        "disk_tokens": 0,
        "cause": "diverged",
        "before": pack(range(2, 10)),
        "asked": pack([77, *range(11, 18)]),
        "cached": pack(range(10, 18)),
    }
    hidden = index.explain(pack(edited), [(PUBLIC, 6), (BOB, 14)])
    assert (hidden["hit_tokens"], hidden["cause"], hidden["cached"]) == (6, "cold", None)
    whole = index.explain(pack(range(20)), [(PUBLIC, 6), (ALICE, 14)])
    assert (whole["miss_tokens"], whole["cause"]) == (1, "hit")
    with pytest.raises(ValueError, match="stretches"):
        index.explain(pack([1]), [])
    longer = list(range(1000))
    assert index.explain(pack(longer), [(PUBLIC, 6), (ALICE, 994)])["miss_tokens"] == 1000 - 20


def test_a_dump_is_loaded_again_and_a_damaged_one_is_a_value_error() -> None:
    index = _core.PrefixIndex(page_size=4, pages=8)
    serve(index, list(range(10)))
    dump = index.dump(b"model")
    loaded = _core.PrefixIndex.load(dump, b"model", page_size=4, pages=8)
    loaded.check()
    assert serve(loaded, list(range(10))) == 9
    for damaged in (b"", dump[:-1], dump[:40] + b"?" + dump[41:]):
        with pytest.raises(ValueError, match="dump"):
            _core.PrefixIndex.load(damaged, b"model", page_size=4, pages=8)
    with pytest.raises(ValueError, match="another model"):
        _core.PrefixIndex.load(dump, b"other", page_size=4, pages=8)


def test_page_keys_are_those_of_the_definition() -> None:
    tokens = [i * 0x01010101 for i in range(8)]
    keys = _core.page_keys(pack(tokens), [(b"public", 5), (b"tenant a", 3)], 4)
    # From another implementation of BLAKE3, over bytes put together by hand.
    assert keys.hex() == (
        "92fe52a8395c173e088146b10b8472b9162efbdd696224b8038d5bffc1612db2"
        "84b4c664ab3cb255022af4a8db6a87bf14423fe9ad7d0d05f85f321ed2176114"
    )
    assert _core.page_keys(pack(tokens), [(b"public", 8)], 9) == b""
    for stretches, page_size in (([], 4), ([(b"public", 8)], 0), ([(b"public", 8)], -1)):
        with pytest.raises(ValueError, match=r"\w"):
            _core.page_keys(pack(tokens), stretches, page_size)

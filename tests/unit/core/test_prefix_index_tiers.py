"""Lower tiers of `_core.PrefixIndex`: evicted pages keep a slot, and an admission restores them."""

from __future__ import annotations

import pytest

from appliance import _core
from appliance.tokens import pack, unpack

ALICE, BOB = b"tenant alice", b"tenant bob"


def serve(index: _core.PrefixIndex, tokens: list[int]) -> None:
    lease = index.admit(pack(tokens), [(ALICE, len(tokens))], len(tokens))
    assert lease is not None
    lease.commit(len(tokens))
    lease.release()
    index.check()


def offloaded(host_slots: int, disk_slots: int) -> _core.PrefixIndex:
    """12 tokens of Alice in lower tiers, others on the device's four pages."""
    index = _core.PrefixIndex(page_size=4, pages=4, host_slots=host_slots, disk_slots=disk_slots)
    serve(index, list(range(12)))
    serve(index, [7] * 16)
    return index


def admit(index: _core.PrefixIndex, tokens: list[int], owner: bytes = ALICE) -> _core.Lease:
    lease = index.admit(pack(tokens), [(owner, len(tokens))], len(tokens), onload_tokens_min=8)
    assert lease is not None
    index.check()
    return lease


def test_moves_name_places_and_keys_in_order() -> None:
    index = offloaded(2, 4)
    tokens = pack(range(12))
    keys = _core.page_keys(tokens, [(ALICE, 12)], 4)
    first, second, third = (keys[at : at + 32] for at in (0, 32, 64))
    assert index.take_moves() == [
        ("device", 2, "host", 0, third),
        ("device", 1, "host", 1, second),
        ("host", 0, "disk", 0, third),
        ("device", 0, "host", 0, first),
    ]
    assert index.take_moves() == []
    lease = admit(index, list(range(13)))
    pages = unpack(lease.page_table)
    assert index.take_moves()[-3:] == [
        ("host", 0, "device", pages[0], first),
        ("host", 1, "device", pages[1], second),
        ("disk", 0, "device", pages[2], third),
    ]


def test_restored_tokens_are_hits_until_they_are_rejected() -> None:
    index = offloaded(3, 4)
    lease = admit(index, list(range(13)))
    assert (lease.hit_tokens, lease.onloaded_tokens) == (12, 12)
    for tokens in (-1, 13):
        with pytest.raises(ValueError, match=r"13|negative"):
            lease.reject(tokens)
    lease.reject(4)
    assert (lease.hit_tokens, lease.onloaded_tokens) == (4, 4)
    lease.commit(13)
    with pytest.raises(ValueError, match="not among"):
        lease.reject(4)
    lease.release()
    assert (lease.hit_tokens, lease.onloaded_tokens) == (4, 4)
    stats = index.stats()
    assert (stats["onloaded_tokens"], stats["offloaded_pages"]) == (4, 7)
    # The device's four pages went down when the others came up.
    assert (stats["pages_host"] + stats["pages_disk"], stats["dropped_pages"]) == (4, 0)


def test_nothing_is_restored_that_was_not_asked_for_or_is_another_tenants() -> None:
    index = offloaded(3, 4)
    assert admit(index, list(range(13)), BOB).hit_tokens == 0
    index = offloaded(3, 4)
    short = admit(index, list(range(6)))
    assert short.hit_tokens == 0, "one page is less than 8 tokens"
    lease = index.admit(pack(range(6)), [(ALICE, 6)], 6)
    assert lease is not None
    assert lease.hit_tokens == 0


def test_a_tier_is_loaded_into_another_index() -> None:
    before = offloaded(2, 4)
    dumps = [before.dump_tier("host", b"model"), before.dump_tier("disk", b"model")]
    after = _core.PrefixIndex(page_size=4, pages=4, host_slots=2, disk_slots=4)
    after.load_tier("host", dumps[0], b"model")
    after.load_tier("disk", dumps[1], b"model")
    assert admit(after, list(range(13))).hit_tokens == 12
    again = _core.PrefixIndex.load(
        before.dump(b"model"), b"model", page_size=4, pages=4, host_slots=2, disk_slots=4
    )
    again.load_tier("host", dumps[0], b"model")
    with pytest.raises(ValueError, match="pages already"):
        again.load_tier("host", dumps[0], b"model")
    with pytest.raises(ValueError, match="another model"):
        again.load_tier("disk", dumps[1], b"other")
    with pytest.raises(ValueError, match="no tier"):
        again.dump_tier("tape", b"model")  # type: ignore[arg-type]
    again.check()


@pytest.mark.parametrize("slots", [-1, 2**32, 2**80])
def test_a_number_of_slots_that_cannot_be_is_a_value_error(slots: int) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        _core.PrefixIndex(page_size=4, pages=4, host_slots=slots)


def test_a_tier_is_filled_from_what_its_slots_say_and_gives_up_the_first_page_first() -> None:
    before = offloaded(2, 4)
    index = _core.PrefixIndex(page_size=4, pages=4, host_slots=2, disk_slots=4)
    for name in ("host", "disk"):
        index.fill_tier(name, before.tier_pages(name))
        assert index.tier_pages(name) == before.tier_pages(name)
    index.check()
    keys = _core.page_keys(pack(range(12)), [(ALICE, 12)], 4)
    first, second, third = (keys[at : at + 32] for at in (0, 32, 64))
    assert index.tier_pages("host") == [(second, 1), (first, 0)]
    assert index.tier_pages("disk") == [(third, 0)]
    assert admit(index, list(range(13))).hit_tokens == 12


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ([(b"a" * 32, 2)], "is none"),
        ([(b"a" * 32, 0), (b"b" * 32, 0)], "used twice"),
        ([(b"a" * 32, 0), (b"a" * 32, 1)], "used twice"),
        ([(b"a" * 31, 0)], "32 bytes"),
        ([(b"a" * 32, -1)], "negative"),
    ],
)
def test_a_tier_is_not_filled_with_what_cannot_be(
    pages: list[tuple[bytes, int]], reason: str
) -> None:
    index = _core.PrefixIndex(page_size=4, pages=4, disk_slots=2)
    with pytest.raises(ValueError, match=reason):
        index.fill_tier("disk", pages)
    assert index.tier_pages("disk") == []
    index.fill_tier("disk", [(b"a" * 32, 1)])
    with pytest.raises(ValueError, match="pages already"):
        index.fill_tier("disk", [(b"b" * 32, 0)])
    index.check()

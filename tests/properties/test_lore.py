"""Activation against its slow definition, on random books and chats."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.prompt.lore.activation import Before, activated
from appliance.prompt.lore.decorators import Decorators
from appliance.prompt.lore.lorebook import Lorebook, LoreEntry
from appliance.prompt.lore.matching import CompiledBook
from tests.reference import lore as slow

WORDS = ("elf", "Elf", "self", "dragon", "ΟΔΟΣ", "οδος", "龍", "é", "fire ice", "_", "9", "a")
keys = st.lists(st.sampled_from(WORDS), max_size=3).map(tuple)
texts = st.lists(st.sampled_from([*WORDS, " ", ",", "s"]), max_size=5).map("".join)
counts = st.none() | st.integers(0, 3)
decorators = st.builds(
    Decorators,
    scan_depth=counts,
    activate_only_after=counts,
    activate_only_every=st.none() | st.integers(1, 3),
    keep_activate_after_match=st.booleans(),
    dont_activate_after_match=st.booleans(),
    additional_keys=st.lists(keys.filter(bool), max_size=2).map(tuple),
    exclude_keys=st.just(()) | keys,
    is_greeting=counts,
    ignore_on_max_context=st.booleans(),
    activate=st.sampled_from([False, False, False, True]),
    dont_activate=st.sampled_from([False, False, True]),
)
entries = st.builds(
    LoreEntry,
    name=st.just("x"),
    digest=st.integers(0, 30).map(str),
    keys=keys,
    secondary_keys=keys,
    content=texts,
    selective=st.booleans(),
    constant=st.sampled_from([False, False, False, True]),
    enabled=st.sampled_from([True, True, True, False]),
    insertion_order=st.integers(-2, 2).map(float),
    priority=st.none() | st.integers(-2, 2).map(float),
    case_sensitive=st.booleans(),
    whole_words=st.booleans(),
    use_regex=st.sampled_from([False, False, True]),
    decorators=st.just(Decorators()) | decorators,
)
books = st.builds(
    Lorebook,
    entries=st.lists(entries, max_size=6).map(tuple),
    scan_depth=st.integers(0, 3),
    token_budget=st.none() | st.integers(1, 12),
    recursive_scanning=st.booleans(),
)
digests = st.frozensets(st.integers(0, 30).map(str), max_size=8)
befores = st.builds(
    Before,
    active=digests,
    matched=digests,
    replies=st.integers(0, 4),
    greeting=counts,
    is_full=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(
    some=st.lists(books, max_size=2),
    recent=st.lists(texts, max_size=4),
    before=befores,
    tokens_max=st.integers(1, 40),
)
def test_the_entries_called_up_are_those_of_the_slow_definition(
    some: list[Lorebook], recent: list[str], before: Before, tokens_max: int
) -> None:
    compiled = [CompiledBook.of(book) for book in some]
    found = [[book.found(text) for book in compiled] for text in recent]
    called = activated(
        compiled,
        found,
        before,
        seed=b"chat",
        tokens_of=lambda entry: len(entry.content),
        tokens_max=tokens_max,
    )
    expected = slow.called_up(some, recent, before, tokens_of=len, tokens_max=tokens_max)
    assert called == tuple(expected)


@settings(max_examples=80, deadline=None)
@given(
    entry=entries.filter(lambda entry: not entry.use_regex), text=texts, key=st.sampled_from(WORDS)
)
def test_a_key_is_found_where_the_slow_definition_finds_it(
    entry: LoreEntry, text: str, key: str
) -> None:
    alone = LoreEntry(
        name="x",
        digest="x",
        keys=(key,),
        content="y",
        case_sensitive=entry.case_sensitive,
        whole_words=entry.whole_words,
    )
    book = CompiledBook.of(Lorebook(entries=(alone,)))
    assert bool(book.found(text)) == slow.holds(text, key, alone)

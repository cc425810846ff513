"""Terms of texts: bounded, case-blind, of any script, and never one tenant's for another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import InvalidRequest
from appliance.store.search_terms import (
    QUERY_CHARACTERS_MAX,
    SEARCHED_CHARACTERS_MAX,
    message_terms,
    query_terms,
)


def has_all(text: str, asked: str, tenant: str = "t") -> bool:
    return set(query_terms(tenant, asked)) <= set(message_terms(tenant, text))


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("The Quick brown fox", "quick BROWN"),
        ("Что-нибудь ещё", "НИБУДЬ"),
        ("今日は天気がいい", "天気"),
        ("안녕하세요", "안녕"),
        ("a 🦊 b", "🦊 "),
        ("100% sure; DROP TABLE", "0% s"),
        ("İstanbul", "İst"),
    ],
)
def test_a_part_of_a_text_has_terms_that_the_text_has(text: str, asked: str) -> None:
    assert has_all(text, asked)
    assert not has_all(text, asked + "x?")


@given(
    st.text(max_size=60).map(lambda text: text.replace("\0", "")),
    st.integers(0, 50),
    st.integers(3, 20),
)
def test_any_part_of_any_text_is_found_by_its_terms(text: str, start: int, length: int) -> None:
    asked = text[start : start + length]
    if len(asked) >= 3:
        assert has_all(text, asked)


def test_terms_are_numbers_of_a_column_ascending_and_no_more_than_the_text_has_groups() -> None:
    terms = message_terms("t", "".join(map(chr, range(0x4E00, 0x9000))) * 3)
    assert terms == sorted(set(terms))
    assert -(2**31) <= terms[0] <= terms[-1] < 2**31
    assert len(terms) <= 2 * SEARCHED_CHARACTERS_MAX


def test_a_text_of_one_word_of_any_length_has_few_terms() -> None:
    assert len(message_terms("t", "a" * (8 << 20))) == 1


def test_two_tenants_share_no_terms() -> None:
    text = "the same words in both"
    assert not set(message_terms("a", text)) & set(message_terms("b", text))


@pytest.mark.parametrize(
    "asked", ["", "ab", "天", "a\0bc", "ab\ud800", "x" * (QUERY_CHARACTERS_MAX + 1)]
)
def test_what_cannot_be_searched_for_is_refused_by_the_fields_name(asked: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        query_terms("t", asked)
    assert refused.value.param == "search"

"""Which text PostgreSQL can hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.store.text import storable

ANY_TEXT = st.text(st.characters(codec=None))


def test_the_two_kinds_of_character_that_cannot_be_stored_have_visible_substitutes() -> None:
    assert storable("a\0b") == "a␀b"
    assert storable("a\ud800b") == "a\ufffdb"
    assert storable("\udfff\0\ud83d") == "\ufffd␀\ufffd"
    assert storable("\ud83e\uded6") == "🫖"


@given(ANY_TEXT)
def test_what_comes_out_can_be_stored_and_comes_out_the_same_again(text: str) -> None:
    result = storable(text)
    assert "\0" not in result
    assert storable(result.encode().decode()) == result


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_text_that_can_be_stored_is_returned_as_it_is(text: str) -> None:
    assert storable(text) is text

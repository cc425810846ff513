"""Cards against random input: bad bytes are refused and never crash, texts without macros stay."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import InvalidCard
from appliance.prompt.cards.card import Version
from appliance.prompt.cards.macros import Macros
from appliance.prompt.cards.reading import read_card
from appliance.prompt.cards.texts import card_texts
from appliance.prompt.cards.writing import FileKind, write_card
from appliance.prompt.templates.frozen_macros import Beginning
from tests.card_fixtures import encoded, thirty_cards, v3

MACROS = Macros(
    char="Mira", user="User", frozen=Beginning(seed=b"1", started=datetime(2026, 1, 1, tzinfo=UTC))
)
CARDS = thirty_cards()

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them changed, cut out or doubled."""
    result = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(result))
        kind = chance.randrange(4)
        if kind == 0:
            result[at] = chance.randrange(256)
        elif kind == 1:
            del result[at : at + chance.randrange(1, 40)]
        elif kind == 2:
            result[at:at] = result[at : at + chance.randrange(1, 40)]
        else:
            del result[at:]
        if not result:
            return b""
    return bytes(result)


@settings(max_examples=400, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_damaged_card_is_refused_or_read_and_never_crashes(chance: random.Random) -> None:
    made = chance.choice(CARDS)
    with suppress(InvalidCard):
        card = read_card(mutated(made.data, chance))
        card_texts(card, MACROS)
        for kind in FileKind:
            write_card(card, kind)


@settings(max_examples=60, deadline=None)
@given(
    fields=st.dictionaries(st.text(max_size=12), json_values, max_size=6),
    version=st.sampled_from(Version),
)
def test_fields_nobody_knows_stay_in_every_kind_of_file(
    fields: dict[str, Any], version: Version
) -> None:
    known = v3()["data"]
    data = {**known, "extensions": fields, **{f"x_{name}": value for name, value in fields.items()}}
    document = {**v3(), "data": data}
    card = read_card(encoded(document))
    for kind in FileKind:
        assert read_card(write_card(card, kind).data).document()["data"]["extensions"] == fields
    assert card.document() == document
    down = read_card(write_card(card, FileKind.JSON, version).data)
    assert down.version is version


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab{}<>:,\\ user\n", max_size=60))
def test_a_text_without_a_known_macro_comes_out_as_it_is(text: str) -> None:
    low = text.lower()
    if "user" in low:
        return
    assert MACROS.expand(text, "x").text == text


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["{{", "}}", "<user>", "char", "random:a,b", "roll:6", ":", "x", "//"])
    )
)
def test_whatever_is_written_expands_and_always_to_the_same(words: list[str]) -> None:
    text = "".join(words)
    once = MACROS.expand(text, "x")
    assert once == MACROS.expand(text, "x")
    assert "<user>" not in once.text

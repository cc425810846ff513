"""What a card says: macros by a pass of our own, the system text, examples as whole blocks."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from appliance.errors import InvalidCard
from appliance.prompt.cards.bundle import card_bundle, card_in
from appliance.prompt.cards.card import Card
from appliance.prompt.cards.macros import Expanded, Macros
from appliance.prompt.cards.reading import read_card
from appliance.prompt.cards.texts import CardTexts, card_texts, example_blocks
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.prompt.templates.inputs import Scope
from appliance.prompt.templates.lint import SAMPLE
from tests.card_fixtures import BOOK, charx, encoded, v2, v3


def macros(seed: bytes = b"1", *, user: str = "User", original: str | None = None) -> Macros:
    frozen = Beginning(seed=seed, started=datetime(2026, 1, 1, tzinfo=UTC))
    told = None if original is None else Expanded(text=original, is_same_for_all=True)
    return Macros(char="Mira", user=user, frozen=frozen, original=told)


def expand(text: str, seed: bytes = b"1", user: str = "User") -> str:
    return macros(seed, user=user).expand(text, "description").text


def texts_of(card: Card, seed: bytes = b"1", user: str = "User") -> CardTexts:
    return card_texts(card, macros(seed, user=user))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("{{char}} {{CHAR}} {{ char }} <BOT> <char> <Bot>", "Mira Mira Mira Mira Mira Mira"),
        ("{{user}} <USER> <user>", "User User User"),
        ("a{{// gone }}b{{comment: gone}}c{{hidden_key:gone}}d", "abcd"),
        ("{{reverse:abc}}", "cba"),
        ("{{reverse:{{char}}}}", "ariM"),
        ("{{pick:a}} {{pick::a}} {{random: a}}", "a a  a"),
        ("{{pick:one\\,two}}", "one,two"),
        ("{{roll:d1}} {{roll:1}} {{roll:D1}}", "1 1 1"),
        (
            "{{roll:}} {{roll:d0}} {{roll:x}} {{pick:}}",
            "{{roll:}} {{roll:d0}} {{roll:x}} {{pick:}}",
        ),
        ("{{unknown}} {{getvar::x}} {{}}", "{{unknown}} {{getvar::x}} {{}}"),
        ("{% for x in y %}{{ 7*7 }}{# no #}", "{% for x in y %}{{ 7*7 }}{# no #}"),
        ("{{char", "{{char"),
        ("char}} {{", "char}} {{"),
        ("{{{char}}}", "{{{char}}}"),
        ("{{original}}", "{{original}}"),
        ("", ""),
    ],
)
def test_a_macro_means(text: str, meant: str) -> None:
    assert expand(text) == meant


def test_what_a_macro_is_replaced_with_is_never_looked_at_again() -> None:
    assert expand("<user>: {{user}}", user="{{char}} <bot>") == "{{char}} <bot>: {{char}} <bot>"
    assert macros(original="{{user}}").expand("{{original}}", "system_prompt").text == "{{user}}"


@pytest.mark.parametrize("is_same", [True, False])
def test_what_replaces_a_prompt_is_as_private_as_what_it_holds(is_same: bool) -> None:
    held = replace(macros(), original=Expanded(text="Hello Tom.", is_same_for_all=is_same))
    told = held.expand("{{original}} Be kind.", "system_prompt")
    assert told == Expanded(text="Hello Tom. Be kind.", is_same_for_all=is_same)


@pytest.mark.parametrize(
    "user", ["a, b", "a}}b", "::", "{{char}}", "x\\", "char", " A ", "//", "<bot>"]
)
def test_a_name_within_a_macro_is_one_value(user: str) -> None:
    for text, choices in (
        ("{{random:hey {{user}},ho}}", {f"hey {user}", "ho"}),
        ("{{random:hey <user>::{{user}},you}}", {f"hey {user}", f"{user},you"}),
        ("{{pick:{{user}}\\,x}}", {f"{user},x"}),
        ("{{random:{{random:{{user}}}},ho}}", {user, "ho"}),
    ):
        drawn = {expand(text, seed=str(seed).encode(), user=user) for seed in range(40)}
        assert drawn == choices, text
    assert expand("{{{{user}}}}", user=user) == "{{" + user + "}}"
    assert expand("{{ {{user}}:a,b}}", user=user) == "{{ " + user + ":a,b}}"
    assert expand("{{reverse:{{user}}}}", user=user) == user[::-1]
    assert expand("{{// {{user}} gone}}", user=user) == ""
    # A macro's author may have its number drawn.
    assert expand("{{roll:{{pick:d1}}}}", user=user) == "1"


def test_draws_are_frozen_for_a_conversation_and_differ_between_texts() -> None:
    text = " ".join(["{{random:a,b,c,d,e,f,g,h}}{{roll:1000}}"] * 8)
    assert expand(text) == expand(text)
    assert expand(text) != expand(text, seed=b"2")
    assert macros().expand(text, "scenario").text != expand(text)


def test_a_text_is_shared_unless_it_holds_a_draw_or_a_name() -> None:
    def is_shared(text: str, user: str = "User") -> bool:
        return macros(user=user).expand(text, "x").is_same_for_all

    assert is_shared("{{char}} and {{user}} {{// no }}{{reverse:x}}")
    assert not is_shared("{{user}}", user="Anna")
    assert not is_shared("<USER>", user="Anna")
    assert not is_shared("{{roll:2}}")
    assert not is_shared("{{pick:a,b}}")
    assert is_shared("{{char}}", user="Anna")


@pytest.mark.parametrize(
    "text",
    [
        "{{" * 100_000,
        "}}" * 100_000,
        "{{random:" * 25_000 + "}}" * 25_000,
        "{{a:" * 60_000,
        "<user" * 50_000,
    ],
    ids=lambda text: text[:9],
)
def test_a_macro_costs_what_its_text_is_long(text: str) -> None:
    begun = time.process_time()
    expand(text)
    assert time.process_time() - begun < 2


def test_a_text_that_macros_make_too_large_is_refused() -> None:
    frozen = macros().frozen
    long = Macros(char="x" * 128, user="User", frozen=frozen)
    with pytest.raises(InvalidCard, match="scenario: more than 1048576 characters"):
        long.expand("{{char}}" * 10_000, "scenario")


def test_a_system_prompt_replaces_the_default_and_may_hold_it() -> None:
    default = "You are Mira. Stay in character, and answer User in Mira's voice."
    tail = "\n\nMira keeps the lighthouse.\n\nMira's personality: patient\n\nScenario: A storm is coming."
    assert texts_of(read_card(encoded(v2()))).system == default + tail
    own = read_card(encoded(v2(system_prompt="Be {{char}}.")))
    assert texts_of(own).system == "Be Mira." + tail
    both = read_card(encoded(v2(system_prompt="{{original}} Be brief.")))
    assert texts_of(both).system == default + " Be brief." + tail
    named = texts_of(both, user="Anna")
    assert "answer Anna" in named.system
    assert not named.is_same_for_all


def test_a_name_of_its_own_and_no_notes_are_in_the_prompt() -> None:
    card = read_card(encoded(v3(nickname="Mi", creator="NOBODY", tags=["NOTHING"])))
    texts = card_texts(card, macros())
    assert "DO-NOT-LEAK" not in str(texts)
    assert "NOBODY" not in str(texts)
    assert "NOTHING" not in str(texts)
    assert card.called == "Mi"
    assert card.name == "Mira"


def test_examples_are_whole_blocks_split_before_names_are_put_in() -> None:
    assert example_blocks("<START>\na: b\n\n<start>\n  \n<START>c: d") == ("a: b", "c: d")
    assert example_blocks("  \n") == ()
    card = read_card(encoded(v2(mes_example="<START>\n{{user}}: hi\n<START>\n{{char}}: hoo")))
    assert texts_of(card, user="<START>").examples == ("<START>: hi", "Mira: hoo")


def test_greetings_and_what_others_use_are_carried() -> None:
    card = read_card(
        encoded(
            v2(
                alternate_greetings=["", "Hey {{user}}", " "],
                post_history_instructions="Mind {{char}}.",
                character_book=BOOK,
            )
        )
    )
    texts = texts_of(card)
    assert [greeting.text for greeting in texts.greetings] == ["Come in, User.", "Hey User"]
    assert texts.post_history_instructions.text == "Mind Mira."
    (book,) = card.lorebooks
    assert [entry.content for entry in book.entries] == ["An owl lives in the tower."]


def test_an_odd_card_of_the_wild_keeps_all_and_leaks_nothing() -> None:
    """Case P13: extensions kept, notes in no prompt, an empty system prompt falls back, an odd name."""
    entries = [
        {"keys": ["owl"], "content": "word " * 70, "extensions": {}, "enabled": True}
        | {"insertion_order": 1, "priority": 1},
        {"keys": ["owl"], "content": "short", "extensions": {}, "enabled": True}
        | {"insertion_order": 2, "priority": 9},
    ]
    document = v2(
        name='Mira "the Owl": v2',
        description="{{char}} likes {{user}}.\nLine two",
        personality="",
        scenario="",
        first_mes="Hoo! <START> {{user}}?",
        mes_example="<START>\n{{user}}: hi\n{{char}}: hoo",
        alternate_greetings=["Hey {{user}}"],
        tags=["\U0001f989"],
        extensions={"x/y": {"keep": [1, None]}},
        character_book={"extensions": {}, "token_budget": 20, "entries": entries},
    )
    version = CharacterVersion.of(card_bundle(read_card(encoded(document)), "mira"))
    assert version.card is not None
    assert version.card.document() == document
    parts = version.render(SAMPLE).parts
    assert [part.name for part in parts] == ["system", "example 1"]
    assert parts[0].content.startswith('You are Mira "the Owl": v2. Stay in character')
    assert parts[0].content.endswith('Mira "the Owl": v2 likes User.\nLine two')
    assert parts[1].content.endswith('User: hi\nMira "the Owl": v2: hoo')
    assert "DO-NOT-LEAK" not in str(parts)
    assert version.greetings(SAMPLE)[0].text == "Hoo! <START> User?"


def test_a_card_is_public_unless_it_says_something_of_its_own_in_each_conversation() -> None:
    def scopes(user: str = "User", **fields: str) -> set[Scope]:
        bundle = card_bundle(read_card(encoded(v2(**fields))), "mira")
        rendered = CharacterVersion.of(bundle).render(SAMPLE, user=user)
        return {part.scope for part in rendered.parts}

    assert scopes() == {Scope.CHARACTER}
    assert scopes(user="Anna") == {Scope.CONVERSATION}
    assert scopes(description="{{random:a,b}}") == {Scope.CONVERSATION}
    assert scopes(mes_example="<START>{{roll:6}}") == {Scope.CONVERSATION}
    # What stands after the history takes nothing of the front with it.
    after = scopes(post_history_instructions="{{roll:6}}")
    assert after == {Scope.CHARACTER, Scope.CONVERSATION}


@pytest.mark.parametrize(
    "syntax", ["{{ character.id }}", "{% for x in y %}", "{# no #}", "{{ 7*7 }}", "${x}"]
)
def test_template_syntax_in_a_card_is_the_text_it_is(syntax: str) -> None:
    fields = ("description", "personality", "scenario", "system_prompt", "mes_example", "first_mes")
    bundle = card_bundle(read_card(encoded(v2(**dict.fromkeys(fields, syntax)))), "mira")
    version = CharacterVersion.of(bundle)
    system, example = version.render(SAMPLE).parts
    assert system.content.count(syntax) == 4
    assert example.content.endswith(syntax)
    assert version.greetings(SAMPLE)[0].text == syntax


def test_a_charx_cannot_bring_templates_or_another_character_along() -> None:
    files = {
        "character.yaml": b"id: mira\nname: Evil\n",
        "templates/card.yaml": b"evil",
        "card.png": b"",
    }
    card = read_card(charx(v3(), files))
    bundle = card_bundle(card, "mira")
    assert sorted(bundle.files) == [
        "card.json",
        "charx/card.png",
        "charx/character.yaml",
        "charx/templates/card.yaml",
    ]
    version = CharacterVersion.of(bundle)
    assert version.character.name == "Mira"
    assert card_in(bundle).files == files

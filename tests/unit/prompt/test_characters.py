"""Character files: what is read, and what an operator is told about a bad one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.errors import ConfigError, InvalidBundle, NotFound
from appliance.prompt.bundle import Bundle
from appliance.prompt.bundle_folder import load_characters
from appliance.prompt.cards.bundle import card_bundle
from appliance.prompt.cards.character_card import card_of_character
from appliance.prompt.cards.reading import read_card
from appliance.prompt.character_file import Character
from appliance.prompt.characters import LOREBOOK_FILE, Characters, CharacterVersion
from appliance.prompt.settings import SamplingSettings, TruncationSettings
from appliance.prompt.templates.lint import SAMPLE
from tests.card_fixtures import PLAIN_V1
from tests.characters import bundle_of
from tests.unit.prompt.template_files import HISTORY

SHIPPED = Path(__file__).parents[3] / "prompts"
GOOD = "id: assistant\nname: Assistant\n"


def get(characters: Characters, name: str | None) -> Character:
    return characters.get(name).character


def load(directory: Path, **files: str) -> Characters:
    for name, text in {"assistant": GOOD, **files}.items():
        (directory / f"{name}.yaml").write_text(text, encoding="utf-8")
    return load_characters(directory)


def test_the_shipped_characters_load_and_one_is_the_default() -> None:
    characters = load_characters(SHIPPED)
    assert get(characters, None).id == "assistant"
    assert get(characters, "lighthouse").greeting
    assert all(version.character.system for version in characters.by_id.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id: bad\nname: Bad\nsystem: [1]\n", "system: expected a text, got a list"),
        ("id: bad\nname: Bad\nsistem: x\n", "sistem: there is no such field (fields: id, name,"),
        ("id: bad\n", "name: is missing"),
        ("id: bad\nname: a\nname: b\n", "line 3: character error: file: 'name' is there twice"),
        (
            "id: bad\nname: a\nsampling:\n  top_p: 1\n  top_p: 0.5\n",
            "line 5: character error: sampl",
        ),
        ("id: bad\nname: a\n\nsampling: {heat: 1}\n", "heat: there is no such field"),
        ("id: bad\nname: a\n\nsampling: {top_p: 7}\n", "line 4: sampling.top_p: "),
        ("id: bad\n---\nname: a\n", "expected one YAML document, here are 2"),
        ("", "the file is empty"),
        ('id: bad\nname: "\\ud83d"\n', "line 2: character error: not YAML"),
        ('id: bad\nname: B\nsuggestions: ["a\\0"]\n', "suggestions: holds U+0000"),
        ("id: bad\nname: B\nlore_placement: top\n", "'top' is none of frozen, as_written"),
        ("id: bad\nname: B\ntemplate: x.yml.j2\n", "'x.yml.j2' is a whole-file template"),
        ("id: Bad id\nname: x\n", "id: 'Bad id'"),
        ("id: bad\nname: '  '\n", "name: is empty"),
        ("id: assistant\nname: x\n", "already a character"),
        ("- id: bad\n", "a template; a character"),
        ("id: bad\nname: [a\n", "not YAML"),
        ("id: &a bad\nname: *a\n", "line 1: character error: aliases"),
        ("id: bad\nname: !!python/object/apply:os.getcwd []\n", "the tag"),
        ("id: bad\nname: x\nsystem: " + "y" * 300_000, "larger than"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises((ConfigError, InvalidBundle)) as caught:
        load(tmp_path, bad=text)
    assert said in caught.value.message
    assert "bad.yaml" in caught.value.message


def test_words_that_yaml_takes_for_values_stay_text(tmp_path: Path) -> None:
    characters = load(tmp_path, other="id: yes\nname: 2024-01-01\nsystem: null\n")
    assert get(characters, "yes").name == "2024-01-01"
    assert get(characters, "yes").system == "null"


def test_template_syntax_in_a_character_is_plain_text(tmp_path: Path) -> None:
    characters = load(tmp_path, other="id: x\nname: N\nsystem: '{{ 7*7 }} {% raw %}'\n")
    assert get(characters, "x").system == "{{ 7*7 }} {% raw %}"


AHOY = {"first_mes": "Ahoy."}


@pytest.mark.parametrize(
    ("one", "two", "is_same"),
    [
        ({}, {}, True),
        ({}, {"description": "{{char}} counts birds."}, True),
        ({}, AHOY, False),
        ({}, {"name": "Mara"}, False),
        ({"first_mes": ""}, AHOY, False),
        ({"first_mes": ""}, {"first_mes": "", "name": "Mara"}, True),
    ],
)
def test_what_greetings_are_made_of_is_the_same_where_they_are(
    one: dict[str, str], two: dict[str, str], is_same: bool
) -> None:
    made = [
        CharacterVersion.of(card_bundle(read_card(json.dumps(PLAIN_V1 | fields).encode()), "mira"))
        for fields in (one, two)
    ]
    assert (made[0].greeting_sources == made[1].greeting_sources) == is_same
    written = [[text.text for text in version.greetings(SAMPLE)] for version in made]
    assert written[0] == written[1] or not is_same


def test_a_folder_without_the_default_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="assistant"):
        load_characters(tmp_path)


def test_an_unknown_character_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load(tmp_path).get("nobody")


def test_a_character_whose_template_is_missing_or_lacks_a_value_is_refused_at_the_start(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidBundle, match=r"x\.yaml: template: there is no 'mine' .*default"):
        load(tmp_path, x="id: x\nname: X\ntemplate: mine\n")
    (tmp_path / "templates").mkdir()
    front = "name: mine\ninputs:\n  mood: {sample: calm}\n---\n"
    part = "- {name: p, zone: persona, role: system, content: '{{ mood }}'}\n"
    (tmp_path / "templates" / "mine.yaml").write_text(front + part + HISTORY)
    with pytest.raises(InvalidBundle, match=r"mine\.yaml, line 3.*`mood`: it has no value"):
        load(tmp_path, x="id: x\nname: X\ntemplate: mine\n")
    # In half of the conversations it works, in the others no prompt could be made.
    works = "name: mine\ninputs:\n  persona: {default: ''}\n---\n" + (
        "- {name: q, zone: persona, role: system, if: persona, "
        "content: \"{{ persona.split('/')[3] }}\"}\n"
    )
    (tmp_path / "templates" / "mine.yaml").write_text(works + HISTORY)
    with pytest.raises(InvalidBundle, match=r"mine\.yaml, line \d+.*`q`"):
        load(tmp_path, x="id: x\nname: X\ntemplate: mine\n")
    front = front.replace("sample", "default")
    (tmp_path / "templates" / "mine.yaml").write_text(front + part + HISTORY)
    characters = load(tmp_path, x="id: x\nname: X\ntemplate: mine\n")
    assert characters.get("x").template.front.name == "mine"
    assert characters.get(None).template.front.name == "default"


@pytest.mark.parametrize(
    ("book", "said"),
    [
        (b'{"entries": [], "entries": []}', "'entries' stands twice"),
        (b'{"entries": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "nested deeper than 64 levels"),
        (b'{"entries": ' + b"[" * 100_000, "nested deeper than 64 levels"),
        (b'{"x": NaN}', "NaN is no number"),
        (b"{", "not JSON"),
        (b"[]", "expected a JSON object"),
        (b"\xff", "not UTF-8"),
        (b'{"entries": [{"keys": 7}]}', "entries[0]"),
    ],
)
def test_a_lorebook_is_read_as_strictly_as_that_of_a_card(book: bytes, said: str) -> None:
    bundle = Bundle(name="mara", files={**bundle_of("mara").files, LOREBOOK_FILE: book})
    with pytest.raises(InvalidBundle) as caught:
        CharacterVersion.of(bundle)
    assert caught.value.message.startswith("mara/lorebook.json")
    assert said in caught.value.message


FIELDS: dict[str, object] = {
    "id": "kee",
    "name": "Kee of the keys",
    "description": "Keeps what is kept.",
    "system": "You keep.",
    "greeting": "Who is there?",
    "suggestions": ("It is me.",),
    "template": "mine",
    "post_history": "Be short.",
    "lore_placement": "as_written",
    "sampling": SamplingSettings(top_k=7),
    "truncation": TruncationSettings(step_tokens=7),
}


@pytest.mark.parametrize("field", sorted({*Character.__struct_fields__} - {"id"}))
def test_each_field_of_a_character_is_in_its_card_or_said_to_be_lost(field: str) -> None:
    character = Character(**{"id": "kee", "name": "Kee", field: FIELDS[field]})  # type: ignore[arg-type]
    card, lost = card_of_character(character, bundle_of("kee"))
    is_said = any(one.startswith(f"{field}: ") for one in lost)
    assert (str(FIELDS[field]) in card.text) != is_said

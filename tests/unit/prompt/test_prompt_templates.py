"""Templates of our own kind: what is compiled, what is rendered, and what an author is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.errors import TemplateError
from appliance.prompt.messages import Zone
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.templates.compiling import load_template, template_of
from appliance.prompt.templates.frozen_macros import Beginning
from tests.unit.prompt.formats import TENANT
from tests.unit.prompt.template_files import CHAT, FROZEN, HISTORY, VALUES, body, fault, own

FRONT = "name: x\ninputs:\n  message: {sample: hi}\n  pins: {type: list, default: []}\n---\n"
PART = "- name: p\n  zone: persona\n  role: system\n"


def test_parts_come_in_the_order_of_the_file_with_keys_of_prompt_poet() -> None:
    parts = own(CHAT, VALUES)
    assert [(p.name, p.role, p.truncation_priority, p.content) for p in parts] == [
        ("system", "system", 0, "You are Mira."),
        ("message", "user", 1, "Ana: hello"),
        ("reply", "assistant", 0, "Mira:"),
    ]
    assert [p.zone for p in parts] == [Zone.CHARACTER, Zone.PERSONA, Zone.PERSONA]


def test_only_what_is_made_of_the_operators_text_alone_is_public() -> None:
    system, message, reply = own(CHAT, VALUES)
    assert system.message(TENANT).namespace == reply.message(TENANT).namespace == PUBLIC
    assert message.message(TENANT).namespace == TENANT


@pytest.mark.parametrize("content", ["{{ roll(6) }}", "{{ pick(['a']) }}", "{{ date() }}"])
def test_a_macro_of_the_conversation_makes_a_part_private(content: str) -> None:
    (part,) = own(body(content), {"message": "x"})
    assert part.message(TENANT).namespace == TENANT


def test_a_condition_on_a_private_variable_makes_a_part_private() -> None:
    text = FRONT + PART + "  if: message == 'vip'\n  content: fixed\n" + HISTORY
    (part,) = own(text, {"message": "vip"})
    assert part.message(TENANT).namespace == TENANT
    assert own(text, {"message": "x"}) == ()


def test_for_each_writes_a_numbered_part_for_each_item() -> None:
    loop = "  for_each: pin in pins\n  if: pin\n"
    text = (
        FRONT
        + PART
        + loop
        + "  content: '{{ loop.index }}/{{ loop.length }} {{ pin }}'\n"
        + HISTORY
    )
    parts = own(text, {"pins": ["a", "", "{{ c }}"]})
    assert [(p.name, p.content) for p in parts] == [("p 1", "1/3 a"), ("p 3", "3/3 {{ c }}")]
    assert own(text, {}) == ()


def test_sections_are_joined_and_kept_by_name() -> None:
    sections = (
        "  sections:\n  - name: one\n    content: |\n      first {{ message }}\n"
        "  - name: two\n    content: |\n      second\n"
    )
    (part,) = own(FRONT + PART + sections + HISTORY, {"message": "x"})
    assert part.content == "first x\nsecond"
    assert [(s.name, s.content) for s in part.sections] == [("one", "first x\n"), ("two", "second")]


def test_a_variable_may_be_a_callable_and_is_called_once_and_only_when_it_is_used() -> None:
    called = []

    def message() -> str:
        called.append("message")
        return "from a call"

    def unused() -> str:
        raise AssertionError("not used")

    values = {"message": message, "pins": unused, "other": unused}
    (part,) = own(body("{{ message }} {{ message }}"), values)
    assert part.content == "from a call from a call"
    assert called == ["message"]


def test_random_and_dated_text_is_frozen_for_a_conversation() -> None:
    text = body(
        "{{ roll(1000) }} {{ roll(1000) }} {{ pick(['a', 'b', 'c']) }} {{ date('%d.%m.%Y') }}"
    )
    first = own(text, {"message": ""})
    assert first == own(text, {"message": "another turn"})
    assert first[0].content.endswith("01.03.2026")
    draws = first[0].content.split()
    assert draws[0] != draws[1]
    template = template_of(text, "x")
    others = {
        template.render({"message": ""}, Beginning(seed=bytes([n]), started=FROZEN.started))
        .parts[0]
        .content
        for n in range(20)
    }
    assert len(others) > 15


def test_an_edit_of_one_part_moves_no_draw_of_another() -> None:
    second = "- {name: q, role: system, content: '{{ roll(1000000) }}'}\n" + HISTORY
    text = FRONT + PART + "  content: '{{ roll(9) }}'\n" + second
    longer = text.replace("{{ roll(9) }}", "{{ roll(9) }} {{ roll(9) }}")
    assert own(text, {})[1] == own(longer, {})[1]


def test_the_line_end_of_a_block_is_no_part_of_a_content_and_nothing_else_is_stripped() -> None:
    (part,) = own(body("{{ message }}"), {"message": "  a\n\n"})
    assert part.content == "  a\n\n"
    quoted = FRONT + PART + '  content: " {{ message }} \\n"\n' + HISTORY
    assert own(quoted, {"message": "x"})[0].content == " x \n"


def test_words_that_yaml_takes_for_values_stay_text() -> None:
    text = (
        "name: no\ninputs:\n  message: {default: yes}\n  n: {type: number, default: 7}\n"
        "  m: {type: map, default: {a: '1', b: 1, c: true, d: null}}\n---\n"
        "- {name: null, role: system, content: '{{ message }} {{ n + 1 }} {{ m.a ~ m.b }}'}\n"
    )
    (part,) = own(text + HISTORY, {})
    assert (part.name, part.content) == ("null", "yes 8 11")


def test_included_parts_stand_in_place_of_their_include(tmp_path: Path) -> None:
    (tmp_path / "sections").mkdir()
    (tmp_path / "sections" / "note.yaml").write_text(PART + "  content: '{{ message }}'\n")
    (tmp_path / "a.yaml").write_text(FRONT + "- include: sections/note.yaml\n" + HISTORY)
    template = load_template(tmp_path / "a.yaml")
    assert template.render({"message": "hi"}, FROZEN).parts[0].content == "hi"
    before = template.version
    (tmp_path / "sections" / "note.yaml").write_text(PART + "  content: '{{ message }}!'\n")
    assert load_template(tmp_path / "a.yaml").version != before


@pytest.mark.parametrize(
    "name", ["../secret.yaml", "/etc/passwd", "link.yaml", "a.yaml", "gone.yaml", "pipe.yaml", "."]
)
def test_an_include_cannot_leave_the_folder_or_include_itself(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text(PART + "  content: secret\n")
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "a.yaml").write_text(f"- include: {name}\n")
    (folder / "b.yaml").write_text(FRONT + f"- include: {name}\n" + HISTORY)
    with pytest.raises(TemplateError, match=r"b\.yaml, line 6|a\.yaml, line 1"):
        load_template(folder / "b.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FRONT + PART + "  content: |\n    a\n    {{ mesage }}\n" + HISTORY, "line 10, part `p`"),
        (FRONT + PART + "  content: '{{ mesage }}'\n" + HISTORY, "`mesage` is not declared"),
        (FRONT + PART + "  if: mesage\n  content: x\n" + HISTORY, "line 9, part `p`"),
        (FRONT + PART + "  for_each: x in mesage\n  content: x\n" + HISTORY, "`mesage`"),
        (FRONT + PART + "  for_each: message in pins\n  content: x\n" + HISTORY, "already names"),
        (FRONT + PART + "  for_each: pins\n  content: x\n" + HISTORY, "NAME in LIST"),
        (FRONT + PART + "  if: '{{ message }}'\n  content: x\n" + HISTORY, "without braces"),
        (
            FRONT + PART + "  content: '{% if %}'\n" + HISTORY,
            "line 9, part `p`: template error: Expected",
        ),
        (FRONT + PART + "  content: '{{ loop.index }}'\n" + HISTORY, "for_each"),
        (
            FRONT + PART + "  content: x\n  sections: []\n" + HISTORY,
            "either `content` or `sections`",
        ),
        (FRONT + PART + HISTORY, "either `content` or `sections`"),
        (FRONT + PART + "  sections: []\n" + HISTORY, "no sections"),
        (FRONT + PART + "  contents: x\n" + HISTORY, "no key 'contents'"),
        (FRONT + PART + "  content: [1]\n" + HISTORY, "expected a text, got a list"),
        (FRONT + PART + "  content: x\n  content: y\n" + HISTORY, "there twice"),
        (FRONT + PART + "  content: x\n  role: user\n" + HISTORY, "there twice"),
        (FRONT + "- {name: p, content: x}\n" + HISTORY, "needs a role"),
        (FRONT + "- {name: p, role: narrator, content: x}\n" + HISTORY, "'narrator' is none of"),
        (FRONT + "- {name: p, role: '{{ message }}', content: x}\n" + HISTORY, "never computed"),
        (FRONT + "- {role: user, content: x}\n" + HISTORY, "needs a name"),
        (FRONT + PART + "  content: x\n  truncation_priority: high\n" + HISTORY, "whole number"),
        (FRONT + PART + "  content: x\n  truncation_priority: -1\n" + HISTORY, "whole number"),
        (FRONT + PART + "  content: x\n  zone: middle\n" + HISTORY, "there twice"),
        (
            FRONT + "- {name: p, role: user, zone: middle, content: x}\n",
            "none of static, character",
        ),
        (FRONT + PART + "  content: x\n", "no part of zone history"),
        (FRONT + HISTORY + HISTORY, "one part of zone history"),
        (FRONT + HISTORY + PART + "  content: x\n", "zone persona comes before zone history"),
        (
            FRONT + "- {name: h, zone: history, role: user}\n",
            "place of the conversation's messages",
        ),
        (FRONT + HISTORY + "- {name: p, zone: volatile, role: user, content: x}\n", "role system"),
        (FRONT + "- &a {name: p, zone: static, role: user, content: x}\n- *a\n", "aliases"),
        (FRONT + "- !!python/name:os.system x\n", "tag"),
        (FRONT + "- [" * 3, "not YAML"),
        (FRONT + "[" * 30 + "]" * 30, "deep"),
        ("name: x\n", "1 YAML documents"),
        (FRONT.replace("name: x", "nam: x") + HISTORY, "no key 'nam'"),
        (FRONT.replace("sample", "simple") + HISTORY, "no key 'simple'"),
        (FRONT.replace("{sample: hi}", "{type: date}") + HISTORY, "'date' is none of"),
        (FRONT.replace("{sample: hi}", "{scope: user}") + HISTORY, "'user' is none of"),
        (
            "name: x\ninputs: {persona: {scope: character}}\n---\n" + HISTORY,
            "its scope is conversation or turn, never character",
        ),
        (FRONT.replace("message", "history") + HISTORY, "cannot be a variable's name"),
        (FRONT.replace("message", "roll") + HISTORY, "cannot be a variable's name"),
        (
            FRONT.replace("default: []", "default: x") + HISTORY,
            "input `pins`: expected list, got text",
        ),
        (FRONT + PART + "  content: '{% include \"/etc/passwd\" %}'\n" + HISTORY, "include: FILE"),
        (FRONT + PART + '  content: "\\x07"\n' + HISTORY + "\x07", "not YAML"),
    ],
)
def test_a_bad_template_is_named_with_file_line_and_field(text: str, said: str) -> None:
    message = fault(text, {"message": "x"})
    assert said in message
    assert message.startswith("chat.yaml, line ")
    assert "template error" in message


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "chat.yaml, line 3: template error: input `message`: it has no value and no default"),
        ({"message": 1}, "expected text, got number"),
        ({"message": None}, "no value"),
        ({"message": object()}, "expected text, got an object (object)"),
    ],
)
def test_a_missing_or_wrong_value_is_named_with_its_variable(
    values: dict[str, object], said: str
) -> None:
    assert said in fault(body("{{ message }}"), values)


@pytest.mark.parametrize("inner", [object(), [b"x"], {1: "x"}, {"b": {"c": print}}])
def test_only_plain_data_is_taken_however_deep(inner: object) -> None:
    said = fault(body("{{ m.a }}", "  m: {type: map}\n"), {"m": {"a": inner}})
    assert "input `m`: expected texts, numbers, booleans, lists and mappings in it" in said


def test_a_failure_at_render_names_file_line_part_and_variable_and_quotes_no_value() -> None:
    inputs = "  message: {type: map}\n"
    secret = {"message": {"secret words": "SECRET", "key": "SECRET"}}
    said = [
        fault(body("a\n{{ message.name }}", inputs), secret),
        fault(body("a\n{{ message[message.key] }}", inputs), secret),
        fault(body("a\n{{ message.key + 1 }}", inputs), secret),
        fault(body("a\n{{ message }}", inputs), secret),
        fault(body("a\n{{ message.key | sum }}", inputs), secret),
    ]
    for message in said:
        assert message.startswith("chat.yaml, line 10, part `p`: template error: ")
        assert "SECRET" not in message
    assert "has no attribute 'name'" in said[0]
    assert "`message`" in said[2]

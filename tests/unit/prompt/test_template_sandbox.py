"""Chat templates in their sandbox: the text transformers would get, and nothing else."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from appliance.errors import ModelError
from appliance.prompt.chat_format.template_runner import Case, Rendered
from tests.unit.prompt.templates import (
    ALTERNATING,
    CHATML,
    LLAMA2,
    NO_SYSTEM,
    SMOLLM2,
    WHITE_SPACE,
    runner,
)

USER = Case(messages=(("user", "x"),), add_generation_prompt=True)
MARKER = Path("/tmp/appliance_template_marker")

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    f"{{{{ cycler.__init__.__globals__.os.system('touch {MARKER}') }}}}",
    f"{{{{ lipsum.__globals__['os'].system('touch {MARKER}') }}}}",
    "{{ ('{0.__class__.__base__}'|attr('format'))(1) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "{{ messages.append({'role':'system','content':'x'}) }}",
    "{{ messages[0].update(role='system') }}",
    "{% include '/etc/passwd' %}",
    "{% import '../../secrets.j2' as s %}{{ s }}",
    "{{ self.__init__ }}",
    "{{ get_flashed_messages.__globals__ }}",
]
BOMBS = [
    "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}"
    "{% endfor %}{% endfor %}ok",
    "{{ 'x' * 1000000000 }}",
    "{{ [0] * 1000000000 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 10 ** 10000000 }}",
    "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% for i in range(9000) %}{{ 'x' * 1000 }}{% endfor %}",
]


def rendered(template: str) -> Rendered:
    return runner(template).render([USER])[0]


def outcome(template: str) -> str:
    """The text, or what the operator is told."""
    try:
        result = rendered(template)
    except ModelError as error:
        return error.message
    return f"line {result.line}: {result.error}" if result.text is None else result.text


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    result = rendered(template)
    assert result.text in (None, "")
    assert result.text == "" or result.line == 1
    assert not MARKER.exists()


@pytest.mark.parametrize("template", BOMBS)
def test_a_template_that_burns_time_or_memory_is_stopped(template: str) -> None:
    started = time.monotonic()
    said = outcome(template)
    assert said.startswith("line ") or "chat_template.jinja: template error" in said
    assert time.monotonic() - started < 10


def test_a_template_that_does_not_compile_is_named_with_its_line() -> None:
    with pytest.raises(ModelError, match=r"chat_template\.jinja, line 2: template error"):
        rendered("a\n{% for %}")


def test_a_refusal_is_the_templates_own_sentence() -> None:
    assert rendered("{{ raise_exception('not like this') }}").refusal == "not like this"


def reference(template: str, case: Case) -> str:
    """What `transformers` does with a chat template, from its documentation."""

    def tojson(value: Any, **settings: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **settings)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["strftime_now"] = datetime(2026, 1, 31).strftime
    return environment.from_string(template).render(
        messages=[{"role": role, "content": content} for role, content in case.messages],
        add_generation_prompt=case.add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
    )


@pytest.mark.parametrize(
    "template",
    [
        WHITE_SPACE,
        CHATML,
        SMOLLM2,
        "{{ strftime_now('%d %B %Y') }}{% for m in messages %}{% if loop.index > 2 %}{% break %}"
        "{% endif %}{{ m.content }}\n{%- endfor %}",
        "  {% set x = 1 %}\n{# note #}\n  {{- messages | length -}}  \n",
        "{{ messages | tojson(indent=2) }}",
    ],
)
def test_the_text_is_byte_for_byte_that_of_the_reference(template: str) -> None:
    contents = ("x", "", "  é 你 👩\u200d👧 \n", "<&>\"'\\", "{{ 7*7 }}")
    cases = [
        Case(
            messages=(("system", text), ("user", text), ("assistant", text))[:length],
            add_generation_prompt=header,
        )
        for text in contents
        for length in (1, 2, 3)
        for header in (False, True)
    ]
    results = runner(template).render(cases)
    assert [result.text for result in results] == [reference(template, case) for case in cases]


def test_the_training_tag_generation_renders_its_body() -> None:
    assert rendered("a{% generation %}b{{ 1 }}{% endgeneration %}c").text == "ab1c"


def test_the_constants_of_a_template_are_found() -> None:
    assert {"system", "<s>"} - set(runner(LLAMA2).constants()[0]) == {"<s>"}
    assert "roles must alternate" in runner(ALTERNATING).constants()[0]
    assert "no system turn in this format" in runner(NO_SYSTEM).constants()[0]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("{{ messages[-6:] }}", {6}),
        ("{{ messages[3:9:2] }}", {2, 3, 9}),
        ("{% if loop_count > 7.5 or true %}{% endif %}", {7}),
        ("{{ 'x' | truncate(40) }}", {40}),
        ("{{ 6 * 7 - 1 }}", {1, 6, 7, 41, 42}),
        ("{{ 1000000000000 * 1e300 * 1e300 }}", {10**9}),
        ("9 {{ '8' }} {{ 10 ** 12 }}", {10, 12}),
    ],
)
def test_the_numbers_of_a_template_are_found_folded(code: str, found: set[int]) -> None:
    _, numbers = runner(code).constants()
    assert found <= set(numbers)
    assert set(numbers) - found <= {10**9}

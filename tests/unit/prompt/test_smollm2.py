"""The real SmolLM2-135M-Instruct: prompts equal those of `transformers`, token for token."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from appliance.prompt.chat_format.chat_format import End
from appliance.prompt.chat_format.layout import PairLayout
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.chat_format.render import render
from appliance.prompt.messages import Role
from appliance.tokens import unpack
from tests.unit.prompt.formats import conversation

CONVERSATIONS: list[list[tuple[Role, str]]] = [
    [("user", "What is the capital of France?")],
    [("system", "Be brief."), ("user", "Sky colour?")],
    [
        ("user", "Hi!"),
        ("assistant", "Hello, how can I help?"),
        ("user", "Count: 1 2 3 é 你好 👩\u200d👧"),
    ],
    [("user", "def f(x):\n\treturn x  "), ("assistant", ""), ("user", "still there?")],
    [("system", ""), ("user", "a\n\nb"), ("user", "c")],
]


@pytest.mark.model
def test_prompts_equal_those_of_transformers(smollm2_dir: Path) -> None:
    model = ModelText.load(smollm2_dir, now=datetime(2026, 1, 31))
    reference = AutoTokenizer.from_pretrained(smollm2_dir)
    assert isinstance(model.chat_format.layout, PairLayout)
    assert reference.convert_tokens_to_ids("<|im_end|>") in model.stop_token_ids
    for turns in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in turns]
        expected = reference.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        prompt = render(model.chat_format, conversation(*turns), End.REPLY)
        assert list(unpack(prompt.token_ids)) == expected


@pytest.mark.model
def test_white_space_at_the_front_of_a_content_does_not_melt_into_the_format(
    smollm2_dir: Path,
) -> None:
    model = ModelText.load(smollm2_dir, now=datetime(2026, 1, 31))
    reference = AutoTokenizer.from_pretrained(smollm2_dir)
    messages = [{"role": "user", "content": "\n  x"}]
    text = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = render(model.chat_format, conversation(("user", "\n  x")), End.REPLY)
    ids = list(unpack(prompt.token_ids))
    # The same text; `transformers` joins the format's newline with the content's in one token.
    assert reference.decode(ids) == text
    assert ids != reference(text)["input_ids"]

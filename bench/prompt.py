"""A prompt of a 200-message history: rendered, tokenized and truncated; ours and prompt-poet.

Both are warm: the template is compiled and cached, ours has the messages' encodings in its memo
("memo"), or with the messages as the database keeps them ("stored"). prompt-poet has no memo; it
encodes with `tiktoken` and the same vocabulary. The window is 60 % of the whole prompt.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from bench import measure, peers, stand_ins, workload
from bench.encode import tiktoken_encoding

HISTORY = 200
ROUNDS = 15
CALLS = 3
WINDOW_SHARE = 0.6
CHARACTER = (
    "You are Mira, a cheerful ferry captain on a wide river. You know every island and every song of "
    "the harbour. You speak in short sentences, you never lie, and you like to ask what people are "
    "looking for. Once you were a cartographer; your maps hang in the cabin. You are afraid of herons."
)

POET_TEMPLATE = """\
- name: system instructions
  role: system
  content: |
    {{ escape_special_characters(character) }}
{% for message in messages %}
- name: message
  role: {{ message.role }}
  truncation_priority: 1
  content: |
    {{ escape_special_characters(message.text) }}
{% endfor %}
- name: reply
  role: assistant
  content: |
    Mira:
"""


def texts() -> list[str]:
    """The history: user and character in turn, the user last."""
    return workload.messages(HISTORY - 1, seed=2)


def our_prompt(contents: Sequence[str], *, stored: bool) -> Callable[[float], int]:
    """A call of ours: takes the share of the prompt that may stay, returns the prompt's tokens."""
    from appliance.prompt.chat_format.model_text import ModelText
    from appliance.prompt.fit import fit
    from appliance.prompt.messages import PromptMessage, Zone
    from appliance.prompt.namespace import PUBLIC, tenant_namespace
    from appliance.prompt.truncate import Window
    from appliance.tokens import count

    model = ModelText.load(workload.model_directory(), now=datetime(2026, 1, 1, tzinfo=UTC))
    system = PromptMessage(
        name="character", role="system", zone=Zone.CHARACTER, content=CHARACTER, namespace=PUBLIC
    )
    private = tenant_namespace("bench")
    history = [
        PromptMessage(
            name=f"message {index}",
            role="assistant" if index % 2 else "user",
            zone=Zone.HISTORY,
            content=content,
            namespace=private,
        )
        for index, content in enumerate(contents)
    ]
    if stored:
        encode = model.tokenizer.encode
        history = [replace(each, token_ids=encode(each.content, private)) for each in history]
    uncut = Window(limit=1 << 20, reserve=0, step=0)
    everything = fit(model.chat_format, [system], history, uncut)
    tokens = count(everything.prompt.token_ids)

    def call(share: float) -> int:
        window = Window(limit=int(tokens * share), reserve=256, step=512)
        fitted = fit(model.chat_format, [system], history, window)
        return count(fitted.prompt.token_ids)

    return call


def poet_prompt(contents: Sequence[str]) -> Callable[[float], int]:
    """The same of prompt-poet, with its template cache."""
    # Its loader of templates in a cloud store asks for this at its import.
    with stand_ins.borrowed(("google",), {}) as import_module:
        import_module("google.cloud.storage")
        poet: Any = import_module("prompt_poet")
        # It puts its own folder on the path, and its modules at the top level.
        loaders: Any = import_module("template_loaders")
    folder = tempfile.mkdtemp(prefix="bench-")
    path = os.path.join(folder, "chat.yml.j2")
    with open(path, "w", encoding="utf-8") as file:
        file.write(POET_TEMPLATE)
    loader = loaders.LocalFSTemplateLoader(path)
    encode = tiktoken_encoding().encode_ordinary
    data = {
        "character": CHARACTER,
        "messages": [
            {"role": "assistant" if index % 2 else "user", "text": text}
            for index, text in enumerate(contents)
        ],
    }

    def call(share: float) -> int:
        prompt = poet.Prompt(
            template_data=data, template_loader=loader, from_cache=True, encode_func=encode
        )
        prompt.tokenize()
        prompt.truncate(token_limit=int(tokens * share), truncation_step=512)
        return len(prompt.tokens)

    whole = poet.Prompt(template_data=data, template_loader=loader, encode_func=encode)
    whole.tokenize()
    tokens = len(whole.tokens)
    return call


def main() -> None:
    """Compare and print."""
    measure.one_core()
    peers.on_path()
    contents = texts()
    memo, stored = our_prompt(contents, stored=False), our_prompt(contents, stored=True)
    poet = poet_prompt(contents)
    print(f"a history of {len(contents)} messages; best (median), time a prompt")
    print(f"tokens left: ours {memo(WINDOW_SHARE)}, prompt-poet {poet(WINDOW_SHARE)}")
    assert memo(WINDOW_SHARE) == stored(WINDOW_SHARE)
    for cut, share in (("cut to 60 %", WINDOW_SHARE), ("not cut", 1.2)):
        _compare(cut, share, memo, stored, poet)


def _compare(
    cut: str,
    share: float,
    memo: Callable[[float], int],
    stored: Callable[[float], int],
    poet: Callable[[float], int],
) -> None:
    def many(call: Callable[[float], int]) -> Callable[[], None]:
        def repeated() -> None:
            for _ in range(CALLS):
                call(share)

        return repeated

    subjects = {"memo": many(memo), "stored": many(stored), "poet": many(poet)}
    timings = measure.alternate(subjects, items=CALLS, rounds=ROUNDS)
    for name in ("memo", "stored"):
        figure = f"prompt, {cut}, {name}"
        measure.compare(figure, timings[name], "prompt-poet", timings["poet"])


if __name__ == "__main__":
    main()

"""The prompt of a chat of 50 to 4,000 messages: ours and prompt-poet 0.0.52, cold and the next turn.

Both count with one tokenizer, ours without a memo (prompt-poet gets it as its `encode_func`; it is
faster than the one that comes with it), and cut to one window, 60 % of the whole prompt.

`cold`: the template is read and compiled, every message encoded from its text.
`next turn`: one message more. Ours goes on from the turn before; prompt-poet keeps nothing but its
compiled template, so it makes the prompt anew.
`cut or restart`: ours whole, from stored messages: the turn in which the cut moves, or the first one
after a restart, against prompt-poet's next turn.
`same file`: ours cold with prompt-poet's own template, in the mode for such files.

    python -m bench.prompt_poet
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from appliance._core import Tokenizer
from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.continuation import Tip, continued, tip_after
from appliance.prompt.fit import Fitted, fit
from appliance.prompt.messages import PromptMessage, Zone
from appliance.prompt.namespace import tenant_namespace
from appliance.prompt.templates.compiling import load_template
from appliance.prompt.templates.fitting import fit_parts
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.prompt.templates.poet import PoetTemplate
from appliance.prompt.truncate import Window
from appliance.tokens import count, unpack
from bench import measure, stand_ins, workload
from bench.prompt import CHARACTER, POET_TEMPLATE
from tests.prompt_poet import folder

SIZES = (50, 200, 1_000, 4_000)
ROUNDS = {50: 15, 200: 15, 1_000: 7, 4_000: 3}
NEXT_TURNS = 50
"""Next turns of ours in one timing; each with a message that was never seen."""
WINDOW_SHARE = 0.6
STEP = 2_000
RESERVE = 256
OWNER = tenant_namespace("bench")
FROZEN = Beginning(seed=b"bench", started=datetime(2026, 1, 1, tzinfo=UTC))

_OUR_TEMPLATE = """\
name: chat
inputs:
  character: {type: text, scope: character}
---
- {name: system, zone: character, role: system, content: "{{ character }}"}
- {name: history, zone: history}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat that ends with a user's message, and a window for it."""

    texts: list[str]
    own: Path
    poet: Path
    chat_format: ChatFormat
    fresh: Iterator[str]
    window: Window

    def messages(self, *, stored: bool) -> list[PromptMessage]:
        """The history as the database keeps it, with ids or without."""
        encode = self.chat_format.tokenizer.encode
        return [
            PromptMessage(
                name=f"message {index}",
                role="assistant" if index % 2 else "user",
                zone=Zone.HISTORY,
                content=text,
                namespace=OWNER,
                token_ids=encode(text, OWNER) if stored else None,
            )
            for index, text in enumerate(self.texts)
        ]

    def data(self) -> dict[str, Any]:
        """The variables of prompt-poet's template."""
        roles = ("user", "assistant")
        messages = [
            {"role": roles[index % 2], "text": text} for index, text in enumerate(self.texts)
        ]
        return {"character": CHARACTER, "messages": messages}

    def front(self) -> list[PromptMessage]:
        """The parts of our template, read and compiled anew."""
        rendered = load_template(self.own).render({"character": CHARACTER}, FROZEN)
        return [part.message(OWNER) for part in rendered.before]


def chat_of(size: int, chat_format: ChatFormat, scratch: Path) -> Chat:
    """So many messages, the last one a user's."""
    own, poet = scratch / "own.yaml", scratch / "poet.yml.j2"
    own.write_text(_OUR_TEMPLATE)
    poet.write_text(POET_TEMPLATE)
    texts = workload.messages(size - 1 + size % 2, seed=2)
    uncut = Window(limit=1 << 22, reserve=0, step=0)
    chat = Chat(
        texts=texts,
        own=own,
        poet=poet,
        chat_format=chat_format,
        fresh=cycle(workload.messages(2_000, seed=size)),
        window=uncut,
    )
    whole = fit(chat_format, chat.front(), chat.messages(stored=True), uncut)
    limit = int(whole.prompt.tokens * WINDOW_SHARE)
    return replace(chat, window=Window(limit=limit, reserve=RESERVE, step=STEP, draft=256))


def cold(chat: Chat) -> Fitted:
    """Everything anew: template, encodings, cut."""
    return fit(chat.chat_format, chat.front(), chat.messages(stored=False), chat.window)


def cold_same_file(chat: Chat) -> Fitted:
    """The same with prompt-poet's template."""
    parts = PoetTemplate.load(chat.poet).render(chat.data())
    return fit_parts(chat.chat_format, parts, chat.window, OWNER)


def restarted(chat: Chat) -> Callable[[], Fitted]:
    """From stored messages, the template compiled."""
    messages, front = chat.messages(stored=True), chat.front()
    return lambda: fit(chat.chat_format, front, messages, chat.window)


def next_turns(chat: Chat) -> Callable[[], None]:
    """Each call is NEXT_TURNS turns that go on from the chat and a reply to it."""
    chat_format = chat.chat_format
    reply = "I know that island. We sail there at dusk."
    size = count(chat_format.tokenizer.encode(reply, OWNER))
    # As after a cut: the window has room for what is said next.
    roomy = replace(chat.window, limit=chat.window.limit + 4 * STEP)
    fitted = fit(chat_format, chat.front(), chat.messages(stored=True), chat.window)
    tip = tip_after(chat_format, fitted, reply, reply_tokens=size, end=fitted.prompt.tokens + size)
    assert tip is not None

    def call() -> None:
        for text in islice(chat.fresh, NEXT_TURNS):
            assert _went_on(chat_format, tip, text, roomy, reply, size) is not None

    return call


def _went_on(
    chat_format: ChatFormat, tip: Tip, text: str, window: Window, reply: str, size: int
) -> Tip | None:
    """What a turn asks of the prompt layer: the message's ids, the prompt, the place of the next one."""
    message = PromptMessage(
        name="new message",
        role="user",
        zone=Zone.HISTORY,
        content=text,
        namespace=OWNER,
        token_ids=chat_format.tokenizer.encode(text, OWNER),
    )
    onward = continued(chat_format, tip, message, window)
    assert onward is not None
    end = onward.prompt.tokens + size
    return tip_after(chat_format, onward, reply, reply_tokens=size, end=end)


def poet_prompt(chat: Chat, encode: Tokenizer) -> Callable[[bool], int]:
    """A prompt of prompt-poet, cold or with its template cache; gives the tokens that stay."""
    sys.path.append(str(folder()))
    with stand_ins.borrowed(("google", "tiktoken"), {}) as import_module:
        import_module("google.cloud.storage")
        poet: Any = import_module("prompt_poet")
        loaders: Any = import_module("template_loaders")
    loader = loaders.LocalFSTemplateLoader(str(chat.poet))
    data = chat.data()

    def call(from_cache: bool) -> int:
        prompt = poet.Prompt(
            template_data=data,
            template_loader=loader,
            from_cache=from_cache,
            encode_func=lambda text: list(unpack(encode.encode(text, OWNER))),
        )
        prompt.tokenize()
        prompt.truncate(token_limit=chat.window.room, truncation_step=STEP)
        return len(prompt.tokens)

    return call


def main() -> None:
    """Compare and print one table."""
    measure.one_core()
    model = ModelText.load(workload.model_directory(), now=FROZEN.started, memo_bytes_max=0)
    # One folder for all: prompt-poet reads its templates again from time to time.
    with tempfile.TemporaryDirectory() as scratch:
        warm = {size: _compare(size, model, Path(scratch)) for size in SIZES}
    first, last = warm[SIZES[0]], warm[SIZES[-1]]
    print(
        f"next turn, {SIZES[0]} to {SIZES[-1]} messages: {last.best / first.best:.2f} times "
        f"({last.median / first.median:.2f})"
    )


def _compare(size: int, model: ModelText, scratch: Path) -> measure.Timing:
    """Print the figures of one size; gives that of our next turn."""
    chat = chat_of(size, model.chat_format, scratch)
    poet = poet_prompt(chat, model.tokenizer)
    left, kept = poet(True), cold(chat).prompt.tokens
    print(f"{size} messages, window {chat.window.room}: ours {kept}, prompt-poet {left} left")
    subjects: dict[str, Callable[[], object]] = {
        "cold": partial(cold, chat),
        "same file": partial(cold_same_file, chat),
        "restarted": restarted(chat),
        "poet": partial(poet, True),
        "poet cold": partial(poet, False),
    }
    one = measure.alternate(subjects, items=1, rounds=ROUNDS[size])
    turns = measure.alternate(
        {"ours": next_turns(chat)}, items=NEXT_TURNS, rounds=ROUNDS[size] * 2
    )["ours"]
    measure.compare(f"{size}, next turn", turns, "prompt-poet", one["poet"])
    measure.compare(f"{size}, cut or restart", one["restarted"], "prompt-poet", one["poet"])
    measure.compare(f"{size}, cold", one["cold"], "prompt-poet", one["poet cold"])
    measure.compare(f"{size}, same file", one["same file"], "prompt-poet", one["poet cold"])
    return turns


if __name__ == "__main__":
    main()

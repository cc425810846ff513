"""A chat of 300 turns through several cuts, as the engine counts it: hits by token, a cause a miss.

    appliance demo --port 8099
    python -m bench.long_chat http://127.0.0.1:8099 [--turns N] [--reply-tokens N]

A turn misses when it finds less than the turn before left behind; what `explain` says of it is counted.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.workload import english

TURNS = 300
REPLY_TOKENS = 16
WORDS = 16
"""Of a message of the user."""
TIMEOUT_S = 600.0
READY_S = 120.0
NO_CAUSE = frozenset({"goes on", "first turn", "changed since"})
"""What `explain` says when it knows of nothing that broke the prefix."""


@dataclass(slots=True, kw_only=True)
class LongChat:
    """Tokens of all prompts, how many were found, and what was said of each miss.

    `unexplained` are turns that missed without a cause.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    unexplained: list[int] = field(default_factory=list)

    @property
    def hit_ratio(self) -> float:
        """By token."""
        return self.cached_tokens / self.prompt_tokens


def run(
    url: str, *, turns: int, reply_tokens: int, words: int, settings: Mapping[str, Any]
) -> LongChat:
    """A new conversation of so many turns; `words` are those of a message of the user, `settings` more
    fields of each."""
    source = random.Random(1)
    chat = LongChat()
    path = f"{url}/api/conversations/{_ask(f'{url}/api/conversations', {})['id']}/messages"
    left = 0
    for turn in range(turns):
        said = {"text": english(source, words), "max_tokens": reply_tokens, **settings}
        done = _done(path, said)
        prompt, cached = done["usage"]["prompt_tokens"], done["usage"]["cached_tokens"]
        chat.prompt_tokens += prompt
        chat.cached_tokens += cached
        # The last token of a reply may not be in the cache: no step has read it.
        if cached < left - 1:
            told = _ask(f"{path}/{done['message']['id']}/explain")
            chat.causes[told["cause"]] += 1
            if told["cause"] in NO_CAUSE:
                chat.unexplained.append(turn)
        left = prompt + done["usage"]["new_tokens"]
    return chat


def _ask(url: str, body: object = None) -> Any:
    with _open(url, body) as response:
        return json.loads(response.read())


def _open(url: str, body: object) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=TIMEOUT_S)


def _done(url: str, body: object) -> Any:
    """The last event of a turn."""
    with _open(url, body) as response:
        *_, (name, data) = _events(response)
    assert name == "done", data
    return data


def _events(response: Any) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


def _await_ready(url: str) -> None:
    """A demo that has just been started still loads its model."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            _ask(f"{url}/ready")
        except OSError:  # not listening yet, or 503
            if time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(1.0)


def main() -> None:
    """Chat and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="where a demo or an appliance without keys listens")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--reply-tokens", type=int, default=REPLY_TOKENS)
    options = parser.parse_args()
    url = options.url.rstrip("/")
    _await_ready(url)
    chat = run(
        url,
        turns=options.turns,
        reply_tokens=options.reply_tokens,
        words=WORDS,
        settings={"temperature": 0.7},
    )
    print(
        f"{options.turns} turns: {chat.cached_tokens:,} of {chat.prompt_tokens:,} tokens were cached, "
        f"{chat.hit_ratio:.4f}"
    )
    print(f"misses by cause: {dict(chat.causes)}; without one: {chat.unexplained}")


if __name__ == "__main__":
    main()

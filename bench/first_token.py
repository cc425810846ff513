"""Time to first token of turn 20 of a 4,000-token chat, with the prefix cache and without.

Both are measured in one run against one server, alternating: the cached figure is the next turn of a
conversation whose history is in the cache; the uncached one is a history of the same length whose
first word nobody has sent before.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
import urllib.request
from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError, URLError

ROUNDS = 5
TURNS_BEFORE = 19
WORDS_PER_MESSAGE = 75


def history(first_word: str) -> list[dict[str, str]]:
    """19 finished turns of about 200 tokens each, and the message of turn 20."""
    messages = []
    for turn in range(TURNS_BEFORE):
        words = " ".join(f"word{turn}" for _ in range(WORDS_PER_MESSAGE // 2))
        messages.append({"role": "user", "content": f"{first_word} {turn} {words}"})
        messages.append({"role": "assistant", "content": f"I see, {words}."})
    messages.append({"role": "user", "content": "And what do you make of all this?"})
    return messages


def first_token(url: str, model: str, messages: list[dict[str, str]]) -> tuple[float, Any]:
    """Seconds until the first text of the answer, and the usage at the end."""
    body = {
        "model": model,
        "messages": messages,
        "stream": True,
        "max_tokens": 4,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    call = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    started = time.perf_counter()
    first: float | None = None
    usage = None
    with urllib.request.urlopen(call) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            if first is None and any(c["delta"].get("content") for c in chunk["choices"]):
                first = time.perf_counter() - started
    assert first is not None
    return first, usage


def main() -> None:
    """Measure against the server whose address is the first argument."""
    url = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8400"
    try:
        with urllib.request.urlopen(f"{url}/v1/models") as response:
            model = json.load(response)["data"][0]["id"]
    except HTTPError:
        raise
    except URLError as error:
        print(f"first token: not measured, no server at {url} (make demo): {error.reason}")
        return
    cached, uncached = [], []
    stamp = time.time_ns()
    first_token(url, model, history("warm"))
    for n in range(ROUNDS):
        seconds, usage = first_token(url, model, history(f"new{stamp}{n}"))
        uncached.append((seconds, usage))
        # The same history with a new last message is the next turn of a cached chat.
        again = [*history(f"new{stamp}{n}")[:-1], {"role": "user", "content": f"Go on, part {n}."}]
        seconds, usage = first_token(url, model, again)
        cached.append((seconds, usage))
    without = statistics.median(s for s, _ in uncached)
    with_cache = statistics.median(s for s, _ in cached)
    print(f"{datetime.now(UTC):%Y-%m-%d} {platform.machine()} {model}")
    print(f"prompt tokens: {cached[0][1]['prompt_tokens']}")
    print(f"cached tokens: {cached[0][1]['prompt_tokens_details']['cached_tokens']}")
    print(f"first token without the cache: {without * 1000:.0f} ms (median of {ROUNDS})")
    print(f"first token with the cache:    {with_cache * 1000:.0f} ms (median of {ROUNDS})")
    print(f"ratio: {without / with_cache:.1f}")


if __name__ == "__main__":
    main()

"""The main job: chat with the real model, streamed, cached and stored."""

from __future__ import annotations

import subprocess

import openai
import pytest

from tests.e2e.box import Box

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUESTION = "What is the capital of France?"


def client(box: Box) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{box.url}/v1", api_key="none", max_retries=0)


def test_the_openai_client_streams_that_the_capital_of_france_is_paris(box: Box) -> None:
    with client(box) as api:
        model = api.models.list().data[0].id
        stream = api.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 3
    assert chunks[-1].usage is not None
    assert (
        chunks[-1].usage.total_tokens
        == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    )


def test_curl_streams_an_answer_line_by_line(box: Box) -> None:
    body = (
        '{"model":"x","stream":true,"temperature":0,"max_tokens":16,'
        f'"messages":[{{"role":"user","content":"{QUESTION}"}}]}}'
    ).replace('"x"', f'"{box.request("GET", "/v1/models")["data"][0]["id"]}"')
    answer = subprocess.run(
        [
            "curl",
            "-sN",
            f"{box.url}/v1/chat/completions",
            "-H",
            "Content-Type: application/json",
            "-d",
            body,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert answer.count("data: {") > 5
    assert answer.endswith("data: [DONE]\n\n")
    assert "Paris" in answer


def test_twenty_turns_of_a_conversation_find_every_earlier_token_in_the_cache(box: Box) -> None:
    conversation = box.create_conversation()
    before = 0
    for turn in range(20):
        text = (
            f"Question {turn}: name one thing that is {['red', 'round', 'cold', 'old'][turn % 4]}."
        )
        events = box.send(conversation, text, temperature=0, max_tokens=12)
        assert [e.name for e in events if e.name != "delta"] == ["turn", "done"]
        done = events[-1].data
        assert done["persisted"] is True
        assert (
            "".join(e.data["text"] for e in events if e.name == "delta") == done["message"]["text"]
        )
        usage = done["usage"]
        assert usage["cached_tokens"] >= before, f"turn {turn}: {usage}"
        # Everything before the new message and its markers: the last prompt, the reply, and the
        # markers that close the reply.
        before = usage["prompt_tokens"] + usage["new_tokens"] + closing_tokens(usage)
    stored = box.request("GET", f"/api/conversations/{conversation}")
    assert len([m for m in stored["messages"] if m["role"] == "user"]) == 20


def closing_tokens(usage: dict[str, int]) -> int:
    """`<|im_end|>` and the line break that SmolLM2's format puts after a reply."""
    assert usage["new_tokens"] > 0
    return 2


def test_a_client_that_sends_the_whole_history_as_text_hits_the_cache_as_well(box: Box) -> None:
    messages: list[dict[str, str]] = []
    before = 0
    model = box.request("GET", "/v1/models")["data"][0]["id"]
    for turn in range(20):
        messages.append(
            {"role": "user", "content": f"Say a word with the letter {'abcde'[turn % 5]}. ({turn})"}
        )
        answer = box.request(
            "POST",
            "/v1/chat/completions",
            {
                "model": model,
                "messages": messages,
                "temperature": 1.0,
                "seed": turn,
                "max_tokens": 12,
            },
        )
        usage = answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= before, f"turn {turn}: {usage}"
        before = usage["prompt_tokens"] + usage["completion_tokens"] + 2
        messages.append(
            {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
        )


def test_a_prompt_over_the_context_is_refused_with_the_numbers(box: Box) -> None:
    model = box.request("GET", "/v1/models")["data"][0]["id"]
    with client(box) as api, pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "word " * 9000}], max_tokens=10
        )
    assert caught.value.code == "context_length_exceeded"
    assert "8192" in caught.value.message

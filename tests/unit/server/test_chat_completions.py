"""POST /v1/chat/completions over real HTTP: shapes, stop strings, reasons, token counts."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from appliance import tokens
from appliance.config import ServerConfig
from tests.script_model import EOS
from tests.unit.server.door import MODEL, Door, chat, open_door


async def test_characters_cut_into_byte_tokens_stream_whole(door: Door) -> None:
    door.say(
        "ok ",
        *map(bytes.fromhex, ("f09f", "9880")),
        " ",
        *map(bytes.fromhex, ("e4", "bda0", "f09f91a9e2808df09f", "91a7")),
        "!",
    )
    streamed = await door.stream_chat(stream_options={"include_usage": True})
    assert streamed.text == "ok 😀 你👩‍👧!"
    assert all("\ufffd" not in event.data for event in streamed.events)
    assert streamed.chunks[-1]["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
async def test_usage_comes_only_when_asked_for(door: Door, options: Any) -> None:
    door.say("one", " two")
    streamed = await door.stream_chat(stream_options=options)
    assert all(len(chunk["choices"]) == 1 for chunk in streamed.chunks)
    assert all("usage" not in chunk for chunk in streamed.chunks)
    assert streamed.events[-1].data == "[DONE]"


async def test_the_usage_chunk_is_last_and_adds_up(door: Door) -> None:
    door.say("one", " two", prefix_hit_tokens=3)
    streamed = await door.stream_chat(stream_options={"include_usage": True})
    *earlier, last = streamed.chunks
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in earlier)
    assert earlier[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == []
    usage = last["usage"]
    prompt = tokens.count(door.engine.generated[0].token_ids)
    assert usage["prompt_tokens"] == prompt
    assert usage["completion_tokens"] == 2
    assert usage["total_tokens"] == prompt + 2
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_stream_options_without_a_stream_are_refused(door: Door) -> None:
    status, told = await door.complete(stream_options={"include_usage": True})
    assert (status, told["error"]["param"]) == (400, "stream_options")


@pytest.mark.parametrize(
    ("pieces", "fields", "reason", "text"),
    [
        (["one", " two", EOS], {}, "stop", "one two"),
        (["one", " two", " three", " four"], {"max_tokens": 2}, "length", "one two"),
        (["one", " two", EOS], {"max_tokens": 2}, "length", "one two"),
        ([EOS], {}, "stop", ""),
    ],
)
async def test_one_last_chunk_says_why_the_reply_ended(
    door: Door, pieces: list[str | bytes], fields: dict[str, Any], reason: str, text: str
) -> None:
    door.say(*pieces)
    streamed = await door.stream_chat(**fields)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in streamed.chunks]
    assert reasons == [None] * (len(reasons) - 1) + [reason]
    assert streamed.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert streamed.text == text
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    status, told = await door.complete(**fields)
    assert status == 200
    choice = told["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)


async def test_a_failure_in_the_middle_is_one_error_event_without_details(door: Door) -> None:
    door.say("a", "b", "c", fails="generation_failed")
    streamed = await door.stream_chat()
    assert streamed.status == 200
    assert streamed.text == "abc"
    error = streamed.chunks[-1]["error"]
    assert error["code"] == "generation_failed"
    assert streamed.headers["X-Request-Id"] in error["message"]
    assert all(
        choice["finish_reason"] is None
        for chunk in streamed.chunks[:-1]
        for choice in chunk["choices"]
    )
    assert b"secret" not in streamed.body
    assert b"[DONE]" not in streamed.body


async def test_a_failure_before_the_first_byte_is_an_http_error(door: Door) -> None:
    status, told = await door.complete(n=0)
    assert (status, told["error"]["param"]) == (400, "n")
    await door.engine.stop()
    await door.eventually(lambda: not door.services.engine.ready)
    async with door.session.post(
        door.url + "/v1/chat/completions", json={**chat(), "stream": True}
    ) as answer:
        assert answer.status == 503
        assert answer.content_type == "application/json"
        assert int(answer.headers["Retry-After"]) > 0
        assert (await answer.json())["error"]["code"] == "engine_unavailable"
    await door.engine.start()


async def test_an_engine_that_dies_in_the_middle_gives_an_error_and_the_next_one_answers(
    door: Door,
) -> None:
    door.say("w ", forever=True, token_s=0.01)
    async with door.session.post(
        door.url + "/v1/chat/completions", json={**chat(), "stream": True, "max_tokens": 1000}
    ) as answer:
        await answer.content.readuntil(b"\n\n")
        await door.engine.stop()
        rest = await answer.read()
    assert b'"code":"engine_unavailable"' in rest
    assert b"[DONE]" not in rest
    await door.engine.start()
    await door.eventually(lambda: door.services.engine.ready)
    door.say("ok")
    assert (await door.complete())[0] == 200


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "ABC"),
        (["fine\n", "Us", "er", ": next"], "\nUser:", "fine"),
        (["x", bytes.fromhex("f09f"), bytes.fromhex("9880"), "y"], ["😀"], "x"),
        (["aab", "aabaaac"], ["aabaaa"], "aab"),
    ],
)
async def test_no_part_of_a_stop_string_is_sent_and_the_engine_stops_at_it(
    door: Door, pieces: list[str | bytes], stop: Any, text: str
) -> None:
    door.say(*pieces, forever=True, token_s=0.005)
    streamed = await door.stream_chat(stop=stop, max_tokens=200)
    assert streamed.text == text
    assert streamed.chunks[-1]["choices"][0]["finish_reason"] == "stop"
    await door.eventually(lambda: door.engine.running == 0)
    assert door.engine.new_tokens < 100
    status, told = await door.complete(stop=stop, max_tokens=200)
    assert status == 200
    assert told["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("n", [0, 2, 100_000, "2"])
async def test_more_than_one_answer_is_a_clear_refusal(door: Door, n: Any) -> None:
    for stream in (True, False):
        status, told = await door.complete(n=n, stream=stream)
        assert (status, told["error"]["param"]) == (400, "n")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": None, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 5),
        ({"max_tokens": None}, 20),
        ({}, 20),
    ],
)
async def test_both_names_of_the_length_limit_work_and_null_means_the_default(
    fields: dict[str, Any], expected: int
) -> None:
    async with open_door(ServerConfig(new_tokens_default=20)) as door:
        door.say("w ", forever=True)
        _, told = await door.complete(**fields)
        assert told["usage"]["completion_tokens"] == expected
        assert told["choices"][0]["finish_reason"] == "length"


async def test_text_parts_give_the_same_prompt_as_text(door: Door) -> None:
    door.say("ok")
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Sky colour?"},
    ]
    parts = [
        {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]}
        for message in plain
    ]
    two = [{"role": "user", "content": [{"type": "text", "text": text} for text in "AB"]}]
    for messages in (plain, parts, two):
        assert (await door.complete(messages=messages))[0] == 200
    first, second, third = (request.token_ids for request in door.engine.generated)
    assert first == second
    assert door.services.tokenizer.encode("A\nB") in third


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "user", "content": 7},
        {"role": "user"},
        {"role": "user", "content": [{"type": "text"}]},
    ],
)
async def test_content_that_is_no_text_is_refused_by_its_path(door: Door, message: Any) -> None:
    status, told = await door.complete(messages=[message])
    assert status == 400
    assert told["error"]["param"].startswith("messages[0].content")


async def test_tools_are_refused_clearly(door: Door) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "call it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    for fields in ({"messages": messages}, {"messages": messages[2:]}, {"tools": [{"type": "x"}]}):
        status, told = await door.complete(**fields)
        assert status == 400
        assert "tools are not supported" in told["error"]["message"]


FINE = ['"temperature":0.0001', '"temperature":0', '"stop":[]', '"frequency_penalty":null']
EITHER = ['"seed":-1', '"stop":["a","b","c","d","e"]']
REFUSED = [
    *(f'"temperature":{value}' for value in ("NaN", "Infinity", "-0.1", "1e999", '"0.7"', "true")),
    *('"top_p":0', '"top_p":1.5', '"top_k":0.01'),
    *(f'"max_tokens":{value}' for value in ("-1", "0", "2.5", "9223372036854775808")),
    *('"seed":18446744073709551616', '"presence_penalty":99', '"stop":""', '"stop":[""]'),
]


@pytest.mark.parametrize("fragment", FINE + EITHER + REFUSED)
async def test_sampling_values_are_taken_or_refused_by_name(door: Door, fragment: str) -> None:
    door.say("ok")
    body = json.dumps(chat())[:-1] + f',"max_tokens":4,{fragment}' + "}"
    status, told = await door.post("/v1/chat/completions", body.encode())
    assert status == (400 if fragment in REFUSED else 200)
    if status == 400:
        name = fragment.partition(":")[0].strip('"')
        assert told["error"]["param"].removesuffix("[0]") == name
    assert (await door.complete())[0] == 200


async def test_a_bias_outside_of_the_vocabulary_is_refused(door: Door) -> None:
    vocab_size = door.services.tokenizer.vocab_size
    for key, bias in (
        ("99999999", 5),
        ("-1", 5),
        ("abc", 5),
        ("01", 5),
        ("5", 1000),
        (str(vocab_size), 5),
    ):
        status, told = await door.complete(logit_bias={key: bias})
        assert (status, told["error"]["param"]) == (400, "logit_bias")
    door.say("ok")
    assert (await door.complete(logit_bias={str(vocab_size - 1): -100}))[0] == 200
    assert door.engine.generated[-1].sampling.logit_bias == {vocab_size - 1: -100}


async def test_logprobs_have_openais_shape(door: Door) -> None:
    door.say("one", bytes.fromhex("f09f"), bytes.fromhex("9880"))
    _, told = await door.complete(logprobs=True, top_logprobs=1)
    content = told["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[111, 110, 101], [0xF0, 0x9F], [0x98, 0x80]]
    assert content[0]["top_logprobs"] == [
        {"token": "one", "logprob": -0.25, "bytes": [111, 110, 101]}
    ]
    streamed = await door.stream_chat(logprobs=True)
    streamed_bytes = [
        byte
        for chunk in streamed.chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
        for byte in entry["bytes"]
    ]
    assert bytes(streamed_bytes).decode() == "one😀"
    status, told = await door.complete(top_logprobs=1)
    assert (status, told["error"]["param"]) == (400, "top_logprobs")


EMPTY = [
    (400, []),
    (400, None),
    (200, [{"role": "user", "content": ""}]),
    (
        200,
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "still there?"},
        ],
    ),
]


@pytest.mark.parametrize(("expected", "messages"), EMPTY)
async def test_empty_conversations_and_turns(door: Door, expected: int, messages: Any) -> None:
    door.say("ok")
    status, _ = await door.complete(messages=messages)
    assert status == expected
    if status == 200:
        prompt = door.services.tokenizer.decode(door.engine.generated[-1].token_ids)
        assert "None" not in prompt
    assert (await door.complete())[0] == 200


async def test_a_prompt_over_the_context_is_refused_with_the_numbers(door: Door) -> None:
    status, told = await door.complete(messages=[{"role": "user", "content": "filler " * 5000}])
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
    assert "2048" in told["error"]["message"]
    status, told = await door.complete(messages=[{"role": "user", "content": "w" * 4_000_000}])
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
    door.say("w ", forever=True)
    status, told = await door.complete(max_tokens=4096)
    assert status == 200
    assert told["usage"]["total_tokens"] <= 2048


async def test_another_model_and_unknown_fields(door: Door) -> None:
    status, told = await door.complete(model="other")
    assert (status, told["error"]["param"]) == (404, "model")
    door.say("ok")
    assert (await door.complete(some_new_field={"deep": [1]}, metadata={"a": "b"}))[0] == 200


async def test_pings_keep_a_long_prefill_alive_and_no_parser_sees_them() -> None:
    async with open_door(ServerConfig(ping_interval_s=0.3)) as door:
        door.say("ok", prefill_s=1.2)
        streamed = await door.stream_chat()
        assert 3 <= streamed.pings <= 5
        assert streamed.text == "ok"
        assert streamed.ids == []
        assert all(json.loads(event.data) for event in streamed.events if event.data != "[DONE]")


async def test_the_openai_client_reads_answers_streams_and_errors() -> None:
    async with (
        open_door(ServerConfig(ping_interval_s=0.1)) as door,
        openai.AsyncOpenAI(base_url=door.url + "/v1", api_key="any", max_retries=0) as client,
    ):
        door.say("one", " two", prefill_s=0.3)
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}]
        )
        assert whole.choices[0].message.content == "one two"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens == 0
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(text or "" for text in texts) == "one two"
        assert [model.id async for model in await client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL

        door.say("a", fails="generation_failed")
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
        )
        with pytest.raises(openai.APIError, match="reply"):
            [chunk async for chunk in stream]
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], temperature=9
            )


async def test_tenants_get_namespaces_that_only_their_key_decides(door: Door) -> None:
    door.say("ok")
    await door.complete(cache_salt="somebody else's", user="somebody else")
    stretches = door.engine.generated[0].stretches
    assert {namespace for namespace, _ in stretches} <= {b"public", b"tenant:local"}


async def test_a_last_reply_is_continued_only_when_that_is_asked(door: Door) -> None:
    begun = [
        {"role": "user", "content": "Story please"},
        {"role": "assistant", "content": "Once upon a "},
    ]
    door.say("one")
    decode = door.services.tokenizer.decode
    for fields, end in (
        ({}, "Once upon a \nassistant\n"),
        ({"add_generation_prompt": True}, "Once upon a \nassistant\n"),
        ({"continue_final_message": True}, "assistant\nOnce upon a "),
        ({"continue_final_message": True, "add_generation_prompt": False}, "\nOnce upon a "),
    ):
        status, told = await door.complete(messages=begun, **fields)
        assert (status, told["choices"][0]["message"]["content"]) == (200, "one")
        assert decode(door.engine.generated[-1].token_ids).endswith(end)
    for messages, fields, param in (
        (
            begun,
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        (begun, {"add_generation_prompt": False}, "add_generation_prompt"),
        (begun[:1], {"continue_final_message": True}, "messages[0].role"),
    ):
        status, told = await door.complete(messages=messages, **fields)
        assert (status, told["error"]["param"]) == (400, param)

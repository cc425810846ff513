"""Chat formats over a small byte-level tokenizer, and messages to put into them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from appliance._core import Tokenizer
from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import tenant_namespace
from tests.model_fixtures import tokenizer_json
from tests.unit.prompt.templates import runner

TENANT = tenant_namespace("a")


def tokenizer() -> Tokenizer:
    """Byte-level BPE with <|endoftext|> 0, <|im_start|> 1, <|im_end|> 2."""
    return Tokenizer(json.dumps(tokenizer_json()).encode(), memo_bytes_max=1 << 20)


def tokenizer_with_bos() -> Tokenizer:
    """The same with `<s>` and `</s>` as control tokens, and a post-processor that adds a BOS."""
    document = tokenizer_json()
    known = len(document["model"]["vocab"])
    for index, content in enumerate(("<s>", "</s>")):
        added = {**document["added_tokens"][0], "id": known + index, "content": content}
        document["added_tokens"].append(added)
        document["model"]["vocab"][content] = known + index
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [known], "tokens": ["<s>"]}},
    }
    return Tokenizer(json.dumps(document).encode(), memo_bytes_max=1 << 20)


def tokenizer_without_chatml() -> Tokenizer:
    """The same with other names for the control tokens."""
    document = tokenizer_json()
    vocab = document["model"]["vocab"]
    for added in document["added_tokens"]:
        name = added["content"]
        added["content"] = name.replace("im_", "x_")
        vocab[added["content"]] = vocab.pop(name)
    return Tokenizer(json.dumps(document).encode(), memo_bytes_max=1 << 20)


@cache
def format_of(template: str, with_tokenizer: Tokenizer | None = None) -> ChatFormat:
    """The chat format of a template; derived once, as it takes four processes."""
    return ChatFormat.derive(runner(template), with_tokenizer or tokenizer())


def conversation(*turns: tuple[Role, str], namespace: bytes = TENANT) -> list[PromptMessage]:
    """Messages of a tenant."""
    return [
        PromptMessage(
            name=f"messages[{index}]",
            role=role,
            zone=Zone.HISTORY,
            content=content,
            namespace=namespace,
        )
        for index, (role, content) in enumerate(turns)
    ]


def written(chat_format: ChatFormat, token_ids: Sequence[int]) -> str:
    """The ids as text with control tokens shown, which `decode` leaves out."""
    from_id = {
        chat_format.tokenizer.token_id(name): name
        for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>")
    }
    raw = b""
    for token_id in token_ids:
        name = from_id.get(token_id)
        raw += name.encode() if name else chat_format.tokenizer.token_bytes(token_id)
    return raw.decode()
